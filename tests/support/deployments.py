"""Deployments to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnx import TensorProto, helper

from brisk.doctor.deployment import Deployment
from support.server.entries import make_model, write_entry


def deployment(folder: Path, **changes: Any) -> Deployment:
    values: dict[str, Any] = {
        "server": None,
        "environment": {"HOME": str(folder)},
        "command": (),
        "repositories": (),
        "device": "cpu",
        "shared_memory": Path("/dev/shm"),
        "cgroup": folder,
    }
    return Deployment(**{**values, **changes})


def write_model(repository: Path, operator: str) -> None:
    x, y = ((name, TensorProto.FLOAT, (4, 4)) for name in "xy")
    model = make_model([helper.make_node(operator, ["x"], ["y"])], [x], [y])
    entry = write_entry(repository, operator.lower(), model)
    (entry / "config.pbtxt").unlink()
