"""Running programs: plans, loaded programs, frames, and the serial executor."""

from brisk.execution.frame import Frame
from brisk.execution.loaded_layer import LoadedLayer
from brisk.execution.loading import LoadedProgram, load_program
from brisk.execution.plan import LayerPlan, Plan, make_plan
from brisk.execution.serial import run_serially

__all__ = [
    "Frame",
    "LayerPlan",
    "LoadedLayer",
    "LoadedProgram",
    "Plan",
    "load_program",
    "make_plan",
    "run_serially",
]
