"""Two small environments. Importing the package registers them with Gymnasium."""

import gymnasium

gymnasium.register("TwoState-v0", entry_point="twostate.envs:TwoState")
gymnasium.register("Greenhouse-v0", entry_point="twostate.envs:Greenhouse", max_episode_steps=50)
