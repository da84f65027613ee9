"""The checkpointer: decides when a checkpoint is due, writes it, and labels the best one."""

from __future__ import annotations

from typing import Any

from rookery.backends.base import CheckpointState
from rookery.config import RunConfig
from rookery.runs import checkpoint
from rookery.runs.run import Run
from rookery.training.progress import Progress
from rookery.training.reporter import Reporter


class Checkpointer:
    """Writes checkpoints on rank 0."""

    def __init__(
        self,
        run: Run | None,
        config: RunConfig,
        progress: Progress,
        reporter: Reporter,
        saved: checkpoint.Checkpoint | None,
    ):
        self.run = run
        self.keep = config.keep_checkpoints
        self.every = config.checkpoint_steps or max(1, config.env_steps // 10)
        self.progress = progress
        self.reporter = reporter
        self.saved_at: int | None = None
        """Step of the last checkpoint that this process wrote."""
        self.best: tuple[int, float] | None = saved.meta.get("best") if saved else None
        """Step and mean return of the best evaluation."""

    def due(self, before: int) -> bool:
        """True if the steps since `before` pass a multiple of checkpoint_steps."""
        return self.progress.env_steps // self.every > before // self.every

    def save(self, state: CheckpointState | None) -> None:
        """Write a checkpoint, after the report that belongs to it. Ranks other than the first have
        no `state` and write nothing."""
        self.saved_at = step = self.progress.env_steps
        if self.run is None or state is None:
            return
        self.reporter.flush()
        meta: dict[str, Any] = self.progress.state() | state.counts | {"best": self.best}
        path = checkpoint.save_checkpoint(
            self.run.checkpoints,
            step,
            state.tensors,
            meta,
            keep=self.keep,
            protect=() if self.best is None else (self.best[0],),
        )
        checkpoint.label_checkpoint(self.run.checkpoints, "last", step)
        if self.best is not None and self.best[0] == step:
            checkpoint.label_checkpoint(self.run.checkpoints, "best", step)
        self.reporter.log(f"checkpoint {path.name}")
        self.reporter.callbacks.on_checkpoint(path)

    def add_scores(self, scores: dict[str, float]) -> None:
        """Add an evaluation's scores to the next report, and remember the best."""
        step, mean = self.progress.env_steps, scores["eval_return_mean"]
        self.reporter.scores = scores
        if self.best is None or mean > self.best[1]:
            self.best = step, mean
        self.reporter.announce(
            f"evaluation at step {step:,}: mean return {mean:.1f} over"
            f" {scores['eval_episodes']} episodes, epsilon {scores['eval_epsilon']:g}"
            + ("  (best so far)" if self.best == (step, mean) else "")
        )

    def newest(self) -> checkpoint.Checkpoint:
        """Return the newest complete checkpoint of this run."""
        assert self.run is not None
        return checkpoint.load_newest(self.run.checkpoints)

    def rewind(self, saved: checkpoint.Checkpoint) -> None:
        """Note that the run continues from an earlier checkpoint."""
        self.saved_at = saved.step
        self.best = saved.meta.get("best")
