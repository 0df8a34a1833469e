"""Running a model with its caches: the look-up lane, and frames that answer early."""

from brisk.exits.serving.frame import Answer, ExitingFrame
from brisk.exits.serving.lane import LookUpLane
from brisk.exits.serving.places import Places, find_places

__all__ = ["Answer", "ExitingFrame", "LookUpLane", "Places", "find_places"]
