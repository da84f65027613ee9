"""The exported step decides like the live policy, for any batch size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from anything import policy_and_env, register_anything
from gymnasium import spaces

import rookery.export.step as step_module
import rookery.export.verify as verify
from rookery.envs.factory import learning_wrappers
from rookery.errors import BadInput, RookeryError
from rookery.export.export import trace_step
from rookery.export.step import Step, described_space, interface_of
from rookery.export.verify import batch_sizes, compare_with_recording, difference, order, record

KINDS = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (3, 36, 40), np.uint8),
        "codes": spaces.MultiDiscrete([3, 90], start=[0, -40]),
        "bits": spaces.MultiBinary((2, 2)),
        "pair": spaces.Tuple([spaces.Discrete(5), spaces.Box(-1, 1, (2,), np.float64)]),
        "short": spaces.Box(-9, 9, (2,), np.int16),
        "flag": spaces.Box(0, 1, (), bool),
    }
)
NUMBERS = spaces.Box(-3, 3, (4,), np.float32)
LEGAL = spaces.Dict(seen=NUMBERS, action_mask=spaces.MultiBinary(3))
ACTIONS = {
    "discrete": spaces.Discrete(3, start=2),
    "multi-discrete": spaces.MultiDiscrete([[3, 4]], start=[[1, 5]]),
    "multi-binary": spaces.MultiBinary((2, 2)),
    "box": spaces.Box(np.array([[-2.0, -np.inf]]), np.array([[3.0, np.inf]]), (1, 2), np.float64),
}
BOTH = {"normalize_obs": True, "normalize_reward": True, "frame_stack": 3}
SMALL = {"image_features": 8, "core_size": 8, "hidden": [8]}
CASES = {
    "ppo": ("ppo", "discrete", NUMBERS, {}, {}, {}),
    "ppo-every-kind": ("ppo", "multi-discrete", KINDS, {}, BOTH, {}),
    "ppo-lstm": ("ppo", "multi-binary", NUMBERS, {}, BOTH, {"core": "lstm"}),
    "ppo-gru-shared": ("ppo", "box", KINDS, {}, {}, {"core": "gru", "shared": True}),
    "vpg-without-critic": ("vpg", "box", NUMBERS, {"baseline": "mean"}, {}, {}),
    "rainbow": (
        *("dqn", "discrete", NUMBERS),
        *({"noisy": True, "atoms": 11, "dueling": True}, BOTH, {}),
    ),
    "apex": ("apex", "discrete", KINDS, {}, {"frame_stack": 2}, {}),
    "r2d2": ("r2d2", "discrete", NUMBERS, {}, {"clip_reward": True}, {}),
    "r2d2-gru": ("r2d2", "discrete", NUMBERS, {}, BOTH, {"core": "gru"}),
    "ppo-legal": ("ppo", "discrete", LEGAL, {}, {}, {}),
    "dqn-legal": ("dqn", "discrete", LEGAL, {}, BOTH, {}),
    "r2d2-legal": ("r2d2", "discrete", LEGAL, {}, {}, {}),
}


TRACED = ("ppo-every-kind", "rainbow", "r2d2-gru")
"""Cases traced here; test_export_formats.py traces the others."""


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Fewer steps, because a graph run in Python is slow."""
    monkeypatch.setattr(verify, "STEPS", 280)


def make_case(case, lanes=7):
    algorithm, action, obs, algo, env, net = CASES[case]
    register_anything("anything", obs, ACTIONS[action])
    return policy_and_env(algorithm, "anything", lanes, algo=algo, env=env, net=SMALL | net)


def run_of(step, trace):
    """Return a function that runs a step, or its traced graph, like an exported file."""
    module = trace_step(step).module() if trace else step

    def run(inputs):
        tensors = [torch.from_numpy(x) for x in inputs]
        obs = len(step.leaves)
        arguments = (
            tuple(tensors[:obs]),
            tensors[obs],
            tensors[obs + 1],
            tuple(tensors[obs + 2 :]),
        )
        with torch.no_grad():
            return [x.numpy() for x in module(*arguments)]

    return run


def verified(policy, env, trace=False):
    """Return the recording, and the differences from the live policy for each batch size."""
    step = Step(policy.algorithm, env)
    interface = interface_of(step)
    recording = record(policy, env, seed=3)
    env.close()
    run = run_of(step, trace)
    return recording, [
        compare_with_recording(run, interface, recording, n) for n in batch_sizes(recording)
    ]


@pytest.mark.parametrize("case", CASES)
def test_step_decides_like_the_live_policy(case):
    policy, env = make_case(case)
    recording, found = verified(policy, env, trace=case in TRACED)
    assert recording.reward.shape == (40, 7)
    assert recording.first[1:].sum() > 7, "some episodes started while others continued"
    assert len(np.unique(recording.answers["action"])) > 1, "more than one action was chosen"
    for furthest in found:
        assert max(furthest.values()) < 1e-5


def test_recording_of_one_environment_is_also_checked_in_a_larger_batch():
    policy, env = make_case("r2d2", lanes=1)
    recording, found = verified(policy, env)
    assert batch_sizes(recording) == [1, 7]
    assert recording.reward.shape == (280, 1)
    assert max(max(furthest.values()) for furthest in found) < 1e-5


@pytest.mark.parametrize(
    ("case", "broken"), [("r2d2", "q|action"), ("ppo-lstm", "logits|value|action")]
)
def test_verification_fails_if_state_is_not_reset(case, broken, monkeypatch):
    monkeypatch.setattr(step_module, "zero_where", lambda x, first: x)
    with pytest.raises(RookeryError, match=broken):
        verified(*make_case(case))


def test_verification_fails_if_one_entry_resets_another(monkeypatch):
    monkeypatch.setattr(step_module, "zero_where", lambda x, first: x * (~first.any()).to(x.dtype))
    with pytest.raises(RookeryError, match="differs from the live one"):
        verified(*make_case("ppo-lstm"))


def test_unknown_wrapper_is_refused():
    policy, env = make_case("ppo-lstm")
    learning_wrappers(env)[1][0].__class__ = type("Rotate", (type(env).__mro__[1],), {})
    with pytest.raises(BadInput, match="Rotate"):
        Step(policy.algorithm, env)
    env.close()


def test_normalization_equals_the_wrapper_bit_for_bit():
    policy, env = make_case("ppo-lstm")
    step = Step(policy.algorithm, env)
    layer = env.env
    values = np.random.default_rng(0).normal(0, 30, (50, 4)).astype(np.float32)
    scaled = step.leaves[0].scale(torch.from_numpy(values)).numpy()
    assert scaled.dtype == np.float32
    assert (scaled == layer.normalized(values)).all()
    assert np.abs(scaled).max() == 10


@pytest.mark.parametrize(("rows", "batch"), [(143, 7), (12, 3), (4, 9), (1, 1)])
def test_every_batch_entry_sees_all_rows_after_its_own_restart(rows, batch):
    shown = order(rows, batch)
    for lane in range(batch):
        seen = shown[:, lane].tolist()
        start = next(i for i in range(len(seen)) if seen[i : i + rows] == list(range(rows)))
        assert start == 5 * (1 + lane) % rows
        assert seen[:start] == list(range(start))
    assert shown[0].tolist() == [0] * batch


def test_difference_is_infinite_for_nan_and_other_types_and_shapes():
    want = np.array([1.0, -2.0], np.float32)
    assert difference(want, want) == 0
    assert difference(want + np.float32(0.5), want) == 0.5
    assert difference(np.array([1.0, np.nan], np.float32), want) == np.inf
    assert difference(want.astype(np.float64), want) == np.inf
    assert difference(want[:1], want) == np.inf
    assert difference(np.array([3]), np.array([1])) == 2


def test_described_spaces_match_the_protocol():
    described = described_space(KINDS)
    assert described["keys"] == list(KINDS.spaces)
    parts = dict(zip(described["keys"], described["parts"], strict=True))
    assert parts["codes"] == {
        "type": "MultiDiscrete",
        "dtype": "<i8",
        "shape": [2],
        "nvec": [3, 90],
        "start": [0, -40],
    }
    assert [part["type"] for part in parts["pair"]["parts"]] == ["Discrete", "Box"]
    assert parts["flag"] == {"type": "Box", "dtype": "|b1", "shape": [], "low": False, "high": True}
    assert described_space(ACTIONS["box"])["low"] == [[-2.0, -np.inf]]
    assert (parts["image"]["low"], parts["image"]["high"]) == (0, 255)
    assert parts["bits"] == {"type": "MultiBinary", "dtype": "|i1", "shape": [2, 2]}
