"""Deployments to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from brisk.doctor.deployment import Deployment
from support.server.entries import make_model


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


def write_model(repository: Path, operator: str, domain: str = "") -> None:
    directory = repository / operator.lower() / "1"
    directory.mkdir(parents=True)
    x, y = ((name, TensorProto.FLOAT, [4, 4]) for name in "xy")
    node = helper.make_node(operator, ["x"], ["y"], domain=domain)
    onnx.save(make_model([node], [x], [y]), directory / "model.onnx")
