"""Tracing: the operations of small updates are recorded once and repeated without autograd.

`TracedFunction` is the only entry point; docs/tracing.md explains what happens and when.
"""

from rookery.tracing.function import TracedFunction

__all__ = ["TracedFunction"]
