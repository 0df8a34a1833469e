"""An entry's options of ONNX Runtime's CUDA provider, read as Triton's backend for it does.

They are parameters of the accelerator ``cuda``. Some may be parameters of the entry, too, which
win. Names, values and meaning are those of that backend: ``LoadModel`` in ``src/onnxruntime.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from brisk.errors import InvalidConfigurationError
from brisk.stub.config.field_support import Notice
from brisk.stub.config.parameters import Parser, choice, matching, parse_texts, read_texts
from brisk.tuning import CUDA_OPTIONS, Setting

CUDA, TENSORRT = "cuda", "tensorrt"

_FIELD = "optimization.execution_accelerators.gpu_execution_accelerator"

_CHOSEN_BY_BRISK = frozenset(
    (
        *("default_memory_arena_cfg", "device_id", "do_copy_in_default_stream"),
        *("enable_cuda_graph", "gpu_external_alloc", "gpu_external_empty_cache"),
        *("gpu_external_free", "has_user_compute_stream", "use_ep_level_unified_stream"),
        "user_compute_stream",
    )
)
"""The provider's options that Brisk sets or leaves alone, whatever the entry says."""

_IN_ACCELERATOR: Mapping[str, Parser] = {
    name: matching(*form) for name, form in CUDA_OPTIONS.items()
}
_IN_ENTRY: Mapping[str, Parser] = {
    "arena_extend_strategy": choice(
        {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
        "0 (kNextPowerOfTwo) or 1 (kSameAsRequested)",
    ),
    "cudnn_conv_algo_search": choice(
        {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
        "0 (EXHAUSTIVE), 1 (HEURISTIC) or 2 (DEFAULT)",
    ),
    "cudnn_conv_use_max_workspace": _IN_ACCELERATOR["cudnn_conv_use_max_workspace"],
    "gpu_mem_limit": _IN_ACCELERATOR["gpu_mem_limit"],
}
"""The parsers of the options that may be parameters of the entry, by name."""


class CudaOptions(NamedTuple):
    """An entry's options of the CUDA provider, and notices about them."""

    settings: tuple[Setting, ...]
    """The options, sorted by name."""
    notices: tuple[Notice, ...]
    taken: frozenset[str]
    """The names of the entry's parameters that were read."""


def read_cuda_options(config: Mapping[str, Any]) -> CudaOptions:
    """Read the options of an entry on a GPU.

    Raises InvalidConfigurationError for an unknown accelerator or option, and with every wrong
    value, by name.
    """
    optimization = config.get("optimization") or {}
    accelerators = optimization.get("execution_accelerators") or {}
    values: dict[str, str] = {}
    notices = []
    for each in accelerators.get("gpu_execution_accelerator") or ():
        name = str(each.get("name", ""))
        if name not in (CUDA, TENSORRT):
            raise InvalidConfigurationError(
                f"{_FIELD}: unknown accelerator '{name:.60}'; expected '{CUDA}', or none"
            )
        if name == CUDA:
            options = read_texts(each.get("parameters") or {})
            values.update(_parsed(options))
            notices += [
                _of_brisk(f"{_FIELD}.{option}") for option in options if option in _CHOSEN_BY_BRISK
            ]
    texts = read_texts(config.get("parameters") or {})
    values.update(parse_texts(texts, _IN_ENTRY))
    settings = tuple(Setting(*each) for each in sorted(values.items()))
    return CudaOptions(settings, tuple(notices), frozenset(_IN_ENTRY))


def _parsed(options: Mapping[str, str]) -> dict[str, str]:
    """Return the values of options of the accelerator. Raises InvalidConfigurationError."""
    for name in options:
        if name not in CUDA_OPTIONS and name not in _CHOSEN_BY_BRISK:
            import difflib

            near = difflib.get_close_matches(name, CUDA_OPTIONS, n=1, cutoff=0.8)
            guess = f", did you mean '{near[0]}'?" if near else ""
            raise InvalidConfigurationError(
                f"{_FIELD}: unknown option '{name:.60}' of {CUDA}{guess}; expected some of "
                f"{', '.join(CUDA_OPTIONS)}"
            )
    return parse_texts(options, _IN_ACCELERATOR, where=f"in the parameters of {_FIELD}")


def _of_brisk(field: str) -> Notice:
    return Notice("info", field, "Brisk chooses device and streams, and captures runs, itself")
