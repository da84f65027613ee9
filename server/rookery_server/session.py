"""One client's environments, the checks of its requests, and the replies to them."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, Callable, List, NamedTuple, Sequence

import numpy as np

from rookery_server.errors import Refused
from rookery_server.messages import PROTOCOL, Header, Message, encode
from rookery_server.spaces import Leaf, at, describe, filled, leaves, nested

MAX_INTEGER = 2**63 - 1
TOKEN_BYTES = 16
MAX_WAIT_S = 3600.0
MAX_INFOS = 16
MAX_NAME_LENGTH = 64
RECONNECT_GRACE_S = 10.0
"""Time that a session outlives its connection, so that its client can reconnect."""
Operation = Callable[[Message], List[np.ndarray]]


class EnvironmentFailed(Exception):
    """An environment raised, or returned invalid values; its session ends."""


class Peer(NamedTuple):
    """The sender of a message: frames that route the reply, connection, and name of its key."""

    route: Any
    connection: int = 0
    user: str = ""


class Hello(NamedTuple):
    """A client's request for a session."""

    header: Header
    token: bytes
    envs: int
    wait: float
    render: bool
    infos: tuple[str, ...]
    replaces: bytes | None


class Session:
    """The environments of one client, the time of its last request and its connection, and the last
    reply, in case it is requested again."""

    def __init__(self, hello: Hello, env: Any, peer: Peer, now: float):
        self.token, self.infos, self.renders = hello.token, hello.infos, hello.render
        self.env = env
        self.envs = int(env.num_envs)
        self.user = peer.user
        self.note_request(peer, now)
        self.was_reset = False
        self.ended = False
        self.seq = 0
        self.last: list[Any] = []
        self._bounds: list[np.ndarray] = []
        self.observation = describe(env.single_observation_space, self._bounds)
        self.action = describe(env.single_action_space, self._bounds)
        self._obs_leaves = leaves(self.observation)
        self._action_leaves = [(leaf, *limits(leaf, self._bounds)) for leaf in leaves(self.action)]
        self._operations: dict[str, Operation] = {
            "reset": self._reset,
            "step": self._step,
            "render": self._render,
            "close": self._close,
        }

    def note_request(self, peer: Peer, now: float) -> None:
        self.connection = peer.connection
        self.heard = now
        self.gone: float | None = None

    def is_overdue(self, now: float, silence: float) -> bool:
        """True if its client has been silent or disconnected for too long."""
        return now - self.heard > silence or (
            self.gone is not None and now - self.gone > RECONNECT_GRACE_S
        )

    def hello_reply(self, name: str, silence: float) -> list[Any]:
        header = {
            "protocol": PROTOCOL,
            "env": name,
            "envs": self.envs,
            "observation": self.observation,
            "action": self.action,
            "silence": silence,
        }
        return self._reply("hello", 0, self._bounds, header)

    def answer(self, message: Message) -> list[Any]:
        """Return the reply to a request; a repeated request is not carried out again."""
        seq = read_integer(message.header, "seq")
        if seq == self.seq:
            return self.last
        if seq != self.seq + 1:
            raise Refused("order", f"the next number is {self.seq + 1}, not {seq}")
        op = message.header.get("op")
        if not isinstance(op, str) or op not in self._operations:
            raise Refused("malformed", "op must be hello, reset, step, render or close")
        with environment_errors():
            arrays = self._operations[op](message)
        return self._reply(op, seq, arrays)

    def close(self) -> None:
        """Close the environments; what they raise is ignored."""
        if self.ended:
            return
        self.ended = True
        with contextlib.suppress(Exception):
            self.env.close()

    def _reply(
        self, op: str, seq: int, arrays: list[np.ndarray], header: Header | None = None
    ) -> list[Any]:
        self.seq = seq
        header = {"op": op, "session": self.token, "seq": seq, **(header or {})}
        self.last = encode(header, arrays)
        return self.last

    def _reset(self, message: Message) -> list[np.ndarray]:
        given = message.header.get("seed") is not None
        obs, info = self.env.reset(seed=read_integer(message.header, "seed") if given else None)
        self.was_reset = True
        return self._arrays_of(obs, info)

    def _step(self, message: Message) -> list[np.ndarray]:
        if not self.was_reset:
            raise Refused("order", "reset must come before the first step")
        actions = self._read_actions(message.arrays)
        obs, reward, terminated, truncated, info = self.env.step(actions)
        results = [
            np.asarray(reward, np.float64),
            np.asarray(terminated, bool),
            np.asarray(truncated, bool),
        ]
        return [*results, *self._arrays_of(obs, info)]

    def _render(self, message: Message) -> list[np.ndarray]:
        lane = read_integer(message.header, "lane", self.envs - 1)
        if not (self.renders and self.was_reset):
            raise Refused("render", 'render needs "render": true in hello, and a reset before it')
        try:
            picture = np.asarray(next(itertools.islice(self.env.render(), lane, None)))
        except Exception as error:
            raise Refused("render", f"{type(error).__name__}: {error}") from error
        if picture.ndim != 3 or picture.shape[-1] != 3 or picture.dtype != np.uint8:
            raise Refused("render", "the environment renders no RGB image")
        return [picture]

    def _close(self, message: Message) -> list[np.ndarray]:
        self.close()
        return []

    def _read_actions(self, arrays: Sequence[np.ndarray]) -> Any:
        """Return copies of the actions, nested like the space, if all are in it."""
        expected = self._action_leaves
        if len(arrays) != len(expected):
            raise Refused(
                "action", f"expected {len(expected)} arrays of actions, got {len(arrays)}"
            )
        for array, (leaf, low, high) in zip(arrays, expected):
            shape = (self.envs, *leaf.shape)
            if array.dtype != leaf.dtype or array.shape != shape:
                raise Refused(
                    "action",
                    f"expected actions {leaf.dtype.str} {list(shape)}, "
                    f"got {array.dtype.str} {list(array.shape)}",
                )
            plain = array.view(np.uint8) if array.dtype == bool else array
            if low is not None and not ((plain >= low) & (plain <= high)).all():
                raise Refused("action", "an action is outside its space")
            if plain.dtype.kind == "f" and np.isnan(plain).any():
                raise Refused("action", "an action is NaN")
        return nested(self.action, (array.copy() for array in arrays))

    def _arrays_of(self, obs: Any, info: Any) -> list[np.ndarray]:
        # Not copied: the environment may overwrite them at the next step, but by then this reply
        # has been sent and cannot be requested any more.
        arrays = [np.asarray(at(obs, leaf.path), leaf.dtype) for leaf in self._obs_leaves]
        return arrays + [info_numbers(info, name, self.envs) for name in self.infos]


class environment_errors:  # noqa: N801 (contextlib.contextmanager is several times slower)
    """Context manager that turns what an environment raises into `EnvironmentFailed`."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (Exception, SystemExit)) and not isinstance(error, Refused):
            raise EnvironmentFailed(f"{type(error).__name__}: {error}") from error


def info_numbers(info: Any, name: str, envs: int) -> np.ndarray:
    """Return one number of each environment's info, [envs]; NaN where there is none.

    `info` is a list of dicts, or Gymnasium's dict of arrays with masks `_name`.
    """
    numbers = np.full(envs, np.nan)
    if isinstance(info, dict):
        values = info.get(name)
        known = info.get("_" + name, np.ones(envs, bool))
    else:
        values = [lane.get(name) for lane in info]
        known = np.array([isinstance(value, (int, float, np.number)) for value in values])
        values = [value if there else 0 for value, there in zip(values, known)]
    values = np.asarray(values)
    if values.shape == (envs,) and values.dtype.kind in "biuf":
        numbers[known] = values[known]
    return numbers


def read_integer(header: Header, key: str, most: int = MAX_INTEGER) -> int:
    """Return an integer of the header, from 0 to `most`."""
    value = header.get(key)
    if type(value) is not int or not 0 <= value <= most:
        raise Refused("malformed", f"{key} must be an integer from 0 to {most}")
    return value


def limits(leaf: Leaf, bounds: Sequence[np.ndarray]) -> tuple[Any, Any]:
    """Return the smallest and the largest action; (None, None) for a Box, which checks itself."""
    plain = leaf.plain
    if plain["type"] == "Discrete":
        return plain["start"], plain["start"] + plain["n"] - 1
    if plain["type"] == "MultiDiscrete":
        integer = np.dtype(np.int64)
        start = filled(plain["start"], bounds, leaf.shape, integer)
        return start, start + filled(plain["nvec"], bounds, leaf.shape, integer) - 1
    if plain["type"] == "MultiBinary" or leaf.dtype == bool:
        return 0, 1
    return None, None


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
    token = read_token(header, "session")
    wait = header.get("wait", 0)
    if type(wait) not in (int, float) or not 0 <= wait <= MAX_WAIT_S:
        raise Refused("malformed", f"wait must be from 0 to {MAX_WAIT_S:g} seconds")
    infos = header.get("infos", [])
    if not isinstance(infos, list) or len(infos) > MAX_INFOS:
        raise Refused("malformed", f"infos must be a list of at most {MAX_INFOS} names")
    if not all(isinstance(name, str) and 0 < len(name) <= MAX_NAME_LENGTH for name in infos):
        raise Refused("malformed", f"names in infos must have 1 to {MAX_NAME_LENGTH} characters")
    return Hello(header, token, envs, float(wait), render, tuple(infos), replaces)


def read_token(header: Header, key: str) -> bytes:
    """Return the 16 bytes that identify a session."""
    token = header.get(key)
    if not isinstance(token, bytes) or len(token) != TOKEN_BYTES:
        raise Refused("malformed", f"{key} must be {TOKEN_BYTES} bytes")
    return token
