"""Small environments with known answers, and algorithms, learners and reducers for tests."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rookery.algorithms.base import Spaces
from rookery.algorithms.ppo import PPO
from rookery.data.steps import Batch, Steps
from rookery.data.tree import tree_map
from rookery.learning.actor import Actor
from rookery.learning.learner import Learner, LearnerConfig
from rookery.learning.reduce import Reducer
from rookery.networks.build import NetConfig

CPU = torch.device("cpu")
RESET_REWARD = 99.0


def column(values):
    """Return a list as a tensor [T, 1]."""
    return torch.tensor(values, dtype=torch.float32).unsqueeze(1)


class Lanes(VectorEnv):
    """A NEXT_STEP vector environment with scripted episodes.

    `lanes` has for each sub-environment its episodes, (length, "terminated" | "truncated" |
    "both"), which repeat forever. `see(lane, episode, t)` is the observation, `pay(lane, t,
    action)` the reward. The same buffers are returned and overwritten at every step, and a reset
    row pays RESET_REWARD: code that keeps buffers or counts reset rows fails its test.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, lanes, see=None, pay=None, obs_space=None, action_space=None):
        self.lanes, self.num_envs = lanes, len(lanes)
        self.see = see or (lambda lane, episode, t: [1.0])
        self.pay = pay or (lambda lane, t, action: 1.0)
        self.single_observation_space = obs_space or spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.single_action_space = action_space or spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        shape, dtype = self.single_observation_space.shape, self.single_observation_space.dtype
        self.obs = np.zeros((self.num_envs, *shape), dtype)
        self.reward = np.zeros(self.num_envs)
        self.terminated = np.zeros(self.num_envs, bool)
        self.truncated = np.zeros(self.num_envs, bool)
        self.episode = np.full(self.num_envs, -1)
        self.t = np.zeros(self.num_envs, int)

    def reset(self, *, seed=None, options=None):
        self.terminated[:] = self.truncated[:] = False
        for lane in range(self.num_envs):
            self.begin(lane)
        return self.obs, {}

    def begin(self, lane):
        self.episode[lane] += 1
        self.t[lane] = 0
        self.obs[lane] = self.see(lane, self.episode[lane], 0)

    def step(self, actions):
        assert all(self.single_action_space.contains(action) for action in actions)
        for lane, action in enumerate(actions):
            if self.terminated[lane] or self.truncated[lane]:
                self.terminated[lane] = self.truncated[lane] = False
                self.reward[lane] = RESET_REWARD
                self.begin(lane)
                continue
            length, ending = self.lanes[lane][self.episode[lane] % len(self.lanes[lane])]
            self.reward[lane] = self.pay(lane, self.t[lane], action)
            self.t[lane] += 1
            self.obs[lane] = self.see(lane, self.episode[lane], self.t[lane])
            if self.t[lane] == length:
                self.terminated[lane] = ending != "truncated"
                self.truncated[lane] = ending != "terminated"
        return self.obs, self.reward, self.terminated, self.truncated, {}


def spaces_of(env):
    return Spaces(env.single_observation_space, env.single_action_space)


def make(kind, where, net=None, seed=0, **settings):
    """Return an algorithm for an environment or for spaces, its network initialized with `seed`."""
    torch.manual_seed(seed)
    where = spaces_of(where) if isinstance(where, VectorEnv) else where
    return kind(where, kind.Config(**settings), net or NetConfig(hidden=(8,)), CPU)


class Loop:
    """A serial training loop of actor, memory and learner."""

    def __init__(self, algorithm, env, seed=0, learner=None):
        self.algorithm = algorithm
        self.learner = learner or Learner(algorithm, LearnerConfig(), Reducer(), CPU)
        self.actor = Actor(env, algorithm, algorithm.collection, CPU, seed)
        self.memory = algorithm.memory(env.num_envs, 1, seed)
        self.env_steps = 0

    def run(self, rounds):
        for _ in range(rounds):
            self.memory.add(self.algorithm.prepare(self.actor.collect(self.env_steps)))
            self.env_steps += self.actor.take_played().env_steps
            for batch in self.memory.batches():
                outcome = self.learner.update(batch)
                self.memory.reweigh(batch.keys, outcome.priorities)
                if outcome.stop:
                    break
        return self


class FakeRanks:
    """A group of ranks in threads; each collective call waits for all, as a real transport does."""

    def __init__(self, world):
        self.world = world
        self.barrier = threading.Barrier(world, timeout=30)
        self.slots = [None] * world
        self.calls = [[] for _ in range(world)]

    def run(self, work):
        """Run `work(reducer)` on all ranks in parallel; return the results by rank."""
        with ThreadPoolExecutor(self.world) as pool:
            jobs = [pool.submit(self.guarded, work, rank) for rank in range(self.world)]
            return [job.result() for job in jobs]

    def guarded(self, work, rank):
        try:
            return work(FakeReducer(self, rank))
        except BaseException:
            self.barrier.abort()
            raise


class FakeReducer:
    """One rank of a FakeRanks."""

    name = "fake"

    def __init__(self, group, rank):
        self.group, self.rank, self.world = group, rank, group.world

    def exchange(self, item, call):
        self.group.slots[self.rank] = copy.deepcopy(item)
        self.group.calls[self.rank].append(call)
        self.group.barrier.wait()
        items = list(self.group.slots)
        self.group.barrier.wait()
        return items

    def sum(self, tensor):
        items = self.exchange(tensor.detach(), "sum")
        tensor.detach().copy_(torch.stack(items).sum(0))

    def sum_to_first(self, tensor):
        items = self.exchange(tensor.detach(), "sum_to_first")
        # On other ranks the result is undefined: NaN makes tests fail that use it.
        tensor.detach().copy_(torch.stack(items).sum(0) if self.rank == 0 else tensor * torch.nan)

    def broadcast(self, tensor):
        tensor.detach().copy_(self.exchange(tensor.detach(), "broadcast")[0])

    def gather(self, item):
        return self.exchange(item, "gather")

    def close(self):
        pass


OBS, ACTIONS = 3, 4
FLAT = Spaces(spaces.Box(-1, 1, (OBS,), np.float32), spaces.Discrete(ACTIONS))


def a_batch(algorithm, rows, lanes, seed=0, masked=0.2, state=True):
    """Return a batch of random steps with random reset rows, as PPO and VPG prepare them."""
    rng = torch.Generator().manual_seed(seed)
    shape = (rows, lanes)
    mask = (torch.rand(shape, generator=rng) >= masked).float()
    obs = torch.randn(*shape, OBS, generator=rng)
    action = torch.randint(ACTIONS, shape, generator=rng)
    log_prob = torch.randn(shape, generator=rng) * 0.3 - 1.4
    extra = {
        "log_prob": log_prob,
        "value": torch.randn(shape, generator=rng),
        "advantage": 1 + 2 * torch.randn(shape, generator=rng),
        "return": torch.randn(shape, generator=rng),
    }
    steps = Steps(obs, action, torch.zeros(shape), torch.ones(shape), mask, extra)
    first = tuple(
        torch.randn(part.shape, generator=rng) for part in algorithm.initial_state(lanes) if state
    )
    return Batch(steps, first)


def ppo(net=None, where=FLAT, seed=0, **settings):
    """Return a PPO that by default uses plain gradient descent."""
    defaults = {"optimizer": "sgd", "learning_rate": 0.1, "anneal": False, "max_grad_norm": 0}
    return make(PPO, where, net, seed, **(defaults | settings))


class Spy:
    """Records the inputs and decisions of an algorithm while it acts."""

    def __init__(self, algorithm):
        self.rows = []
        self.inner, algorithm.act = algorithm.act, self.act

    def act(self, obs, reward, state, generator, explore):
        decision = self.inner(obs, reward, state, generator, explore)
        seen = tree_map(torch.clone, (obs, reward, state))
        self.rows.append((*seen, decision))
        return decision

    def at(self, lane, row):
        """Return observation, reward and state of one environment before a row."""
        return tree_map(lambda x: x[lane], self.rows[row][:3])


def filled(algorithm, env, rounds, seed=0):
    """Return a memory with `rounds` rollouts of an actor, and the Spy of that actor."""
    spy = Spy(algorithm)
    loop = Loop(algorithm, env, seed)
    for _ in range(rounds):
        loop.memory.add(algorithm.prepare(loop.actor.collect()))
    return loop.memory, spy


class Stored(NamedTuple):
    """Every window that a replay memory could draw."""

    batch: Batch
    lane: np.ndarray
    row: np.ndarray
    priority: torch.Tensor | None
    """Priority to the power of alpha, as stored."""


def every_window(memory):
    place = (memory.row_at >= 0).nonzero()[0]
    lane, row = place // memory.ring.starts, memory.row_at[place]
    steps, state = memory.windows.assemble(memory.ring, lane, row)
    keys = torch.from_numpy(row * memory.ring.lanes + lane)
    tree = getattr(memory.distribution, "tree", None)
    priority = None if tree is None else torch.from_numpy(tree.weights[place])
    return Stored(Batch(steps, state, keys, torch.ones(len(row))), lane, row, priority)


def shaken(module, seed=0, size=0.5):
    """Add noise to the weights of a module and return it."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += size * torch.randn(parameter.shape, generator=rng)
    return module
