"""A server of Gymnasium and Gym environments over ZeroMQ, for Python 3.8 and later."""

__version__ = "0.1.0"
