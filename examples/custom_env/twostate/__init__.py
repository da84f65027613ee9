"""Two small environments. Importing the package tells Gymnasium their names."""

import gymnasium

gymnasium.register("TwoState-v0", entry_point="twostate.envs:TwoState")
gymnasium.register("Greenhouse-v0", entry_point="twostate.envs:Greenhouse", max_episode_steps=50)
