"""Atari: names of games, their default options, and the ALE's vector environment."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

import gymnasium
from ale_py import roms
from ale_py.env import AtariEnv
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode, VectorEnv

from rookery.envs.options import EnvOptions
from rookery.errors import BadInput, missing_extra, require

MAX_EPISODE_FRAMES = 108_000
"""Frames after which a game is truncated: half an hour of play."""
TWO_PLAYERS = {"combat", "joust", "maze_craze", "warlords"}
ATARI_NAME = re.compile(
    r"(?P<space>ALE/)?(?P<game>\w+?)(?P<kind>NoFrameskip|Deterministic)?(-v(?P<version>[045]))?"
)
OWN_OPTIONS = {
    "frameskip": "frame_skip",
    "stack_num": "frame_stack",
    "img_height": "resize",
    "img_width": "resize",
    "grayscale": "grey",
    "noop_max": "noops",
    "repeat_action_probability": "sticky",
    "episodic_life": "one_life",
    "life_loss_info": "one_life",
    "reward_clipping": "clip_reward",
}
"""Arguments of the ALE that are set through options of ours, by the name of the option."""


@dataclass(frozen=True)
class Game:
    """ROM and defaults in the name of an Atari environment."""

    rom: str
    sticky: float
    """Probability per frame that the previous action repeats."""
    frame_skip: int | None
    """None: a random number of frames, which is not supported."""


@functools.lru_cache
def games() -> dict[str, str]:
    """Return the ROMs of all one-player games by their CamelCase names."""
    singles = (rom for rom in sorted(roms.get_all_rom_ids()) if rom not in TWO_PLAYERS)
    return {rom.title().replace("_", ""): rom for rom in singles}


def parse_game(name: str) -> Game | None:
    """Return the game that `name` means, or None if it is not an Atari name.

    `ALE/Pong-v5` has sticky actions (0.25). `PongNoFrameskip-v4`, `PongDeterministic-v4` and the
    plain `Pong` have none; their `-v0` has. All act every 4 frames: "NoFrameskip" means that the
    emulator skips none, and the usual preprocessing skips 4. `Pong-v4` and `Pong-v0` skip 2 to 4
    at random.
    """
    match = ATARI_NAME.fullmatch(name)
    if match is None:
        return None
    space, game, kind, _, version = match.groups()
    if game in roms.get_all_rom_ids() and not (space or kind or version):
        rom: str | None = game if game not in TWO_PLAYERS else None
    else:
        rom = games().get(game)
    if rom is None or bool(space) != (version == "5") or (kind and not version):
        return None
    random_skip = version in ("0", "4") and not kind
    return Game(rom, 0.25 if version in ("0", "5") else 0.0, None if random_skip else 4)


def atari_options(name: str, game: Game, options: EnvOptions) -> EnvOptions:
    """Return `options` with every None replaced by the default for this game."""
    if options.frame_skip is None and game.frame_skip is None:
        plain = name.rsplit("-", 1)
        raise BadInput(
            f'envs: "{name}" skips 2 to 4 frames at random, which is not supported: '
            f'use "{plain[0]}NoFrameskip-{plain[1]}" or set env.frame_skip'
        )
    return options.with_defaults(
        frame_skip=game.frame_skip,
        frame_stack=4,
        resize=(84, 84),
        grey=True,
        noops=30,
        sticky=game.sticky,
        clip_reward=True,
    )


def make_atari(game: Game, options: EnvOptions, num_envs: int, threads: int) -> Any:
    """Return the ALE's vector environment with raw rewards and whole games; `options` are resolved.

    Observations are single frames, [1, H, W], or [1, H, W, 3] in colour.
    """
    check_ale_kwargs(options.kwargs)
    assert options.resize is not None
    skip = options.frame_skip or 1
    # The ALE does not count the no-ops at reset as frames of the episode.
    frames = options.time_limit * skip if options.time_limit else MAX_EPISODE_FRAMES
    kwargs = {"max_num_frames_per_episode": frames, "use_fire_reset": False, **options.kwargs}
    try:
        env: VectorEnv[Any, Any, Any] = AtariVectorEnv(
            game.rom,
            num_envs,
            num_threads=threads,
            repeat_action_probability=options.sticky or 0.0,
            img_height=options.resize[0],
            img_width=options.resize[1],
            grayscale=bool(options.grey),
            stack_num=1,
            frameskip=skip,
            noop_max=options.noops or 0,
            autoreset_mode=AutoresetMode.NEXT_STEP,
            reward_clipping=False,
            episodic_life=False,
            **kwargs,
        )
    except TypeError as error:
        raise BadInput(f"env.kwargs: the ALE does not accept them: {error}") from error
    # A copy, since all instances of the class share one metadata dict.
    env.metadata = dict(env.metadata)
    env.engine = "ale"  # type: ignore[attr-defined]
    return env


def check_ale_kwargs(kwargs: dict[str, Any]) -> None:
    """Raise if env.kwargs contain an argument that an option of ours sets."""
    for key in kwargs:
        if key in OWN_OPTIONS:
            raise BadInput(f"env.kwargs may not set {key!r}: set env.{OWN_OPTIONS[key]}")
        require(
            key != "autoreset_mode",
            "env.kwargs may not set 'autoreset_mode': it must stay NEXT_STEP; remove it",
        )


def single_atari(game: Game, options: EnvOptions, render_mode: str | None) -> Any:
    """Return one game that can be rendered, preprocessed like the vector environment."""
    check_ale_kwargs(options.kwargs)
    assert options.resize is not None
    kwargs = {"max_num_frames_per_episode": MAX_EPISODE_FRAMES, **options.kwargs}
    env: gymnasium.Env[Any, Any] = AtariEnv(
        game.rom,
        frameskip=1,
        repeat_action_probability=options.sticky or 0.0,
        render_mode=render_mode,  # type: ignore[arg-type]
        **kwargs,
    )
    try:
        env = gymnasium.wrappers.AtariPreprocessing(
            env,
            noop_max=options.noops or 0,
            frame_skip=options.frame_skip or 1,
            screen_size=(options.resize[1], options.resize[0]),
            grayscale_obs=bool(options.grey),
        )
    except gymnasium.error.DependencyNotInstalled:
        raise missing_extra("drawing Atari", "image") from None
    env = gymnasium.wrappers.ReshapeObservation(env, (1, *(env.observation_space.shape or ())))
    return gymnasium.wrappers.TimeLimit(env, options.time_limit) if options.time_limit else env
