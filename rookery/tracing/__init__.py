"""Tracing: operations of small updates recorded once and replayed without autograd."""
