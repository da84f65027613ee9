"""Callbacks get histograms and watched layers from a learner on another process."""

import io

import rookery


class Watching(rookery.Callback):
    watch = ("head.linear",)

    def __init__(self):
        self.records = []

    def on_layers(self, records):
        self.records.append(records)


def test_layers_of_a_learner_on_ray_reach_callbacks(joined_cluster, tmp_path):
    kept = Watching()
    rookery.train(
        "ppo", "CartPole-v1", runs_dir=tmp_path, callbacks=[kept], console=io.StringIO(),
        backend="ray", actors=1, envs=4, threads=1, env_steps=2_000, use_preset=False,
        histograms=4, algo={"rollout_steps": 32},
    )  # fmt: skip
    assert any("weights/head.linear.weight" in each.histograms for each in kept.records)
    layers = [each.tensors["head.linear"] for each in kept.records if each.tensors]
    assert layers
    assert layers[-1].output.shape == layers[-1].output_gradient.shape
    assert set(layers[-1].gradients) == {"weight", "bias"}
