"""Every planted fault takes effect, and the healthy package is unchanged afterwards."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from rookery.backends import factory
from rookery.backends.common import ActorWithWeights
from rookery.backends.factory import make_backend, seeds
from rookery.cli.train import TrainOptions, parse_settings
from rookery.config import default_config, resolve
from rookery.diagnostics import doctor, inspection  # noqa: F401
from rookery.diagnostics.probes import PROBES
from rookery.diagnostics.rules import RUN_RULES
from rookery.envs import EnvOptions, make_env
from rookery.fields import nest
from rookery.learning.reduce import Reducer

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from planted.running import flags
from planted.runs import HEALTHY_RUNS
from planted.table import FAULTS

CPU = torch.device("cpu")
REPLAY = {"warm_up": 64, "capacity": 1_000, "batch_size": 16, "samples_per_insert": 8.0}


def backend_of(fault, algorithm, environment, **settings):
    """Return the serial backend of a run that is made and trained with a fault planted."""
    settings = {"backend": "serial", "envs": 4, "threads": 1, **settings}
    config = resolve(algorithm, environment, settings, use_preset=False).config
    with FAULTS[fault].plant() if fault else nullcontext():
        backend = make_backend(config, Reducer(), CPU)
        yield backend
        backend.close()


def trained(fault, algorithm, environment="CartPole-v1", rounds=3, **settings):
    """Return the backend after some rounds of collecting and learning with a fault planted."""
    making = backend_of(fault, algorithm, environment, **settings)
    backend = next(making)
    for step in range(rounds):
        backend.advance(step)
    list(making)
    return backend


def weights(module):
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def moved(before, module):
    """Return the names of the parameters that differ from those before."""
    return {name for name, value in module.named_parameters() if not before[name].equal(value)}


def changes(fault, algorithm, part="network", rounds=3, **settings):
    """Return the names of the parameters that training with a fault changes."""
    making = backend_of(fault, algorithm, "CartPole-v1", **settings)
    backend = next(making)
    before = weights(getattr(backend.learner.algorithm, part))
    for step in range(rounds):
        backend.advance(step)
    list(making)
    assert backend.learner.updates > 0
    return moved(before, getattr(backend.learner.algorithm, part))


def segment_of(fault, algorithm="ppo", environment="CartPole-v1", steps=64, **settings):
    """Return what an actor collects with a fault planted."""
    making = backend_of(
        fault, algorithm, environment, algo={"rollout_steps": steps, "minibatches": 1}, **settings
    )
    backend = next(making)
    segment = backend.actor.collect()
    list(making)
    return segment


def played(fault, environment, actions, options=None, seed=3):
    """Return observations, rewards and ends that one lane gets for actions, with a fault."""
    with FAULTS[fault].plant() if fault else nullcontext():
        env = make_env(environment, options)
        obs, _ = env.reset(seed=seed)
        seen, rewards, ends = [np.array(obs[0])], [], []
        for action in actions:
            obs, reward, terminated, truncated, _ = env.step(np.array([action]))
            seen.append(np.array(obs[0]))
            rewards.append(float(reward[0]))
            ends.append(bool(terminated[0] or truncated[0]))
        env.close()
    return np.array(seen), rewards, ends


def config_of(run):
    """Return the config that the options of `rookery train` give."""
    what = run.algorithm, run.environment
    given, options = parse_settings(flags(run.settings), default_config(*what), TrainOptions)
    preset, use_preset = options.get("preset"), "no_preset" not in options
    return resolve(*what, nest(given), preset, use_preset).config


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.name)
def test_fault_has_valid_settings_and_findings_that_name_it(fault):
    assert (config_of(fault.run) == config_of(fault.broken_run)) == (not fault.settings)
    assert fault.rules or fault.checks or fault.probes
    assert fault.rules <= set(RUN_RULES)
    assert fault.checks <= {check.name for check in inspection.CHECKS}
    assert fault.probes <= {probe.number for probe in PROBES}


def test_there_are_enough_faults_and_healthy_runs():
    assert len(FAULTS) >= 20
    assert sum(len(seeds) for _, seeds in HEALTHY_RUNS) >= 30
    for run, _ in HEALTHY_RUNS:
        config_of(run)


# ---------------------------------------------------------------- rows


def test_terminations_are_bootstrapped():
    healthy, broken = segment_of(None), segment_of("termination_as_truncation")
    assert (healthy.steps.discount == 0).any()
    assert (broken.steps.discount == 1).all()
    assert broken.steps.mask.equal(healthy.steps.mask)


def test_truncations_are_not_bootstrapped():
    options = {"env": {"time_limit": 5}}
    healthy = segment_of(None, **options)
    broken = segment_of("truncation_as_termination", **options)
    ends = 1 - healthy.steps.mask[1:]
    assert (healthy.steps.discount[:-1] * ends).sum() > 0
    assert broken.steps.discount[:-1].equal(1 - ends)


def test_reward_signs_are_flipped_for_the_learner_only():
    making = backend_of("reward_sign", "ppo", "CartPole-v1", algo={"rollout_steps": 64})
    backend = next(making)
    segment = backend.actor.collect()
    list(making)
    assert segment.steps.reward.equal(-segment.steps.mask)
    assert all(score == length > 0 for score, length, *_ in backend.actor.episodes)


def test_rewards_come_one_step_late():
    actions = [0] * 30
    _, rewards, ends = played(None, "CartPole-v1", actions)
    _, late, late_ends = played("reward_delayed", "CartPole-v1", actions)
    assert late_ends == ends
    first_end = ends.index(True)
    assert rewards[: first_end + 1] == [1.0] * (first_end + 1)
    assert late[: first_end + 1] == [0.0] + [1.0] * first_end
    # The reset row pays nothing, and the next episode starts with 0 again.
    assert late[first_end + 1 : first_end + 4] == [0.0, 0.0, 1.0]


def test_observations_come_one_step_late():
    actions = [0] * 30
    name = "CartPole-v1"
    seen, rewards, ends = played(None, name, actions)
    late, late_rewards, late_ends = played("observation_delayed", name, actions)
    assert (late_rewards, late_ends) == (rewards, ends)
    end = ends.index(True)
    assert np.array_equal(late[0], seen[0])
    assert np.array_equal(late[1 : end + 2], seen[: end + 1])
    assert np.array_equal(late[end + 2], seen[end + 2])  # the next episode's first
    assert np.array_equal(late[end + 3], seen[end + 2])


def test_actions_are_ignored():
    left = played(None, "CartPole-v1", [0] * 20)
    other = played("action_ignored", "CartPole-v1", [1] * 20)
    assert np.array_equal(left[0], other[0])
    assert left[1:] == other[1:]


def test_rewards_are_a_thousand_times_larger():
    assert played("advantage_scale", "CartPole-v1", [0, 1])[1] == [1000.0, 1000.0]


def test_observations_are_divided_by_a_wrong_deviation():
    options = EnvOptions(normalize_obs=True)
    right = played(None, "CartPole-v1", [0, 1] * 10, options)[0]
    wrong = played("wrong_statistics", "CartPole-v1", [0, 1] * 10, options)[0]
    assert np.abs(right).max() > 0.5
    assert not np.allclose(right, wrong)


def test_ranks_have_the_seeds_of_the_first():
    assert seeds(1, 0, 0, 1) != seeds(1, 1, 0, 1)
    with FAULTS["equal_seeds"].plant():
        assert factory.seeds(1, 1, 0, 1) == seeds(1, 0, 0, 1) != seeds(2, 0, 0, 1)


# ---------------------------------------------------------------- weights


def test_the_target_stays():
    algo = {"algo": {**REPLAY, "target_period": 1}, "rounds": 24}
    assert changes(None, "dqn", "target", **algo)
    assert not changes("target_never_updated", "dqn", "target", **algo)


def test_the_policy_gets_no_gradient_and_the_value_does():
    algo = {"algo": {"rollout_steps": 16}}
    policy = {"policy_trunk", "head"}
    assert {name.split(".")[0] for name in changes(None, "ppo", **algo)} > policy
    parts = {name.split(".")[0] for name in changes("loss_detached", "ppo", **algo)}
    assert parts == {"value_trunk", "value_head"}


def test_the_head_is_frozen():
    found = changes("frozen_layer", "ppo", algo={"rollout_steps": 16})
    assert "value_head.weight" in found
    assert not any(name.startswith("head.") for name in found)


def test_units_are_dead():
    backend = trained("dead_units", "dqn", rounds=1)
    network = backend.learner.algorithm.network
    obs = torch.randn(64, 4)
    assert network(obs).std(0).max() == 0
    assert trained(None, "dqn", rounds=1).learner.algorithm.network(obs).std(0).min() > 0


def test_pixels_are_not_scaled():
    settings = {"net": {"encoder": "small", "image_features": 16}, "rounds": 0}
    scales = [
        trained(
            fault, "ppo", "planted/Catch-v0", **settings
        ).learner.algorithm.network.policy_trunk.encoder.image.scale
        for fault in (None, "pixels_not_scaled")
    ]
    assert scales == [pytest.approx(1 / 255), 1.0]


# ---------------------------------------------------------------- draws and weights of actors


@pytest.mark.parametrize(("fault", "equal"), [(None, False), ("importance_weights_dropped", True)])
def test_importance_weights_are_dropped(fault, equal):
    algo = {**REPLAY, "alpha": 0.6, "beta": 1.0}
    making = backend_of(fault, "dqn", "CartPole-v1", algo=algo)
    backend = next(making)
    for step in range(24):
        backend.advance(step)
    weight = backend.memory.sample().weight
    list(making)
    assert (weight == 1).all() == equal


def test_actors_keep_their_first_weights():
    backend = trained(None, "dqn", rounds=0)
    for fault, version in ((None, 2), ("stale_actors", 1)):
        with FAULTS[fault].plant() if fault else nullcontext():
            player = ActorWithWeights(backend.actor)
            size = player.flat.values.numel()
            player.load(1, torch.full((size,), 1.0))
            player.load(2, torch.full((size,), 2.0))
        assert player.version == version
        assert (player.flat.values == version).all()


# ---------------------------------------------------------------- environments


def returns_of(name, choose, episodes=200):
    """Return the mean return of a policy: a function from an environment to an action."""
    env = gymnasium.make(name)
    total = 0.0
    for episode in range(episodes):
        env.reset(seed=episode)
        ends = False
        while not ends:
            _, reward, terminated, truncated, _ = env.step(choose(env.unwrapped))
            total += float(reward)
            ends = terminated or truncated
    return total / episodes


def test_patience_pays_more_for_going_on():
    assert returns_of("planted/Patience-v0", lambda env: 0, 3) == pytest.approx(20 * 0.1)
    assert returns_of("planted/Patience-v0", lambda env: 1, 3) == pytest.approx(0.9)


def test_the_lottery_pays_less_than_the_sure_action():
    assert returns_of("planted/Lottery-v0", lambda env: 0, 10) == 16.0
    mean = returns_of("planted/Lottery-v0", lambda env: 1, 250)
    assert mean / 16 == pytest.approx(0.6, abs=0.15)  # 4 standard errors


def test_every_ball_can_be_caught():
    def follow(env):
        return 1 + np.sign(env.column - env.paddle)

    assert returns_of("planted/Catch-v0", follow, 50) == 1.0
