"""One client's environments, and the replies to its requests."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, Callable, List, Sequence, Tuple

import numpy as np

from rookery_server.actions import Actions
from rookery_server.messages import PROTOCOL, Header, Message, Refused, encode
from rookery_server.spaces import at, describe, leaves

MAX_INTEGER = 2**63 - 1
Content = Tuple[Header, List[np.ndarray]]


class EnvironmentFailed(Exception):
    """An environment raised, or returned invalid values; its session ends."""


class Session:
    """The environments of one client, and the last reply, in case it is requested again."""

    def __init__(self, token: bytes, env: Any, infos: Sequence[str], render: bool):
        self.token = token
        self.env = env
        self.envs = int(env.num_envs)
        self.infos = tuple(infos)
        self.renders = render
        self.was_reset = False
        self.ended = False
        self.seq = 0
        self.last: list[Any] = []
        self._bounds: list[np.ndarray] = []
        self.observation = describe(env.single_observation_space, self._bounds)
        self.action = describe(env.single_action_space, self._bounds)
        self._obs_leaves = leaves(self.observation)
        self._operations: dict[str, Callable[[Message], Content]] = {
            "reset": self._reset,
            "step": self._step,
            "render": self._render,
            "close": self._close,
        }
        self._actions = Actions(self.action, self._bounds, self.envs)

    def hello_reply(self, name: str, silence: float) -> list[Any]:
        """Return the reply to `hello`."""
        header = {
            "protocol": PROTOCOL,
            "env": name,
            "envs": self.envs,
            "observation": self.observation,
            "action": self.action,
            "silence": silence,
        }
        return self._reply("hello", 0, (header, self._bounds))

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
            content = self._operations[op](message)
        return self._reply(op, seq, content)

    def close(self) -> None:
        """Close the environments; what they raise is ignored."""
        if self.ended:
            return
        self.ended = True
        with contextlib.suppress(Exception):
            self.env.close()

    def _reply(self, op: str, seq: int, content: Content) -> list[Any]:
        header, arrays = content
        self.seq = seq
        self.last = encode({"op": op, "session": self.token, "seq": seq, **header}, arrays)
        return self.last

    def _reset(self, message: Message) -> Content:
        seed = (
            read_integer(message.header, "seed") if message.header.get("seed") is not None else None
        )
        obs, info = self.env.reset(seed=seed)
        self.was_reset = True
        return {}, [*self._obs_arrays(obs), *self._info_arrays(info)]

    def _step(self, message: Message) -> Content:
        if not self.was_reset:
            raise Refused("order", "reset must come before the first step")
        actions = self._actions.read(message.arrays)
        obs, reward, terminated, truncated, info = self.env.step(actions)
        results = [
            np.asarray(reward, np.float64),
            np.asarray(terminated, bool),
            np.asarray(truncated, bool),
        ]
        return {}, [*results, *self._obs_arrays(obs), *self._info_arrays(info)]

    def _render(self, message: Message) -> Content:
        lane = read_integer(message.header, "lane", self.envs - 1)
        if not (self.renders and self.was_reset):
            raise Refused("render", 'render needs "render": true in hello, and a reset before it')
        try:
            picture = np.asarray(next(itertools.islice(self.env.render(), lane, None)))
        except Exception as error:
            raise Refused("render", f"{type(error).__name__}: {error}") from error
        if picture.ndim != 3 or picture.shape[-1] != 3 or picture.dtype != np.uint8:
            raise Refused("render", "the environment renders no RGB image")
        return {}, [picture]

    def _close(self, message: Message) -> Content:
        self.close()
        return {}, []

    def _obs_arrays(self, obs: Any) -> list[np.ndarray]:
        # Not copied: the environment may overwrite them at the next step, but by then this reply
        # has been sent and cannot be requested any more.
        return [np.asarray(at(obs, leaf.path), leaf.dtype) for leaf in self._obs_leaves]

    def _info_arrays(self, info: Any) -> list[np.ndarray]:
        return [info_numbers(info, name, self.envs) for name in self.infos]


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
