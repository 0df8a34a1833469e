"""The settings of ONNX Runtime's sessions that an entry makes in ``config.pbtxt``.

The stub reads them (``stub.config.session_tuning``), ``LoadModel`` carries them,
``segments.onnxruntime`` applies them. Two entries of one file with different settings have
sessions of their own.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from brisk.errors import InvalidConfigurationError

ValueForm: TypeAlias = "tuple[re.Pattern[str], str]"
"""The form of a setting's values, and its description."""

ALL, EXTENDED, BASIC, NONE = "all", "extended", "basic", "none"
OPTIMISATIONS = (ALL, EXTENDED, BASIC, NONE)
"""Sets of graph optimisations, the largest first."""

_FLAG = (re.compile(r"[01]"), "0 or 1")
_COUNT = (re.compile(r"[0-9]{1,18}"), "a whole number, 0 or more")
_NUMBER = (re.compile(r"-?[0-9]{1,18}"), "a whole number")
_NAMES = (re.compile(r"[A-Za-z0-9_.-]+(;[A-Za-z0-9_.-]+)*"), "names with ';' between them")
_CORES = (
    re.compile(r"[0-9]+([,-][0-9]+)*(;[0-9]+([,-][0-9]+)*)*"),
    "processors of each thread but the first, counted from 1, as in '1;2' or '1,2;3-4'",
)

SESSION_KEYS: Mapping[str, ValueForm] = {
    "session.allow_released_opsets_only": _FLAG,
    "session.disable_aot_function_inlining": _FLAG,
    "session.disable_cpu_ep_fallback": _FLAG,
    "session.disable_double_qdq_remover": _FLAG,
    "session.disable_prepacking": _FLAG,
    "session.disable_qdq_constant_folding": _FLAG,
    "session.disable_quant_qdq": _FLAG,
    "session.dynamic_block_base": _COUNT,
    "session.enable_dq_matmulnbits_fusion": _FLAG,
    "session.enable_quant_qdq_cleanup": _FLAG,
    "session.force_spinning_stop": _FLAG,
    "session.graph_optimizations_loop_level": _COUNT,
    "session.inter_op.allow_spinning": _FLAG,
    "session.inter_op.spin_duration_us": _NUMBER,
    "session.intra_op.allow_spinning": _FLAG,
    "session.intra_op.spin_duration_us": _NUMBER,
    "session.intra_op_thread_affinities": _CORES,
    "session.prepack.enable_parallel": _FLAG,
    "session.qdq_matmulnbits_accuracy_level": _NUMBER,
    "session.qdq_matmulnbits_block_size": _NUMBER,
    "session.qdqisint8allowed": _FLAG,
    "session.set_denormal_as_zero": _FLAG,
    "session.strict_shape_type_inference": _FLAG,
    "session.use_deterministic_compute": _FLAG,
    "session.use_device_allocator_for_initializers": _FLAG,
    "session.use_env_allocators": _FLAG,
    "session.x64quantprecision": _FLAG,
    "optimization.constant_folding_max_output_size_in_bytes": _COUNT,
    "optimization.disable_specified_optimizers": _NAMES,
    "optimization.enable_cast_chain_elimination": _FLAG,
    "optimization.enable_gelu_approximation": _FLAG,
    "mlas.disable_kleidiai": _FLAG,
    "mlas.qnbit.force_fp32": _FLAG,
    "mlas.use_lut_gemm": _FLAG,
}
"""Keys of ONNX Runtime's session configuration that an entry may set, with form and description of
their values. Those that name files, or say in which form Brisk hands the model over, are not
included: what an entry names is opened by ``brisk.paths`` alone.
"""

_SWITCH = (re.compile(r"[01]|[Tt]rue|[Ff]alse"), "0 or 1, or false or true")

CUDA_OPTIONS: Mapping[str, ValueForm] = {
    "arena_extend_strategy": (
        re.compile("kNextPowerOfTwo|kSameAsRequested"),
        "kNextPowerOfTwo or kSameAsRequested",
    ),
    "cudnn_conv1d_pad_to_nc1d": _SWITCH,
    "cudnn_conv_algo_search": (
        re.compile("EXHAUSTIVE|HEURISTIC|DEFAULT"),
        "EXHAUSTIVE, HEURISTIC or DEFAULT",
    ),
    "cudnn_conv_use_max_workspace": _SWITCH,
    "enable_cudnn": _SWITCH,
    "enable_skip_layer_norm_strict_mode": _SWITCH,
    "fuse_conv_bias": _SWITCH,
    "gpu_mem_limit": (re.compile(r"[0-9]{1,20}"), "a number of bytes"),
    "prefer_nhwc": _SWITCH,
    "sdpa_kernel": _COUNT,
    "tunable_op_enable": _SWITCH,
    "tunable_op_max_tuning_duration_ms": _COUNT,
    "tunable_op_tuning_enable": _SWITCH,
    "use_tf32": _SWITCH,
}
"""Options of ONNX Runtime's CUDA provider that an entry may set; device, streams and captures are
Brisk's."""

MOST_LIBRARIES = 64


class Setting(NamedTuple):
    key: str
    value: str


class SessionTuning(NamedTuple):
    """The settings of a model's sessions."""

    optimisation: str = ALL
    """The graph optimisations of the warm session, one of OPTIMISATIONS."""
    intra_op_threads: int = 0
    """The threads of a node, at most those of the worker; 0: all of these."""
    inter_op_threads: int = 0
    """The threads of independent nodes, at most those of the worker; 0: all of these."""
    is_parallel: bool = False
    """Whether independent nodes may run concurrently."""
    uses_arena: bool = True
    """Whether memory is kept between requests."""
    uses_memory_pattern: bool | None = None
    """Whether a run's memory is one block, laid out as in the first run; None: if that gains."""
    shrinks_arena: bool = False
    """Whether the memory of the arena is given back after each request."""
    settings: tuple[Setting, ...] = ()
    """The settings of SESSION_KEYS."""
    cuda: tuple[Setting, ...] = ()
    """The settings of CUDA_OPTIONS; none on a CPU."""
    operator_libraries: tuple[str, ...] = ()
    """The absolute paths of libraries of custom operators, in the order of the entry."""
    shares_structures: bool = True
    """Whether models of the same structure may run in its sessions, and it in theirs."""

    @property
    def keeps_answers(self) -> bool:
        """Whether its warm session computes the same graph, by the same kernels, as one with
        default settings: what was optimised and stored for that may be used for it."""
        return self.optimisation == ALL and not self.settings and not self.operator_libraries

    def check(self) -> None:
        """Raise InvalidConfigurationError, which names the setting, if ONNX Runtime does not take
        one."""
        if self.optimisation not in OPTIMISATIONS:
            raise InvalidConfigurationError(
                f"unknown graph optimisation {self.optimisation!r:.60}; expected one of "
                f"{', '.join(OPTIMISATIONS)}"
            )
        for name, count in (
            ("intra_op_thread_count", self.intra_op_threads),
            ("inter_op_thread_count", self.inter_op_threads),
        ):
            if count < 0:
                raise InvalidConfigurationError(f"{name} must be 0 or more, not {count}")
        for known, settings in ((SESSION_KEYS, self.settings), (CUDA_OPTIONS, self.cuda)):
            for key, value in settings:
                _check_setting(key, value, known)
        if self.shrinks_arena and not self.uses_arena:
            raise InvalidConfigurationError(
                "memory.enable_memory_arena_shrinkage needs the arena that enable_mem_arena takes "
                "away: every request would fail; expected one of them without the other"
            )
        if len(self.operator_libraries) > MOST_LIBRARIES:
            raise InvalidConfigurationError(
                f"{len(self.operator_libraries)} libraries of operators; expected at most "
                f"{MOST_LIBRARIES}"
            )


def _check_setting(key: str, value: str, known: Mapping[str, ValueForm]) -> None:
    """Raise InvalidConfigurationError for a key that is none of ``known``, or an invalid value."""
    if key not in known:
        raise InvalidConfigurationError(f"{key!r:.140} is no setting that an entry may make")
    form, expected = known[key]
    if not form.fullmatch(value):
        raise InvalidConfigurationError(f"{key} must be {expected}, not {value!r:.60}")
