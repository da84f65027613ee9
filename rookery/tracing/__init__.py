"""Tracing: the operations of small updates are recorded once and repeated without autograd.

`traced` is the only entry point; docs/tracing.md explains what happens and when.
"""

from rookery.tracing.function import traced

__all__ = ["traced"]
