"""Training on served environments: it learns, and bears the loss of a server."""

from __future__ import annotations

import io
import threading
import time

import pytest
from served import Server, serving

import rookery
from rookery.runs.run import Run


def wait_for(true, limit_s=60.0):
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.long
def test_ppo_solves_cartpole_through_the_socket(tmp_path):
    with serving("CartPole-v1", "--envs", "64", program="rookery serve") as server:
        run = rookery.train(
            *("ppo", server.address),
            runs_dir=tmp_path,
            preset="CartPole-v1",
            env_steps=300_000,
            stop_return=475,
            seed=1,
            console=io.StringIO(),
        )
        assert run.result["episode_return_mean"] >= 475
        assert run.evaluate(20)["return_mean"] >= 475


def test_training_goes_on_without_a_killed_server_and_takes_it_back(tmp_path):
    second = Server("CartPole-v1")
    try:
        with serving("CartPole-v1") as first:
            ended = []

            def train():
                ended.append(
                    rookery.train(
                        *("ppo", f"{first.address},{second.address}"),
                        runs_dir=tmp_path,
                        name="run",
                        envs=4,
                        env_steps=10_000_000,
                        console=io.StringIO(),
                    )
                )

            thread = threading.Thread(target=train, daemon=True)
            thread.start()
            log = tmp_path / "run" / "log.txt"
            progress = tmp_path / "run" / "progress.csv"
            wait_for(lambda: progress.exists() and progress.read_text().count("\n") > 1)
            second.kill()
            wait_for(lambda: f"{second.address} cannot be reached" in log.read_text())
            reports = progress.read_text().count("\n")
            wait_for(lambda: progress.read_text().count("\n") > reports + 1)
            second = Server("CartPole-v1", port=second.port)
            wait_for(lambda: f"{second.address} is back" in log.read_text())
            Run.open(tmp_path / "run").stop_path.touch()
            thread.join(30)
            assert ended[0].result["status"] == "interrupted"
            assert log.read_text().count("cannot be reached") == 1
    finally:
        second.stop()
