"""The checkpointer: decides when a checkpoint is due, writes it, and labels the best one."""

from __future__ import annotations

from rookery.backends.base import CheckpointState
from rookery.config import RunConfig
from rookery.runs import checkpoint
from rookery.runs.run import Run
from rookery.training.reporter import Progress, Reporter


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
        self.run, self.progress, self.reporter = run, progress, reporter
        self.keep = config.keep_checkpoints
        self.every = config.checkpoint_steps or max(1, config.env_steps // 10)
        self.saved_at: int | None = None
        """Step of the last checkpoint that this process wrote."""
        self.best: tuple[int, float] | None = saved.meta.get("best") if saved else None
        """Step and mean return of the best evaluation."""

    def is_due(self, before: int) -> bool:
        """True if the steps since `before` pass a multiple of checkpoint_steps."""
        return passes_multiple(self.every, before, self.progress.env_steps)

    def save(self, state: CheckpointState | None) -> None:
        """Write a checkpoint, after the report that belongs to it. Ranks other than the first have
        no `state` and write nothing."""
        if self.run is not None and state is not None:
            self.reporter.flush()
        self.saved_at = step = self.progress.env_steps
        if self.run is None or state is None:
            return
        folder = self.run.checkpoints
        path = checkpoint.save_checkpoint(
            folder,
            step,
            state.tensors,
            self.progress.state() | state.counts | {"best": self.best},
            keep=self.keep,
            protect=() if self.best is None else (self.best[0],),
        )
        checkpoint.label_checkpoint(folder, "last", step)
        if self.best is not None and self.best[0] == step:
            checkpoint.label_checkpoint(folder, "best", step)
        self.run.log(f"checkpoint {path.name}")
        for callback in self.reporter.callbacks:
            callback.on_checkpoint(path)

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

    def rewind(self, saved: checkpoint.Checkpoint) -> None:
        """Note that the run continues from an earlier checkpoint."""
        self.saved_at, self.best = saved.step, saved.meta.get("best")


def passes_multiple(every: int | None, before: int, now: int) -> bool:
    """True if the steps from `before` to `now` pass a multiple of `every`."""
    return every is not None and now // every > before // every
