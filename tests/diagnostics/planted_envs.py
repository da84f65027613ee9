"""A small healthy environment, and copies of it with one planted defect each."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class Healthy(gymnasium.Env):
    """A point on a line, pushed by the action and by noise; far from 0 the episode terminates, and
    after 60 steps it is truncated."""

    limit: int | None = 60
    observation_space = spaces.Box(-20, 20, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.place, self.speed = 0, self.random(), 0.0
        return self.observe(), {}

    def random(self):
        return self.np_random.uniform(-1, 1)

    def observe(self):
        return np.array([self.place, self.speed, self.t / 60], np.float32)

    def step(self, action):
        self.t += 1
        self.speed += 0.3 * (2 * int(action) - 1) + 0.1 * self.random()
        self.place += self.speed
        terminated = abs(self.place) > 6
        truncated = self.limit is not None and self.t >= self.limit
        return self.observe(), 1.0, terminated, truncated, {}


class Camera(Healthy):
    """Shows the place as a bright column of an image."""

    observation_space = spaces.Box(0, 255, (12, 16, 3), np.uint8)

    def observe(self):
        image = np.zeros((12, 16, 3), np.uint8)
        image[:, int(np.clip(self.place + 8, 0, 15)), 1] = 200
        return image


class Unseeded(Healthy):
    def random(self):
        return np.random.default_rng().uniform(-1, 1)


class SameSeed(Healthy):
    """Every lane has the same random numbers, whatever its seed."""

    def __init__(self):
        self.own = np.random.default_rng(3)

    def random(self):
        return self.own.uniform(-1, 1)


class NewEpisodeAtEnd(Healthy):
    """Returns the first observation of a new episode from the step that ends the old one."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            obs, info = self.reset()
        return obs, reward, terminated, truncated, info


class LimitTerminates(Healthy):
    limit = 20

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, False, info


class FailureTruncates(Healthy):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, False, terminated or truncated, info


class OutsideSpace(Healthy):
    observation_space = spaces.Box(-4, 4, (3,), np.float32)


class DeadSensor(Healthy):
    def observe(self):
        return super().observe() * np.float32([1, 0, 1])


class ReusedBuffer(Healthy):
    """Writes every observation into the same array."""

    def __init__(self):
        self.buffer = np.zeros(3, np.float32)

    def observe(self):
        self.buffer[:] = super().observe()
        return self.buffer


class NotANumber(Healthy):
    def observe(self):
        return super().observe() + np.float32([0, np.nan if self.t == 7 else 0, 0])


class NoReward(Healthy):
    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, float("nan") if self.t == 5 else 1.0, *rest


class LargeRewards(Healthy):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, 1000 * reward, *rest


class LateReward(Healthy):
    """Pays what the step before has earned."""

    def reset(self, **kwargs):
        self.earned = 0.0
        return super().reset(**kwargs)

    def step(self, action):
        obs, reward, *rest = super().step(action)
        reward, self.earned = self.earned, reward
        return obs, reward, *rest


class LateObservation(Healthy):
    """Returns the observation from before the action."""

    def step(self, action):
        before = self.observe()
        _, *rest = super().step(action)
        return before, *rest


class Endless(Healthy):
    def step(self, action):
        _, reward, _, _, info = super().step(action)
        self.place = float(np.clip(self.place, -6, 6))
        self.speed = float(np.clip(self.speed, -1, 1))
        self.t %= 60
        return self.observe(), reward, False, False, info


class IgnoredAction(Healthy):
    def step(self, action):
        return super().step(self.t % 2)


class EmptyMask(Healthy):
    """The mask forbids all actions at step 4."""

    observation_space = spaces.Dict(
        {"place": Healthy.observation_space, "action_mask": spaces.MultiBinary(2)}
    )

    def observe(self):
        mask = np.full(2, self.t != 4, np.int8)
        return {"place": super().observe(), "action_mask": mask}


class WritesActions(Healthy):
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def step(self, action):
        action[0] = np.sign(action[0])
        return super().step(action[0] > 0)


class Raises(Healthy):
    def step(self, action):
        if self.t == 9:
            raise ZeroDivisionError("planted")
        return super().step(action)


def same_step(num_envs):
    """A vector environment that resets in the step that ends an episode, and says otherwise."""
    env = SyncVectorEnv([Healthy] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    env.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
    return env


class HidesEnds(gymnasium.vector.VectorWrapper):
    """SAME_STEP without the key in infos: the last observations are lost."""

    def __init__(self, num_envs):
        super().__init__(same_step(num_envs))

    def step(self, actions):
        obs, reward, terminated, truncated, _ = self.env.step(actions)
        return obs, reward, terminated, truncated, {}


def hides_ends(num_envs):
    return HidesEnds(num_envs)


ONE = Healthy()


def one_object():
    """The same object at every call."""
    return ONE


BUFFER = np.zeros((64, 3), np.float32)


class SharedBuffer(gymnasium.vector.VectorWrapper):
    """All vector environments return views of one array."""

    def __init__(self, num_envs):
        super().__init__(SyncVectorEnv([Healthy] * num_envs))

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        BUFFER[: self.num_envs] = obs
        return BUFFER[: self.num_envs], info

    def step(self, actions):
        obs, *rest = self.env.step(actions)
        BUFFER[: self.num_envs] = obs
        return BUFFER[: self.num_envs], *rest


def shared_buffer(num_envs):
    return SharedBuffer(num_envs)
