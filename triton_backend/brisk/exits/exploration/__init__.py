"""The exploration of a model for caches: ``explore`` or ``explore_whole`` (GATI, section 4)."""

from brisk.exits.exploration.explore import Exploration, explore
from brisk.exits.exploration.settings import ExplorationSettings, Progress, TooLargeError
from brisk.exits.exploration.whole_only import ExploredWhole, explore_whole

__all__ = [
    "Exploration",
    "ExplorationSettings",
    "ExploredWhole",
    "Progress",
    "TooLargeError",
    "explore",
    "explore_whole",
]
