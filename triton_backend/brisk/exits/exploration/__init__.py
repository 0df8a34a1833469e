"""From a model and data to its caches: explore, compose, calibrate (GATI, section 4)."""

from brisk.exits.exploration.explore import Exploration, explore
from brisk.exits.exploration.settings import ExplorationSettings, Progress
from brisk.exits.exploration.values import ExploredValues, explore_values

__all__ = [
    "Exploration",
    "ExplorationSettings",
    "ExploredValues",
    "Progress",
    "explore",
    "explore_values",
]
