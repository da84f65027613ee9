"""The command `rookery export`: complete files, verified before they are kept."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest
import torch

import rookery
import rookery.export.formats as formats
import rookery.export.step as step_module
from rookery.cli.main import main
from rookery.export.verify import with_raw_recorder

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A briefly trained policy with normalized, stacked observations."""
    return rookery.train(
        *("ppo", "CartPole-v1"),
        runs_dir=tmp_path_factory.mktemp("runs"),
        env_steps=1_500,
        envs=4,
        threads=1,
        use_preset=False,
        algo={"rollout_steps": 64, "learning_rate": 3e-3},
        net={"hidden": [16]},
        env={"normalize_obs": True, "frame_stack": 2},
    )


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("exported") / "deep" / "cartpole"
    assert main(["export", str(run.path), "--format", "onnx", "--out", str(out)]) == 0
    return out


class Client:
    """A client that uses ONNX Runtime and policy.json, and nothing of Rookery."""

    def __init__(self, folder, lanes):
        self.description = json.loads((folder / "policy.json").read_text())
        self.session = onnxruntime.InferenceSession(folder / self.description["files"]["onnx"])
        self.states = [port for port in self.description["inputs"] if port["role"] == "state"]
        self.kept = {
            port["name"]: np.zeros([lanes, *port["shape"][1:]], port["dtype"])
            for port in self.states
        }

    def act(self, obs, reward, first):
        given = {"obs": obs, "reward": np.asarray(reward, float), "first": np.asarray(first)}
        names = [port["name"] for port in self.description["outputs"]]
        made = dict(zip(names, self.session.run(names, given | self.kept), strict=True))
        self.kept = {port["name"]: made[port["next"]] for port in self.states}
        return made["action"]


def test_client_with_only_onnxruntime_and_policy_json_acts_like_the_live_policy(run, exported):
    """Three episodes; the live policy gets the same observations through the wrappers."""
    client, policy = Client(exported, lanes=1), run.policy
    env, tap = with_raw_recorder(run.make_env(1))
    obs, _ = env.reset(seed=5)
    state, first, played = (), True, 0
    while played < 3:
        state = policy.begin(1) if first else state
        wanted, state = policy.decide(obs, np.zeros(1), state)
        assert client.act(tap.obs[0], tap.reward, [first]) == wanted
        obs, _, terminated, truncated, _ = env.step(wanted)
        first = bool(terminated[0] or truncated[0])
        if first:
            obs, *_ = env.step(wanted)
            played += 1
    env.close()


def test_policy_json_describes_the_policy(run, exported):
    described = json.loads((exported / "policy.json").read_text())
    assert sorted(path.name for path in exported.iterdir()) == ["policy.json", "policy.onnx"]
    assert described["files"] == {"onnx": "policy.onnx"}
    assert described["algorithm"] == "ppo"
    assert described["env_steps"] == run.result["env_steps"]
    environment = described["environment"]
    assert environment["name"] == "CartPole-v1"
    assert environment["action"]["n"] == 2
    assert environment["observation"]["high"][1] is None
    assert environment["inside"]["frame_stack"] == 2
    assert "frame_stack" not in environment["options"]
    inputs = {port["name"]: port for port in described["inputs"]}
    assert list(inputs) == ["obs", "reward", "first", "frames"]
    assert inputs["frames"]["shape"] == ["batch", 1, 4]
    outputs = [port["name"] for port in described["outputs"]]
    assert outputs[:3] == ["action", "logits", "value"]
    assert [port["next"] for port in described["inputs"][3:]] == outputs[3:]
    verified = described["verified"]
    assert verified["env_steps"] >= 1_000
    assert verified["batch_sizes"] == [7, 1]
    differences = verified["largest_differences"]["onnx"]
    assert differences["action"] == 0
    assert 0 < differences["logits"] < 1e-5


@pytest.fixture
def without_onnx(run, monkeypatch):
    """Exports that write an empty file, and run the step in Python instead."""
    monkeypatch.setattr(formats.Onnx, "write", lambda self, program, interface, path: path.touch())
    monkeypatch.setattr(formats.Onnx, "load", lambda self, path: eager(run))


def eager(run):
    """Return a function that runs the step like an exported file."""
    env = run.make_env(1)
    step = step_module.Step(run.policy.algorithm, env)
    env.close()

    def call(inputs):
        obs, reward, first, *state = map(torch.from_numpy, inputs)
        with torch.no_grad():
            return [x.numpy() for x in step((obs,), reward, first, tuple(state))]

    return call


def test_wrong_export_is_refused_and_changes_no_file(
    run, exported, without_onnx, monkeypatch, capsys
):
    before = {path: path.read_bytes() for path in exported.iterdir()}
    monkeypatch.setattr(step_module, "EPSILON", 0.01)  # added to the variances
    for out in (exported, exported.parent / "fresh" / "deep"):
        assert main(["export", str(run.path), "--format", "onnx", "--out", str(out)]) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "of the exported policy differs from the live one by" in error
    assert {path: path.read_bytes() for path in exported.iterdir()} == before
    assert [path.name for path in exported.parent.iterdir()] == [exported.name]


def test_export_goes_to_the_run_folder_and_replaces_an_earlier_one(run, without_onnx, capsys):
    """Files of an earlier export are removed, other files are kept."""
    folder = run.path / "export"
    folder.mkdir()
    (folder / "policy.pt2").write_text("of an earlier export")
    (folder / "notes.txt").write_text("mine")
    assert main(["export", str(run.path), "--format", "onnx", "--json", "--envs", "2"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["verified"]["batch_sizes"] == [2, 1]
    assert sorted(p.name for p in folder.iterdir()) == ["notes.txt", "policy.json", "policy.onnx"]
    assert json.loads((folder / "policy.json").read_text()) == described


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected one run folder"),
        (["--format", "onx"], 'format: unknown format "onx". Did you mean "onnx"?'),
        (["--format", ""], "format"),
        (["--envs", "0"], "envs must be at least 1, got 0"),
        (["--checkpoint", "best"], "the run has none labelled best"),
        (["--checkpoint", "12"], "12"),
        (["--out", "/dev/null/there"], "/dev/null"),
    ],
)
def test_bad_input_is_one_line(arguments, message, run, capsys):
    path = [str(run.path)] if arguments else []
    given = [] if "--format" in arguments else ["--format", "onnx"]
    assert main(["export", *path, *given, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


def test_missing_extra_and_missing_compiler_are_named(run, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *_: None if name == "onnxscript" else find(name)
    )
    assert main(["export", str(run.path)]) == 2
    assert "pip install 'rookery[export]'" in capsys.readouterr().err
    import torch._inductor.cpp_builder as builder
    from torch._inductor.exc import InvalidCxxCompiler

    def none():
        raise InvalidCxxCompiler

    monkeypatch.setattr(builder, "get_cpp_compiler", none)
    assert main(["export", str(run.path), "--format", "libtorch"]) == 2
    assert "install g++ or name one in CXX, or use --format onnx only" in (capsys.readouterr().err)
