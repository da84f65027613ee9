"""Environments of this library's own; they are registered with Gymnasium on import, and their
modules are imported when one is made."""

import gymnasium

BUILTIN = "rookery.envs.builtin"
PROBE_CLASSES = (
    *("ConstantValue", "ObservedValue", "DiscountedValue", "DelayedReturn", "BetterAction"),
    *("TwoDecisions", "RememberedSign", "CutEpisode", "ContinuousAction"),
)
"""The classes of rookery/Probe1-v0 to rookery/Probe9-v0, in this order."""

gymnasium.register(
    "rookery/GroupedTetris-v0",
    entry_point=f"{BUILTIN}.grouped_tetris:GroupedTetris",
    max_episode_steps=500,
)
gymnasium.register(
    "rookery/MaskedCartPole-v1",
    entry_point=f"{BUILTIN}.memory_tasks:MaskedCartPole",
    vector_entry_point=f"{BUILTIN}.memory_tasks:MaskedCartPoleVector",
    max_episode_steps=500,
    reward_threshold=475.0,
)
gymnasium.register(
    "rookery/Recall-v1",
    entry_point=f"{BUILTIN}.memory_tasks:Recall",
    vector_entry_point=f"{BUILTIN}.memory_tasks:RecallVector",
    reward_threshold=0.95,
)
gymnasium.register(
    "rookery/Synthetic-v1",
    entry_point=f"{BUILTIN}.synthetic:Synthetic",
    vector_entry_point=f"{BUILTIN}.synthetic:SyntheticVector",
)
for number, probe in enumerate(PROBE_CLASSES, 1):
    gymnasium.register(f"rookery/Probe{number}-v0", entry_point=f"{BUILTIN}.probes:{probe}")
