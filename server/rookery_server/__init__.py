"""Environments behind a ZeroMQ socket, without torch, in any Python from 3.8 on."""

__version__ = "0.1.0"
