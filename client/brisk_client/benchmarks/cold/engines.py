"""The engines whose cold starts are measured: the same three steps for every one."""

from __future__ import annotations

import importlib
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from brisk_client.benchmarks.engines import onnxruntime_prepared
from brisk_client.benchmarks.engines.onnxruntime_prepared import open_session, session_options
from brisk_client.benchmarks.engines.process import EngineUnavailableError
from brisk_client.benchmarks.engines.registry import open_openvino
from brisk_client.benchmarks.harness.command_line import UnusableArgumentError

Arrays = Mapping[str, np.ndarray]
"""Inputs of one inference by name."""

BASE = "onnxruntime"
"""What every engine's cold start is compared with."""

PREPARED, UNPREPARED = "brisk", "brisk unprepared"
"""Brisk with all it has: from an artefact, and straight from the ONNX file."""

PREPARED_PEERS = ("onnxruntime prepared", "onnxruntime prepared without packing")
"""ONNX Runtime prepared by its own means; for each model the one that starts sooner counts."""

BARE_PEERS = (BASE, "onnxruntime unoptimised")
"""ONNX Runtime from the bare file; for each model the one that starts sooner counts."""

BESIDE_LOAD = (PREPARED, UNPREPARED, BASE)
"""Those of NNV12's Fig. 11."""

FROM_DISK = (PREPARED, UNPREPARED, BASE, *PREPARED_PEERS, "openvino cached")
"""Those whose time from the disk is compared with reading the same bytes."""

LARGER_BATCHES = (PREPARED, UNPREPARED, BASE)
"""Those of larger batches, and what they are compared with."""

OTHER_WEIGHTS = ("torch eager", "torch aotinductor")
"""Engines that compute the same network with weights of their own: their answers are others."""

QUICK = (PREPARED, UNPREPARED, *BARE_PEERS, *PREPARED_PEERS, "openvino cached", OTHER_WEIGHTS[0])
"""Those of a quick run: Brisk as its runtime starts models, and what it is compared with."""


@dataclass(frozen=True, slots=True)
class Start:
    """A model just started: its first answer is there.

    ``infer`` runs the next inference on the same inputs. ``settle`` returns when the engine has
    finished whatever it does in the background.
    """

    outputs: list[np.ndarray]
    infer: Callable[[], Any]
    settle: Callable[[], None] = lambda: None


class ColdEngine(ABC):
    """One way to bring a model from its file to a first answer."""

    library: str

    prepares = False
    """Whether ``prepare`` makes anything."""

    as_it_comes = False
    """Whether its process goes without the allocator's settings and the memory of all others."""

    def import_libraries(self) -> None:
        """Import all that a server of this engine would have imported before any model comes.

        Runs before the clock starts, in a process that then forks: it must compute nothing.
        """
        importlib.import_module(self.library)

    def begin(self, threads: int) -> None:
        """What the sample's process does before the clock starts: start a model that has nothing
        to do with the measured one, the same way, and run it once.

        As Brisk's idle worker does by itself; no engine's first start of all is measured.
        """
        from brisk_client.benchmarks.cold.networks import write_unrelated

        with tempfile.TemporaryDirectory(prefix="brisk-unrelated-") as folder:
            model, inputs = write_unrelated(Path(folder))
            prepared = self.prepare(model, Path(folder), inputs, threads)
            self.start(model, prepared, inputs, threads)

    def prepare(self, model: Path, folder: Path, inputs: Arrays, threads: int) -> Path | None:
        """Make ahead of time, in ``folder``, what the engine keeps between starts.

        None where it keeps nothing. Not part of any measured time. Raises whatever the engine
        does where this model cannot be prepared.
        """
        return None

    def files(self, model: Path, prepared: Path | None) -> list[Path]:
        """The files whose bytes a start reads."""
        if prepared is None:
            return [model]
        if prepared.is_dir():
            return sorted(file for file in prepared.rglob("*") if file.is_file())
        return [prepared]

    @abstractmethod
    def start(self, model: Path, prepared: Path | None, inputs: Arrays, threads: int) -> Start:
        """Load and answer once: what is measured."""


class BriskSegments(ColdEngine):
    """As its runtime starts models, in this process: segments that ONNX Runtime computes, from
    the artefact or from the model's file; then exchanged for what runs fastest."""

    def __init__(self, *, has_artefact: bool) -> None:
        self.prepares = has_artefact

    def import_libraries(self) -> None:
        from brisk.runtime.ready import import_everything, import_what_files_need

        import_everything("cpu")
        import_what_files_need()

    def prepare(self, model: Path, folder: Path, inputs: Arrays, threads: int) -> Path | None:
        if not self.prepares:
            return None
        from brisk.segments.prepared.form import find_prepared
        from brisk.segments.prepared.preparation import is_prepared, prepare

        if is_prepared(model, threads):
            return find_prepared(model)
        return prepare(model, threads).path

    def start(self, model: Path, prepared: Path | None, inputs: Arrays, threads: int) -> Start:
        from brisk.segments.frame import run_serially
        from brisk.segments.model.sources import BareModel
        from brisk.segments.source import Source
        from brisk.segments.starting import start_lanes, start_segments

        source: Source
        if prepared is not None:
            from brisk.segments.prepared.form import PreparedModel

            source = PreparedModel(prepared, model, threads)
        else:
            source = BareModel(model, threads, is_awaited=True)
            source.check()
        starting = start_segments(source)
        start_lanes(starting.table, threads)

        def infer() -> list[np.ndarray]:
            return list(run_serially(starting.program, inputs).values())

        def settle() -> None:
            starting.table.wait(60.0)
            starting.load_warm(lambda: True)

        return Start(infer(), infer, settle)


class OnnxRuntime(ColdEngine):
    """From the model's file, as a plain InferenceSession does it, or ``settings`` of
    ``session_options``. ``as_it_comes``: see ColdEngine."""

    library = "onnxruntime"

    def __init__(self, *, as_it_comes: bool = False, **settings: bool) -> None:
        self.as_it_comes = as_it_comes
        self._settings = settings

    def start(self, model: Path, prepared: Path | None, inputs: Arrays, threads: int) -> Start:
        session = open_session(prepared or model, session_options(threads, **self._settings))
        feeds = dict(inputs)
        return Start(session.run(None, feeds), lambda: session.run(None, feeds))


class OnnxRuntimePrepared(OnnxRuntime):
    """From the optimised model with external weights, with or without packing them anew."""

    prepares = True

    def __init__(self, *, packs: bool) -> None:
        super().__init__(optimises=False, packs=packs)

    def prepare(self, model: Path, folder: Path, inputs: Arrays, threads: int) -> Path:
        import onnxruntime

        target = folder / f"onnxruntime-{onnxruntime.__version__}-optimised"
        try:
            onnxruntime_prepared.prepare(model, target, threads)
        except Exception as error:
            raise EngineUnavailableError(f"cannot save it optimised: {error}") from error
        return target

    def start(self, model: Path, prepared: Path | None, inputs: Arrays, threads: int) -> Start:
        assert prepared is not None
        return super().start(model, prepared / onnxruntime_prepared.MODEL, inputs, threads)


class OnnxRuntimeOwnFormat(OnnxRuntime):
    """From the optimised model in ONNX Runtime's own format, optimisation off at load."""

    prepares = True

    def __init__(self) -> None:
        super().__init__(optimises=False)

    def prepare(self, model: Path, folder: Path, inputs: Arrays, threads: int) -> Path:
        import onnxruntime

        target = folder / f"onnxruntime-{onnxruntime.__version__}.ort"
        if not target.exists():
            options = session_options(threads)
            options.optimized_model_filepath = str(target)
            options.add_session_config_entry("session.save_model_format", "ORT")
            open_session(model, options)
        return target


class OpenVino(ColdEngine):
    """OpenVINO's CPU plugin: compiling the model, or (``cached``) importing it from its model
    cache, which a start before has filled; the whole compiled model is kept."""

    library = "openvino"

    def __init__(self, *, cached: bool) -> None:
        self.prepares = cached

    def prepare(self, model: Path, folder: Path, inputs: Arrays, threads: int) -> Path | None:
        if not self.prepares:
            return None
        target = folder / f"openvino-{threads}"
        if not target.exists():
            target.mkdir()
            self.start(model, target, inputs, threads)
        return target

    def start(self, model: Path, prepared: Path | None, inputs: Arrays, threads: int) -> Start:
        cache = {"CACHE_DIR": str(prepared), "CACHE_MODE": "OPTIMIZE_SPEED"} if prepared else {}
        infer = open_openvino(model, threads, cache)
        return Start(infer(inputs), lambda: infer(inputs))


class TorchEager(ColdEngine):
    """The network as a torch user writes it, its weights mapped from a file."""

    prepares = True

    def import_libraries(self) -> None:
        import torch  # noqa: F401

        import brisk_client.benchmarks.engines.eager  # noqa: F401

    def begin(self, threads: int) -> None:
        """Make a small network and run it, as the other engines start an unrelated model."""
        import torch
        from torch import nn

        torch.set_num_threads(threads)
        layers = (nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten())
        with torch.inference_mode():
            nn.Sequential(*layers, nn.LazyLinear(16)).eval()(torch.zeros(1, 3, 32, 32))

    def prepare(self, model: Path, folder: Path, inputs: Arrays, threads: int) -> Path:
        from brisk_client.benchmarks.engines.eager import saved_weights

        return saved_weights(_network_name(model), folder)

    def start(self, model: Path, prepared: Path | None, inputs: Arrays, threads: int) -> Start:
        import torch

        from brisk_client.benchmarks.engines.eager import inference

        assert prepared is not None
        torch.set_num_threads(threads)
        infer = inference(self._open(model, prepared))
        return Start(infer(inputs), lambda: infer(inputs))

    def _open(self, model: Path, prepared: Path) -> Callable[..., Any]:
        from brisk_client.benchmarks.engines.eager import mapped_network

        return mapped_network(_network_name(model), prepared)


class AotInductor(TorchEager):
    """The network compiled ahead of time to a package, its weights frozen into it.

    Compiling takes its time: the unrelated model is run eagerly."""

    def import_libraries(self) -> None:
        import torch._inductor.codecache
        import torch._inductor.cpp_builder
        import torch._inductor.package
        import torch.utils.cpp_extension  # noqa: F401

    def prepare(self, model: Path, folder: Path, inputs: Arrays, threads: int) -> Path:
        import torch
        from torch._inductor import aoti_compile_and_package, config

        from brisk_client.benchmarks.engines.eager import network_named

        target = folder / "torch.pt2"
        if not target.exists():
            torch.manual_seed(0)
            examples = tuple(torch.from_numpy(array) for array in inputs.values())
            with torch.inference_mode(), config.patch(freezing=True):
                network = network_named(_network_name(model)).eval()
                exported = torch.export.export(network, examples)
                aoti_compile_and_package(exported, package_path=str(target))
        return target

    def _open(self, model: Path, prepared: Path) -> Callable[..., Any]:
        from torch._inductor import aoti_load_package

        return aoti_load_package(str(prepared))


def _network_name(model: Path) -> str:
    """Of the model in .../NAME-bBATCH/entry/1/model.onnx; a model of elsewhere has none.

    Raises LookupError.
    """
    if model.parts[-3:] != ("entry", "1", "model.onnx"):
        raise LookupError("no torch form was written of it")
    return model.parts[-4].partition("-")[0]


ENGINES: Mapping[str, ColdEngine] = {
    PREPARED: BriskSegments(has_artefact=True),
    UNPREPARED: BriskSegments(has_artefact=False),
    BASE: OnnxRuntime(),
    "onnxruntime as it comes": OnnxRuntime(as_it_comes=True),
    BARE_PEERS[1]: OnnxRuntime(optimises=False),
    PREPARED_PEERS[0]: OnnxRuntimePrepared(packs=True),
    PREPARED_PEERS[1]: OnnxRuntimePrepared(packs=False),
    "onnxruntime own format": OnnxRuntimeOwnFormat(),
    "openvino": OpenVino(cached=False),
    "openvino cached": OpenVino(cached=True),
    OTHER_WEIGHTS[0]: TorchEager(),
    OTHER_WEIGHTS[1]: AotInductor(),
}
"""In the order in which they are shown."""


def check_engine(name: str) -> None:
    """Raises UnusableArgumentError naming those there are."""
    if name not in ENGINES:
        raise UnusableArgumentError(
            f"there is no engine '{name}'; there are: {', '.join(ENGINES)}"
        )
