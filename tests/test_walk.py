"""The walk from the command to backward(), as CONTRIBUTING tells it, is the real one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

import rookery
from rookery.cli.main import main

PACKAGE = Path(rookery.__file__).parent
SMALL = ["--env-steps", "600", "--threads", "1"]


@pytest.fixture
def stacks(monkeypatch):
    """Our own frames above every call of backward(), outermost first: "file, function"."""
    found: list[list[str]] = []
    backward = torch.Tensor.backward

    def spied(tensor, *given, **named):
        frame, stack = sys._getframe(1), []
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(str(PACKAGE)):
                path = Path(code.co_filename).relative_to(PACKAGE.parent)
                stack.insert(0, f"{path}, {code.co_qualname}")
            frame = frame.f_back
        found.append(stack)
        return backward(tensor, *given, **named)

    monkeypatch.setattr(torch.Tensor, "backward", spied)
    return found


def told_walk() -> list[str]:
    """The numbered list in CONTRIBUTING: "file, function"."""
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    section = text.partition("## From the command to `loss.backward()`")[2].partition("\n## ")[0]
    return [f"{a}, {b}" for a, b in re.findall(r"^\d\. `([^`]+)`, `([^`]+)`", section, re.M)]


def test_contributing_tells_the_walk_from_the_command_to_backward(stacks, tmp_path, capsys):
    command = ["train", "ppo", "CartPole-v1", "--runs-dir", str(tmp_path), *SMALL]
    assert main([*command, "--learner.trace", "false"]) == 0
    assert stacks
    assert all(stack == told_walk() for stack in stacks)


def test_a_traced_run_adds_at_most_one_frame(stacks, tmp_path, capsys):
    assert main(["train", "ppo", "CartPole-v1", "--runs-dir", str(tmp_path), *SMALL]) == 0
    assert stacks
    for stack in stacks:
        assert len(stack) <= 9
        assert [frame for frame in stack if "/tracing/" not in frame] == told_walk()


def test_apex_on_threads_is_at_most_eleven_frames_deep(stacks, tmp_path, capsys):
    small = {"capacity": "2000", "warm_up": "100", "rollout_steps": "4", "batch_size": "16"}
    settings = [word for name, value in small.items() for word in (f"--algo.{name}", value)]
    command = ["train", "apex", "CartPole-v1", "--runs-dir", str(tmp_path), *SMALL, "--no-preset"]
    assert main([*command, "--backend", "threads", "--actors", "2", "--envs", "4", *settings]) == 0
    assert stacks
    assert all(0 < len(stack) <= 11 for stack in stacks)
