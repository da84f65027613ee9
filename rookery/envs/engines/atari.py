"""Atari: what a game's name implies, and the ALE's own vector environment."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
from ale_py import roms
from ale_py.env import AtariEnv
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode, VectorEnv

from rookery.envs.human_scores import HUMAN_SCORES
from rookery.envs.options import EnvOptions
from rookery.errors import BadInput, missing_extra, require

MAX_FRAMES = 108_000
"""Half an hour of play, after which a game is truncated."""
TWO_PLAYERS = {"combat", "joust", "maze_craze", "warlords"}
NAME = re.compile(
    r"(?P<space>ALE/)?(?P<game>\w+?)(?P<kind>NoFrameskip|Deterministic)?(-v(?P<version>[045]))?"
)
TAKEN = {
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
"""Arguments of the ALE that are options of their own here."""


@dataclass(frozen=True)
class Game:
    """What the name of an Atari environment says."""

    rom: str
    sticky: float
    frame_skip: int | None
    """None: a random number of frames, which is not run here."""


@functools.lru_cache
def games() -> dict[str, str]:
    """ROM by CamelCase name, of all games for one player."""
    singles = (rom for rom in sorted(roms.get_all_rom_ids()) if rom not in TWO_PLAYERS)
    return {rom.title().replace("_", ""): rom for rom in singles}


def parse(name: str) -> Game | None:
    """The game a name stands for, or None if it is not an Atari name.

    `ALE/Pong-v5` has sticky actions (0.25). `PongNoFrameskip-v4`, `PongDeterministic-v4` and the
    plain `Pong` have none; their `-v0` has. All act every 4 frames: "NoFrameskip" says that the
    emulator skips none, and the preprocessing that goes with it skips 4. `Pong-v4` and `Pong-v0`
    skip 2 to 4 at random.
    """
    match = NAME.fullmatch(name)
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


def game_of(name: str) -> Game | None:
    """The Atari game that a name stands for, run by the ALE or by EnvPool, or None."""
    module, _, plain = name.rpartition(":")
    # EnvPool's name for ALE/Pong-v5 is Pong-v5.
    return parse(plain) or (parse(f"ALE/{plain}") if module == "envpool" else None)


def plays_atari(name: str) -> bool:
    """Whether a name stands for an Atari game."""
    return game_of(name) is not None


def resolved(name: str, game: Game, options: EnvOptions) -> EnvOptions:
    """`options` with every None filled in for this game."""
    skip = game.frame_skip if options.frame_skip is None else options.frame_skip
    if skip is None:
        plain = name.rsplit("-", 1)
        raise BadInput(
            f'envs: "{name}" skips 2 to 4 frames at random, which is not supported: '
            f'use "{plain[0]}NoFrameskip-{plain[1]}", or set env.frame_skip'
        )

    def given(value: Any, default: Any) -> Any:
        return default if value is None else value

    return replace(
        options,
        frame_skip=skip,
        frame_stack=given(options.frame_stack, 4),
        resize=given(options.resize, (84, 84)),
        grey=given(options.grey, True),
        noops=given(options.noops, 30),
        sticky=given(options.sticky, game.sticky),
        clip_reward=given(options.clip_reward, True),
    )


def make_atari(game: Game, options: EnvOptions, num_envs: int, threads: int) -> Any:
    """The ALE's vector environment: raw rewards, whole games, options already resolved.

    Observations are single frames, [1, H, W] or in colour [1, H, W, 3].
    """
    require_free(options.kwargs)
    assert options.resize is not None
    kwargs: dict[str, Any] = {
        "max_num_frames_per_episode": frame_cap(options),
        "use_fire_reset": False,
        **options.kwargs,
    }
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
            frameskip=options.frame_skip or 1,
            noop_max=options.noops or 0,
            autoreset_mode=AutoresetMode.NEXT_STEP,
            reward_clipping=False,
            episodic_life=False,
            **kwargs,
        )
    except TypeError as error:
        raise BadInput(f"env.kwargs do not suit the ALE: {error}") from error
    # The class shares one metadata dict between all its instances.
    env.metadata = dict(env.metadata)
    env.engine = "ale"  # type: ignore[attr-defined]
    return env


def frame_cap(options: EnvOptions) -> int:
    """Frames until truncation; the ALE does not count the no-ops at reset."""
    if options.time_limit is None:
        return MAX_FRAMES
    return options.time_limit * (options.frame_skip or 1)


def require_free(kwargs: dict[str, Any]) -> None:
    """Refuse arguments that an option of ours already sets."""
    for key in kwargs:
        if key in TAKEN:
            raise BadInput(f"env.kwargs may not set {key!r}: set env.{TAKEN[key]}")
        require(key != "autoreset_mode", "env.kwargs may not set 'autoreset_mode': it is NEXT_STEP")


def single_atari(game: Game, options: EnvOptions, render_mode: str | None) -> Any:
    """One game that can be drawn, its frames preprocessed as the vector environment does it."""
    require_free(options.kwargs)
    assert options.resize is not None
    kwargs = {"max_num_frames_per_episode": MAX_FRAMES, **options.kwargs}
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


def human_normalized(name: str, score: float) -> float | None:
    """0 where random play scores, 1 where a human does; None for a game without a human score."""
    game = game_of(name)
    if game is None or game.rom not in HUMAN_SCORES:
        return None
    random, human = HUMAN_SCORES[game.rom]
    return (score - random) / (human - random)
