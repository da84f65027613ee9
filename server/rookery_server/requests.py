"""Checks of the header of a hello."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from rookery_server.messages import PROTOCOL, Header, Refused
from rookery_server.session import read_integer

TOKEN_BYTES = 16
MAX_WAIT_S = 3600.0
MAX_INFOS = 16
MAX_NAME_LENGTH = 64


class Hello(NamedTuple):
    """A client's request for a session."""

    header: Header
    token: bytes
    envs: int
    wait: float
    render: bool
    infos: tuple[str, ...]
    replaces: bytes | None


def read_hello(header: Header) -> Hello:
    """Return the contents of a hello's header, checked."""
    if header.get("protocol") != PROTOCOL:
        raise Refused("version", f"this server uses version {PROTOCOL} of the protocol")
    if read_integer(header, "seq") != 0:
        raise Refused("order", "seq of hello must be 0")
    envs = read_integer(header, "envs")
    if envs < 1:
        raise Refused("malformed", "envs must be 1 or more")
    render = header.get("render", False)
    if type(render) is not bool:
        raise Refused("malformed", "render must be true or false")
    replaces = read_token(header, "replaces") if header.get("replaces") is not None else None
    return Hello(
        header,
        read_token(header, "session"),
        envs,
        read_wait(header.get("wait", 0)),
        render,
        read_infos(header.get("infos", [])),
        replaces,
    )


def read_token(header: Header, key: str) -> bytes:
    """Return the 16 bytes that identify a session."""
    token = header.get(key)
    if not isinstance(token, bytes) or len(token) != TOKEN_BYTES:
        raise Refused("malformed", f"{key} must be {TOKEN_BYTES} bytes")
    return token


def read_wait(wait: Any) -> float:
    """Return the seconds to wait for room."""
    number = type(wait) in (int, float) and math.isfinite(wait)
    if not number or not 0 <= wait <= MAX_WAIT_S:
        raise Refused("malformed", f"wait must be from 0 to {MAX_WAIT_S:g} seconds")
    return float(wait)


def read_infos(names: Any) -> tuple[str, ...]:
    """Return the names of the infos to send."""
    if not isinstance(names, list) or len(names) > MAX_INFOS:
        raise Refused("malformed", f"infos must be a list of at most {MAX_INFOS} names")
    if not all(isinstance(name, str) and 0 < len(name) <= MAX_NAME_LENGTH for name in names):
        raise Refused("malformed", f"names in infos must have 1 to {MAX_NAME_LENGTH} characters")
    return tuple(names)
