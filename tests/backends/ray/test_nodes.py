"""Nodes of a Ray cluster die and join while runs go on."""

import re

import pytest
from ray_runs import cluster_of
from test_faults import APEX, PPO, column


@pytest.fixture(scope="module")
def nodes():
    with cluster_of(1, 2, 2, resources={"brain": 1}) as cluster:
        yield cluster


def kill_node_of(cluster, run, worker):
    """SIGKILL everything on the node where a worker is, and give its id."""
    run.until(lambda r: (r.run / "status.txt").exists())
    line = next(
        x for x in (run.run / "status.txt").read_text().splitlines() if x.startswith(worker)
    )
    (node,) = [n for n in cluster.list_all_nodes() if n.node_id.startswith(node_in(line))]
    cluster.remove_node(node, allow_graceful=False)


def node_in(line):
    """The beginning of a node's id, in a line of a status table."""
    words = line.split()
    return words[words.index("pid") - 1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "left"),
    [pytest.param(PPO, 3, id="ppo"), pytest.param(APEX, 2, id="apex")],
)
def test_a_run_outlives_a_node_and_uses_one_that_joins(nodes, command, settings, left):
    """The learner goes to the head, which has the resource and one CPU; one of two other nodes is
    killed, and later another joins."""
    run = command(
        *settings, *("--actors", 4, "--env-steps", 10**7, "--ray.status_seconds", 0.5),
        *("--ray.learner_resource", "brain"), address=nodes.address,
    )  # fmt: skip
    run.until(lambda r: len(r.rows()) > 3)
    kill_node_of(nodes, run, "actor 3")
    run.until(lambda r: re.search("actor 3 on .* was lost: it", r.log()))
    run.until(lambda r: column(r, "actors_healthy")[-1] == left)
    steps = column(run, "env_steps")[-1]
    run.until(lambda r: column(r, "env_steps")[-1] > steps + 200)
    nodes.add_node(num_cpus=2)
    run.until(lambda r: column(r, "actors_healthy")[-1] == 4)
    run.stop()
    assert column(run, "env_steps") == sorted(column(run, "env_steps"))


@pytest.mark.long
@pytest.mark.parametrize("settings", [PPO, APEX], ids=["ppo", "apex"])
def test_actors_follow_the_cluster(nodes, command, settings):
    run = command(*settings, "--actors", "auto", "--env-steps", 10**7, address=nodes.address)
    run.until(lambda r: len(r.rows()) > 2)
    before = int(column(run, "actors_healthy")[-1])
    node = nodes.add_node(num_cpus=2)
    run.until(lambda r: column(r, "actors_healthy")[-1] == before + 2)
    if settings is APEX:
        actors = before + 2
        assert f"restarting the replay shards with room for {actors} actors" in run.log()
        run.until(lambda r: column(r, "replay_fill")[-1] > 0.1)
    nodes.remove_node(node, allow_graceful=False)
    run.until(lambda r: "leaves: the cluster has" in r.log())
    run.until(lambda r: column(r, "actors_healthy")[-1] == before)
    run.stop()
