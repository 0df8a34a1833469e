#!/usr/bin/env python3
"""Asks a GPU what the engine for it has to know; prints a line of JSON for each answer.

usage: probe.py [--dry LIBRARY] [--parts NAME,…] [--models DIR] [--out FILE] [--seconds S]

Each part runs in a process of its own and may fail alone, or take too long. ``--dry`` runs all of
them on a processor, with the library of ``fake_driver.c`` for the driver: what it prints measures
nothing. Models are built in DIR where they are not there.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "triton_backend"), str(ROOT / "bench"), str(Path(__file__).parent)]

SMALL = ("mlp", "resnet18")


def main() -> int:
    chosen = arguments()
    if chosen.part:
        return run_part(chosen)
    from parts import PARTS

    until_s = time.monotonic() + chosen.seconds
    with tempfile.TemporaryDirectory() as folder:
        models = chosen.models or Path(folder)
        write(chosen.out, {"part": "models", **built(models, chosen.dry is not None)})
        failed = 0
        for name in chosen.parts or PARTS:
            limit_s = min(PARTS[name][1], until_s - time.monotonic())
            failed += not outcome(chosen, name, models, limit_s)
    return 1 if failed else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Ask a GPU what the engine has to know.")
    parser.add_argument("--dry", metavar="LIBRARY", help="a stand-in for the driver, a processor")
    parser.add_argument("--parts", type=lambda text: text.split(","), help="all if not given")
    parser.add_argument("--models", type=Path, help="folder of ONNX files")
    parser.add_argument("--out", type=Path, help="file that lines are added to")
    parser.add_argument("--seconds", type=float, default=300, help="for all parts together")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    return parser.parse_args()


def outcome(chosen: argparse.Namespace, name: str, models: Path, limit_s: float) -> bool:
    """Run a part in a process of its own; return whether it ended well."""
    if limit_s < 5:
        write(chosen.out, {"part": name, "error": "no time was left"})
        return False
    command = [sys.executable, __file__, "--part", name, "--models", str(models)]
    command += ["--seconds", str(limit_s - 1)]
    for option in ("dry", "out"):
        if getattr(chosen, option):
            command += [f"--{option}", str(getattr(chosen, option))]
    begun = time.monotonic()
    try:
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=limit_s)
        error = "" if done.returncode == 0 else f"status {done.returncode}: {done.stderr[-1500:]}"
    except subprocess.TimeoutExpired:
        error = f"took more than {limit_s:.0f} s"
    took = {"part": name, "took_s": round(time.monotonic() - begun, 1)}
    write(chosen.out, {**took, "error": error} if error else took)
    return not error


def run_part(chosen: argparse.Namespace) -> int:
    from parts import PARTS
    from place import Place

    faulthandler.dump_traceback_later(chosen.seconds, exit=True)
    ask, _ = PARTS[chosen.part]
    answers = ask(Place(chosen.dry), chosen.models)
    for answer in (answers,) if isinstance(answers, Mapping) else answers:
        write(chosen.out, {"part": chosen.part, **answer})
    sys.stdout.flush()
    os._exit(0)  # what is left is the device's to give back


def write(out: Path | None, row: Mapping[str, Any]) -> None:
    text = json.dumps(row, default=float)
    print(text, flush=True)
    if out is not None:
        with out.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def built(folder: Path, is_dry: bool) -> Mapping[str, Any]:
    """Write the models that are missing; return those there, and those that could not be built."""
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    failed = {}
    for name, build in networks():
        path = folder / f"{name}.onnx"
        if path.is_file() or (is_dry and name not in (*SMALL, "resnet50", "encoder")):
            continue
        try:
            onnx.save(build(), path)
        except Exception as error:  # noqa: BLE001  # others can be
            failed[name] = f"{type(error).__name__}: {error}"
    names = sorted(path.stem for path in folder.glob("*.onnx"))
    return {"names": names, "failed": failed, "took_s": round(time.monotonic() - begun, 1)}


def networks() -> Iterator[tuple[str, Callable[[], onnx.ModelProto]]]:
    from brisk_bench.disb.networks import NETWORKS
    from brisk_bench.engines import networks as others
    from brisk_bench.samples import encoder, mlp, resnet

    yield "mlp", lambda: mlp.build_mlp("mlp", seed=3)
    yield "resnet18", lambda: resnet.build_resnet("resnet18", (2, 2, 2, 2), 1, seed=18)
    yield "resnet50", lambda: resnet.build_resnet("resnet50", (3, 4, 6, 3), 4, seed=50)
    yield "encoder", lambda: encoder.build_encoder("encoder", seed=6)
    yield "vgg16", others.build_vgg
    yield "efficientnet", others.build_efficientnet
    yield "unet", others.build_unet
    yield "vit", others.build_vit
    for name, network in NETWORKS.items():
        yield f"disb_{name}", network.build


if __name__ == "__main__":
    sys.exit(main())
