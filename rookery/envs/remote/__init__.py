"""Environments that servers run: "tcp://host:port", or several as "tcp://a:1,tcp://b:2"."""
