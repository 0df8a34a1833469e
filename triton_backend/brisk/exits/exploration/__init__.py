"""From a model and data to its caches: explore, compose, calibrate (GATI, section 4)."""

from brisk.exits.exploration.explore import Exploration, explore
from brisk.exits.exploration.settings import ExplorationSettings, Progress

__all__ = ["Exploration", "ExplorationSettings", "Progress", "explore"]
