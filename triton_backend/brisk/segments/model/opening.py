"""Sessions of ONNX models: one that starts at once, one that runs fast; and the node for which
ONNX Runtime refuses a segment, the last one of the shortest beginning that it refuses."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence, Set
from enum import Enum
from functools import partial
from typing import Any, TypeAlias

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from brisk.errors import BriskError, InvalidModelError, UnavailableError
from brisk.ort_format import is_ort_format, read_ort_operators
from brisk.paths import shown
from brisk.segments.model.extraction import Segment
from brisk.segments.model.graph_names import names_in_bodies, operators_of
from brisk.segments.model.model_file import ModelFile
from brisk.segments.onnxruntime import (
    FOLDER_ENTRY,
    NEEDS_PACKING,
    OrtSession,
    onnxruntime,
    session_options,
    value_in_place,
)
from brisk.tuning import SessionTuning, Setting

Provider: TypeAlias = "str | tuple[str, Mapping[str, str]]"
"""An execution provider of ONNX Runtime, with its options if it has any."""

CPU: Provider = "CPUExecutionProvider"

CHANGED_BY_OPTIMISING = frozenset({"DequantizeLinear", NEEDS_PACKING})
"""Operators with which a segment starts with its warm session, whatever that takes: ONNX Runtime
computes quantised products on floats until the graph is optimised and the weights are packed, and
answers differ by several percent.
"""

_NO_FALLBACK = Setting("session.disable_cpu_ep_fallback", "1")
"""The entry's setting with which a model is refused if its provider does not take all nodes."""

PATIENCE_S = 2.0
"""The longest search for the refused node: sessions of the first nodes of a large segment take
their time."""

_READ_CHARACTERS, _REASON_CHARACTERS = 8000, 1500

_PLACE = re.compile(
    r"/\S{0,300}/onnxruntime/\S{1,300}:\d+ [^\n]{0,1000}?\)(?: const)? "
)  # bounded: names of the model are in the text, and each beginning is tried
_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_VERSIONS = re.compile(r"Unsupported model IR version|only \*guarantees\* support|is not acyclic")


class Form(Enum):
    """The way in which a session is made (NNV12's candidates for ONNX Runtime)."""

    IN_PLACE = "in place"
    """The graph as it is, computing on the weights of the mapped file."""
    OPTIMISED = "optimised"
    """The graph optimised, weights packed for the kernels, all in memory of its own; it takes many
    times as long to make."""


def is_changed_by_optimising(file: ModelFile) -> bool:
    """Whether ONNX Runtime computes the model otherwise until it is optimised."""
    return not operators_in(file).isdisjoint(CHANGED_BY_OPTIMISING)


def operators_in(file: ModelFile) -> Set[str]:
    """Return a model's operators; of an ONNX file that Brisk does not parse all that optimizing
    changes."""
    if file.unread is None:
        return operators_of(file.proto)
    return read_ort_operators(file.unread) if is_ort_format(file.unread) else CHANGED_BY_OPTIMISING


def open_segment(
    segment: Segment,
    file: ModelFile,
    forms: Sequence[Form],
    threads: int,
    tuning: SessionTuning = SessionTuning(),  # noqa: B008  # immutable
    *,
    is_one_of_several: bool = False,
    provider: Provider = CPU,
) -> tuple[OrtSession, Form]:
    """Open a session on at most ``threads`` threads, as the entry wants it (see
    ``session_options``); return it with its form, the first of ``forms`` that ONNX Runtime
    accepts.

    Raises UnavailableError if the provider does not start, so that the processor would compute
    instead, InvalidModelError naming model, segment, node, operator and operator set, with ONNX
    Runtime's reason, and InvalidConfigurationError for a tuning that cannot be applied.
    """

    make = partial(
        _make_session,
        file=file,
        threads=threads,
        tuning=tuning,
        is_one_of_several=is_one_of_several,
        provider=provider,
    )
    for form in forms:
        try:
            return make(segment.proto, form), form
        except BriskError:
            raise
        except Exception as error:  # noqa: BLE001  # ONNX Runtime's have no common class
            refusal = error
    blame = "the file"
    if file.unread is None:
        blame = _blame(segment.proto, refusal, lambda proto: make(proto, forms[-1]))
    raise InvalidModelError(
        f"{file.path}: ONNX Runtime {onnxruntime().__version__} cannot load segment "
        f"{segment.spec.index} ({segment.spec.words}), to blame: {blame}: {_reason_of(refusal)}"
    ) from refusal


def _make_session(
    proto: ModelProto,
    form: Form,
    *,
    file: ModelFile,
    threads: int,
    tuning: SessionTuning,
    is_one_of_several: bool,
    provider: Provider,
) -> OrtSession:
    """Return a session of the segment in ``proto``, or of a piece of it.

    Raises what ONNX Runtime raises, and UnavailableError like ``open_segment``.
    """
    is_warm = form is Form.OPTIMISED
    options = session_options(
        tuning,
        threads,
        is_warm=is_warm,
        spins_long=is_warm and is_one_of_several,
        uses_memory_pattern=is_warm,  # a block for the second run, then another session's
    )
    held: list[Any] = []
    if file.unread is not None:
        model = bytes(file.unread)  # with all its weights
    elif is_warm and provider == CPU:
        file.give_weights(options, proto.graph)
    else:
        in_place = [each.name for each in proto.graph.initializer if each.name in file.weights]
        shadowed = names_in_bodies(proto.graph)
        for name in () if is_warm else in_place:
            value = None if name in shadowed else value_in_place(file.weights[name])
            if value is not None:
                options.add_initializer(name, value)
                held.append(value)
        if len(held) < len(in_place):
            file.give_to(options)
    options.add_session_config_entry(FOLDER_ENTRY, str(file.path.parent))
    if file.unread is None:
        model = proto.SerializeToString()
    is_alone = provider == CPU or _NO_FALLBACK in tuning.settings
    providers = [provider] if is_alone else [provider, CPU]
    session = onnxruntime().InferenceSession(model, options, providers=providers)
    provider_name = provider if isinstance(provider, str) else provider[0]
    if session.get_providers()[0] != provider_name:
        raise UnavailableError(f"ONNX Runtime's {provider_name} did not start here")
    return OrtSession(session, tuple(held), tuning.shrinks_arena)


def _reason_of(error: Exception) -> str:
    """Return ONNX Runtime's message without error code and source locations, cut if it is long."""
    text = _PLACE.sub("", _CODE.sub("", str(error)[:_READ_CHARACTERS])).strip()
    text = "".join(each if each.isprintable() else " " for each in text)
    return text if len(text) <= _REASON_CHARACTERS else text[:_REASON_CHARACTERS] + "…"


def _blame(proto: ModelProto, error: Exception, make: Callable[[ModelProto], object]) -> str:
    """Return in words what ONNX Runtime refuses: a node with its operator, or all operator
    sets."""
    versions = {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import}
    try:
        node = None if _VERSIONS.search(str(error)) else _found(proto, make)
        if node is None:
            sets = ", ".join(f"{shown(name)} {version}" for name, version in versions.items())
            return f"no node found, operator sets {sets}, IR version {proto.ir_version}"
        domain = node.domain or "ai.onnx"
        version = versions.get(domain, "not imported")
        output = node.output[0] if node.output else ""
        name = (
            f"node '{shown(node.name)}'" if node.name else f"the node that makes '{shown(output)}'"
        )
        return (
            f"{name}, operator {shown(node.op_type)} of domain {shown(domain)}, "
            f"operator set {version}"
        )
    except UnicodeDecodeError as decoding:
        return f"a name that is no UTF-8 text ({decoding})"


def _found(proto: ModelProto, make: Callable[[ModelProto], object]) -> NodeProto | None:
    """Return the last node of the shortest beginning that is refused, by bisection; None: other
    parts cause the refusal, too, or the time is up."""
    nodes = proto.graph.node

    def is_taken(count: int) -> bool:
        try:
            make(_beginning(proto, count))
        except Exception:  # noqa: BLE001  # that is the question
            return False
        return True

    if not nodes or is_taken(len(nodes)):
        return None  # the nodes are not the cause, or not they alone
    accepted, refused = 0, len(nodes)
    until_s = time.monotonic() + PATIENCE_S
    while refused - accepted > 1:
        if time.monotonic() > until_s:
            return None
        middle = (accepted + refused) // 2
        if is_taken(middle):
            accepted = middle
        else:
            refused = middle
    return nodes[refused - 1]


def _beginning(proto: ModelProto, count: int) -> ModelProto:
    """Return a model of the first ``count`` nodes; all their values are outputs, so that none is
    left out."""
    graph = proto.graph
    beginning = GraphProto(name=graph.name)
    beginning.node.extend(graph.node[:count])
    for field in ("initializer", "sparse_initializer", "input", "value_info"):
        getattr(beginning, field).extend(getattr(graph, field))
    declared = {info.name: info for info in graph.output}
    outputs = dict.fromkeys(name for node in beginning.node for name in node.output if name)
    beginning.output.extend(declared.get(name, ValueInfoProto(name=name)) for name in outputs)
    return ModelProto(
        ir_version=proto.ir_version,
        opset_import=proto.opset_import,
        functions=proto.functions,
        graph=beginning,
    )
