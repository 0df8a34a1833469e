"""Running programs on torch, layer by layer: plans, loaded programs, frames, the executor."""
