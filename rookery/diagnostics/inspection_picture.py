"""The picture of `rookery inspect`: raw frames beside what the network gets, over several steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rookery.algorithms.base import Spaces
from rookery.data.tree import tree_map
from rookery.diagnostics.inspection_plays import Tap, tapped
from rookery.envs import EnvOptions, make_env, plays_atari
from rookery.envs.spaces import Array, Path, dotted, part_at, space_leaves, value_range
from rookery.envs.wrappers.observation_record import ObservationRecord
from rookery.errors import BadInput, RunFailed
from rookery.learning.policy import RandomPolicy
from rookery.reports.figures import require_matplotlib, save_figure
from rookery.runs.files import writing

VIEWED_ROWS = 300
"""Rows of a view, for ranges and histograms."""
SHOWN_ROWS = (0, 2, 20, 80)
"""Rows that are drawn."""
MOST_CHANNELS = 12
MOST_PARTS = 6
NAMED_COMPONENTS_DRAWN = 40
"""Vectors of more components are drawn as curves over the component's number."""
NUMBERS = 12
"""Components of a raw observation that are written out where there is no frame."""
COLOURS = {"range": "#9ec1f0", "middle": "#3b7dd8", "mean": "#1d3557", "space": "#b24c63"}


@dataclass(frozen=True)
class EnvView:
    """Rows of one environment, with frames where it can be rendered."""

    title: str
    raw_space: Space[Any]
    raw: dict[Path, Array]
    """Leaves of the environment's observations, [T, ...]."""
    seen_space: Space[Any]
    seen: dict[Path, Array]
    """Leaves of the network's observations, [T, ...]."""
    frames: dict[int, Array]
    """Rendered frames [H, W, 3] by row; empty if there are none."""
    no_frames: str | None = None
    """Why there are no frames."""

    @property
    def rows(self) -> list[int]:
        """Rows to draw."""
        count = len(next(iter(self.seen.values())))
        return [row for row in SHOWN_ROWS if row < count]


def view_env(name: str, options: EnvOptions, seed: int, rows: int = VIEWED_ROWS) -> EnvView:
    """Play one environment with random actions and return what it showed."""
    env, no_frames = render_env(name, options)
    tap = tapped(env)
    policy = RandomPolicy(Spaces(env.single_observation_space, env.single_action_space), seed)
    seen: list[Any] = []
    frames: dict[int, Array] = {}
    try:
        obs, _ = env.reset(seed=seed)
        for row in range(rows):
            seen.append(tree_map(np.array, obs))
            if no_frames is None and row in SHOWN_ROWS:
                frame, no_frames = frame_of(env)
                frames |= {} if frame is None else {row: frame}
            action, _ = policy.decide(obs, np.zeros(1), 1)
            obs, *_ = env.step(action)
    finally:
        env.close()
    return EnvView(
        title=name,
        raw_space=tap.single_observation_space,
        raw=raw_rows(tap, rows),
        seen_space=env.single_observation_space,
        seen={
            path: np.array([part_at(each, path)[0] for each in seen])
            for path, _ in space_leaves(env.single_observation_space)
        },
        frames={} if no_frames else frames,
        no_frames=no_frames,
    )


def raw_rows(tap: Tap, rows: int) -> dict[Path, Array]:
    """Return the observations of lane 0 that a Tap has kept."""
    return {path: np.array([r[i][0] for r in tap.obs[:rows]]) for i, path in enumerate(tap.leaves)}


def render_env(name: str, options: EnvOptions) -> tuple[Any, str | None]:
    """Return one environment that renders frames, or one that does not and the reason."""
    plain = make_env(name, options)
    modes = plain.metadata.get("render_modes") or ()
    if "rgb_array" not in modes and not plays_atari(name):
        return plain, f'its render_modes {list(modes)} have no "rgb_array"'
    try:
        env = make_env(name, options, render_mode="rgb_array")
    except Exception as error:
        return plain, " ".join(str(error).split())
    plain.close()
    return env, None


def frame_of(env: Any) -> tuple[Array | None, str | None]:
    """Return the frame of the first environment, or the reason why there is none."""
    try:
        frame = env.render()
        frame = frame[0] if isinstance(frame, tuple | list) else frame
        frame = np.asarray(frame)
    except Exception as error:
        return None, f"render() raised {type(error).__name__}: {' '.join(str(error).split())}"
    if frame.ndim == 4:
        frame = frame[0]
    if frame.ndim != 3 or frame.dtype != np.uint8:
        return None, "render() returned no image [H, W, 3]"
    return frame, None


def drawn_as_image(leaf: Space[Any]) -> bool:
    """True if a leaf is drawn as pictures."""
    shape = leaf.shape or ()
    return isinstance(leaf, spaces.Box) and len(shape) >= 2 and min(sorted(shape)[-2:]) >= 8


def channels(value: Array) -> list[tuple[str, Array]]:
    """Return the channels [H, W] of one image or stack, each with its name."""
    if value.ndim == 2:
        return [("0", value)]
    if value.ndim == 3 and value.shape[-1] <= 4 < min(value.shape[:2]):
        names = "RGB" if value.shape[-1] == 3 else "0123"
        return [(names[i], value[..., i]) for i in range(value.shape[-1])]
    return [
        (f"{i}" if part.ndim == 2 else f"{i} {name}", channel)
        for i, part in enumerate(value)
        for name, channel in channels(part)
    ]


def draw_env(name: str, options: EnvOptions, seed: int, picture: FilePath) -> list[str]:
    """Write the picture of an environment; return lines that say where it is, or why it is not."""
    try:
        require_matplotlib("picture:")
    except BadInput as error:
        return [str(error)]
    try:
        view = view_env(name, options, seed)
    except RunFailed as error:
        return [f"picture: none, since {error}"]
    draw_view(view, picture)
    lines = [f"picture: {picture}"]
    if view.no_frames:
        lines.insert(0, f"cannot be rendered, numbers instead of frames: {view.no_frames}")
    return lines


def draw_record(record: ObservationRecord, title: str, picture: FilePath) -> None:
    """Write the picture of observations that were recorded without frames."""
    with writing(picture):
        picture.parent.mkdir(parents=True, exist_ok=True)
    draw_view(EnvView(title, *record, frames={}), picture)


def draw_view(view: EnvView, picture: FilePath) -> None:
    """Write the picture of a view."""
    from matplotlib.figure import Figure

    parts = list(space_leaves(view.seen_space))[:MOST_PARTS]
    images = any(drawn_as_image(leaf) for _, leaf in parts)
    heights = [part_height(view, path, leaf) for path, leaf in parts]
    top = [] if images else [2.6 if view.frames else 0.8 + 0.14 * len(raw_text(view, 0))]
    figure = Figure(figsize=(13, 0.7 + sum(top) + sum(heights)))
    # Legends below the axes of vectors reach over the default padding.
    figure.set_layout_engine("constrained", h_pad=0.04 if images else 0.12)
    figure.suptitle(picture_title(view))
    grid: Any = figure.subfigures(len(top) + len(parts), 1, height_ratios=[*top, *heights])
    sections = np.atleast_1d(grid)
    if top:
        draw_frames(sections[0], view)
    for section, (path, leaf) in zip(sections[len(top) :], parts, strict=True):
        name = dotted(path) or "observation"
        if drawn_as_image(leaf):
            draw_image(section, view, path, name)
        elif isinstance(leaf, spaces.Box):
            draw_vector(section, view, path, leaf, name)
        else:
            draw_counts(section, view.seen[path], name)
    save_figure(figure, picture)


def picture_title(view: EnvView) -> str:
    """Return the title of a picture."""
    count = len(next(iter(view.seen.values())))
    text = f"{view.title}: what the network gets, {count} rows of one environment"
    return text + (f"\ncannot be rendered: {view.no_frames}" if view.no_frames else "")


def part_height(view: EnvView, path: Path, leaf: Space[Any]) -> float:
    """Return the height of a part's section in inches."""
    if drawn_as_image(leaf):
        return 1.9 * len(view.rows)
    size = math.prod(leaf.shape or ())
    if isinstance(leaf, spaces.Box) and size <= NAMED_COMPONENTS_DRAWN:
        return 2.6 + 0.16 * size
    return 3.0


def draw_frames(section: Any, view: EnvView) -> None:
    """Draw the raw frames in a row, or the numbers of the raw observations."""
    for axes, row in zip(
        np.atleast_1d(section.subplots(1, len(view.rows))), view.rows, strict=True
    ):
        axes.set_axis_off()
        axes.set_title(f"row {row}", fontsize=9)
        draw_raw(axes, view, row)


def draw_raw(axes: Any, view: EnvView, row: int) -> None:
    """Draw the frame of a row; without frames the first image of the raw observation, or its
    numbers."""
    if row in view.frames:
        axes.imshow(view.frames[row])
        return
    for path, rows in view.raw.items():
        if drawn_as_image(part_at(view.raw_space, path)):
            coloured = rows.ndim == 4 and rows.shape[-1] == 3 and rows.dtype == np.uint8
            axes.imshow(rows[row] if coloured else channels(rows[row])[-1][1], cmap="gray")
            return
    lines = raw_text(view, row)
    axes.text(0.5, 0.5, "\n".join(lines), ha="center", va="center", family="monospace", fontsize=8)


def raw_text(view: EnvView, row: int) -> list[str]:
    """Return lines with the numbers of a raw observation, at most 14."""
    lines: list[str] = []
    for path, rows in view.raw.items():
        values = np.ravel(rows[row])
        numbers = [f"{value:.4g}" for value in values[:NUMBERS]]
        numbers += [f"... {values.size} numbers"] if values.size > NUMBERS else []
        head = [dotted(path)] if path else []
        lines += head + [" ".join(numbers[i : i + 3]) for i in range(0, len(numbers), 3)]
    return lines[:14]


def draw_image(section: Any, view: EnvView, path: Path, name: str) -> None:
    """Draw for every shown row the raw frame, every channel, and a histogram."""
    values, rows = view.seen[path], view.rows
    count = min(len(channels(values[0])), MOST_CHANNELS)
    grid = section.subplots(len(rows), count + 2, squeeze=False)
    low, high = float(values.min()), float(values.max())
    for line, row in zip(grid, rows, strict=True):
        line[0].set_title(
            f"row {row}: raw frame" if row in view.frames else f"row {row}: raw", fontsize=8
        )
        line[0].set_axis_off()
        draw_raw(line[0], view, row)
        for axes, (label, channel) in zip(line[1:-1], channels(values[row]), strict=False):
            axes.imshow(channel, cmap="gray", vmin=low, vmax=high)
            axes.set_title(
                f"channel {label}: {channel.min():.4g} to {channel.max():.4g}", fontsize=8
            )
            axes.set_axis_off()
        line[-1].hist(values[row].ravel(), bins=32, range=(low, high or 1), color=COLOURS["middle"])
        line[-1].set_yscale("log")
        line[-1].tick_params(labelsize=7)
        line[-1].set_title("values (pixels, log)", fontsize=8)
    section.suptitle(
        f"{name}: {values.dtype} {'x'.join(map(str, values.shape[1:]))}, {low:.4g} to {high:.4g}",
        fontsize=10,
    )


def draw_vector(section: Any, view: EnvView, path: Path, leaf: Any, name: str) -> None:
    """Draw the range of every component, raw and as the network gets it if that differs, and a
    histogram of the network's values."""
    seen, raw = view.seen[path], view.raw.get(path, view.seen[path])
    changed = raw.shape != seen.shape or not np.array_equal(raw, seen)
    columns = section.subplots(1, 3 if changed else 2, squeeze=False)[0]
    if changed:
        draw_ranges(columns[0], raw, part_at(view.raw_space, path), f"{name}: from the environment")
    draw_ranges(columns[-2], seen, leaf, f"{name}: to the network" if changed else name)
    columns[-1].hist(seen[np.isfinite(seen)], bins=50, color=COLOURS["middle"])
    columns[-1].set(xlabel="value", ylabel="numbers, all components (log)", yscale="log")
    columns[-1].set_title("values", fontsize=10)


def draw_ranges(axes: Any, values: Array, space: Any, title: str) -> None:
    """Draw least, greatest, middle 90 % and mean of each component, and the bounds of its space."""
    values = values.reshape(len(values), -1).astype(np.float64)
    low, high = np.nanmin(values, 0), np.nanmax(values, 0)
    five, most = np.nanpercentile(values, [5, 95], axis=0)
    mean, at = np.nanmean(values, 0), np.arange(values.shape[1])
    bounds = [
        np.broadcast_to(np.ravel(bound).astype(float), at.shape) for bound in value_range(space)
    ]
    if len(at) <= NAMED_COMPONENTS_DRAWN:
        axes.barh(
            at, high - low, left=low, height=0.5, color=COLOURS["range"], label="least to greatest"
        )
        axes.barh(
            at, most - five, left=five, height=0.5, color=COLOURS["middle"], label="middle 90 %"
        )
        axes.plot(mean, at, "o", color=COLOURS["mean"], markersize=4, label="mean")
        for bound in bounds:
            near = np.isfinite(bound) & (abs(bound) < 1e6)
            axes.plot(bound[near], at[near], "|", color=COLOURS["space"], markersize=12)
        axes.plot([], [], "|", color=COLOURS["space"], markersize=12, label="bound of the space")
        axes.set(ylabel="component", xlabel="value", yticks=at, ylim=(len(at) - 0.4, -0.6))
        axes.tick_params(axis="y", labelsize=7)
    else:
        axes.fill_between(at, low, high, color=COLOURS["range"], label="least to greatest")
        axes.fill_between(at, five, most, color=COLOURS["middle"], label="middle 90 %")
        axes.plot(at, mean, color=COLOURS["mean"], label="mean")
        axes.set(xlabel="component", ylabel="value")
    axes.set_title(f"{title}: {np.nanmin(low):.4g} to {np.nanmax(high):.4g}", fontsize=10)
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=2)


def draw_counts(section: Any, values: Array, name: str) -> None:
    """Draw how often each value of a discrete observation was seen."""
    axes = section.subplots()
    found, counts = np.unique(values, return_counts=True)
    axes.bar(found, counts, width=0.8, color=COLOURS["middle"])
    axes.set(xlabel="value", ylabel="rows")
    axes.set_title(f"{name}: {found.min()} to {found.max()}, {len(found)} different", fontsize=10)
