"""The text of ``brisk explain`` on a model: its segments, or how it is served on a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path

import onnx
from onnx import ModelProto, TensorProto, TypeProto, helper

from brisk.artefacts.room import refusal_of
from brisk.artefacts.skeletons import noted_forms
from brisk.cli.views.learning import aim_of, learning_text, present_record
from brisk.errors import ArtefactError, InvalidModelError, counted
from brisk.exits.base_model import live_at
from brisk.exits.cascade import is_asked_for
from brisk.exits.cascade_file import digest_of, read_cascade
from brisk.exits.files.container import DamagedFileError
from brisk.exits.files.learning_record import Aim
from brisk.exits.files.versions import caches_file, latest, taps_of_latest
from brisk.exits.model_graph import read_graph
from brisk.exits.serving.frame import find_places
from brisk.graph.program import ValueType, Variable
from brisk.paths import shown
from brisk.segments.model import cutting
from brisk.segments.model.graph_names import is_in_order, nested_nodes, types_of
from brisk.segments.model.model_file import nested_tensors, read_model_file
from brisk.segments.model.node_times import UNKNOWN_BATCH, UNKNOWN_SIZE, predicted_times_ns
from brisk.segments.model.sources import BareModel, checked_model
from brisk.segments.onnxruntime import onnxruntime
from brisk.segments.prepared.form import PreparedModel, find_prepared
from brisk.segments.prepared.manifest import SEVERAL_ROWS, KeptSegment
from brisk.segments.prepared.siblings import find_form, sibling_of
from brisk.segments.source import SegmentPlan
from brisk.segments.starting import usable_cores
from brisk.stub.config.completion import complete
from brisk.stub.config.parameters import parse_parameters
from brisk.stub.config.session_tuning import TAKEN, read_tuning
from brisk.stub.config.signature import model_signature
from brisk.tuning import SessionTuning
from brisk.view.entry_text import written_config

MOST_VARIABLES = 6
"""The most inputs, and outputs, that are listed unless all are requested."""


def segments_text(file: Path, entry: Path | None, *, every: bool) -> Iterator[str]:
    """Yield lines of text on a model and its segments on a CPU. ``every``: list all nodes, inputs
    and outputs. ``entry``: the model's directory, whose ``config.pbtxt`` applies.

    Raises InvalidModelError and InvalidConfigurationError as a load does.
    """
    threads = usable_cores()
    class_text, tuning, aim = _said(entry, file)
    taps = taps_of_latest(file, takes_learned=aim is not None)
    source = checked_model(file, threads, taps, tuning)
    typed = _typed(source.file.proto)
    times_ns = [] if typed is None else predicted_times_ns(typed)
    types = {} if typed is None else types_of(typed.graph)
    exits, exits_text = _exits(file, source.plan, aim)
    prepared, prepared_text = _prepared(file, threads, taps, tuning)
    version = onnxruntime().__version__
    yield f"{file}: computed by ONNX Runtime {version} on {counted(threads, 'thread')}"
    yield f"  {size_text(source)}"
    if source.remark:
        yield f"  {source.remark}"
    yield from _variables_text("input", source.plan.inputs, every=every)
    yield from _variables_text("output", source.plan.outputs, every=every)
    if entry is not None:
        yield from _batch_text(entry, file)
    yield f"  class: {class_text}"
    yield f"  {_cutting_text(source, types, sum(times_ns) / 1e6, taps)}"
    yield f"  prepared form: {prepared_text}"
    yield f"  learned caches: {exits_text}"
    if taps:
        yield f"  cut for them behind: {', '.join(taps)}"
    if source.file.unread is None:
        yield f"  times: predicted, of one thread{_assumed_text(source.plan.inputs)}"
    answers = tuple(variable.name for variable in source.plan.outputs)
    behind = [*live_at(source.plan)[1:-1], answers]
    first_node = 0
    for segment, live in zip(source.segments, behind, strict=True):
        spec, nodes = segment.spec, segment.proto.graph.node
        time_ns = sum(times_ns[first_node : first_node + len(nodes)])
        first_node += len(nodes)
        what = "answers" if live is answers else "hands on"
        words = f"{time_ns / 1e6:.1f} ms, {what} {_crossing_text(live, types)}"
        packing = "" if prepared is None else f"; {packing_words(prepared.kept[spec.index])}"
        exit_names = "".join(f"; exit at {each}" for each in exits.get(spec.index + 1, ()))
        yield f"{spec.index:>4}  {spec.words}: {words}{packing}{exit_names}"
        for node in nodes if every else ():
            domain = f"{shown(node.domain)}." if node.domain else ""
            name = shown(node.name or (node.output[0] if node.output else ""))
            yield f"        {domain}{shown(node.op_type)} {name}"


def _said(entry: Path | None, file: Path) -> tuple[str, SessionTuning, Aim | None]:
    """Return a text on the entry's class, its settings of sessions, and what it asks to learn."""
    if entry is None:
        return "normal, unless its entry says otherwise", SessionTuning(), None
    config = written_config(entry)
    said = parse_parameters(config.get("parameters", {}), TAKEN)
    words = said.job_class
    if said.max_class != said.job_class:
        words += f"; requests may ask for {said.max_class}"
    if said.is_lazy:
        words += "; loaded by its first request"
    return words, read_tuning(config, entry, file).tuning, aim_of(file, config, said)


def _batch_text(entry: Path, file: Path) -> Iterator[str]:
    """Yield lines of text on how many rows of requests are joined, as the entry says or completion
    adds, and on the inputs of which requests have more sizes than the model.

    Raises InvalidModelError and InvalidConfigurationError as a completion does.
    """
    config, signature = written_config(entry), model_signature(file)
    completion = complete(signature, config)
    rows = completion.max_batch_size
    limit = f"up to {counted(rows, 'row')} (max_batch_size)"
    yield f"  batch: {limit if rows else 'none (max_batch_size 0)'}"
    for tensor in config.get("input") or completion.inputs:
        kind = signature.inputs.get(tensor["name"])
        sizes = [*["n"][: bool(rows)], *map(str, tensor.get("dims", ()))]
        if kind is not None and kind.shape is not None and len(kind.shape) < len(sizes):
            yield f"  requests: {shown(tensor['name'])} [{', '.join(sizes)}]"


def _typed(proto: ModelProto) -> ModelProto | None:
    """Return the model with inferred types; None if they cannot be inferred."""
    try:
        return onnx.shape_inference.infer_shapes(proto, data_prop=False)
    except Exception:  # noqa: BLE001  # of no common class
        return None


def size_text(source: BareModel) -> str:
    """Return a text on a model's size: its nodes and weights, including those of bodies and
    functions."""
    file = source.file
    if file.unread is not None:
        return f"{len(file.unread) / 1e6:.1f} MB that ONNX Runtime reads by itself"
    weights = sum(weight.data.nbytes for weight in file.weights.values())
    weights += sum(
        tensor.ByteSize()
        for tensor in file.proto.graph.initializer
        if tensor.name not in file.weights
    )
    weights += sum(tensor.ByteSize() for tensor in nested_tensors(file.proto))
    nodes = sum(len(segment.proto.graph.node) for segment in source.segments)
    inside = sum(1 for _ in nested_nodes(file.proto))
    bodies = f" and {inside} in bodies" if inside else ""
    return f"{counted(nodes, 'node')}{bodies}, {weights / 1e6:.1f} MB of weights"


def _cutting_text(
    source: BareModel, types: Mapping[str, TypeProto], total_ms: float, taps: Sequence[str]
) -> str:
    """Return a text on how many segments the model has, and why. ``types``: empty if they cannot
    be inferred."""
    count, longest_ms = len(source.segments), cutting.LONGEST_SEGMENT_NS / 1e6
    if count == 1:
        return f"1 segment: {_whole_text(source, types, total_ms)}"
    reasons = []
    if total_ms > longest_ms:
        reasons.append(
            f"where crossing is cheap, into parts of {longest_ms:g} of its {total_ms:.0f} ms or "
            f"less, of more where cuts would cost over {cutting.MOST_LOSS:.0%} of that together"
        )
    if taps:
        reasons.append("behind what learned caches read")
    return f"{count} segments: cut {' and '.join(reasons)}"


def _whole_text(source: BareModel, types: Mapping[str, TypeProto], total_ms: float) -> str:
    """Return a text on why the model is one segment."""
    file, longest_ms = source.file, cutting.LONGEST_SEGMENT_NS / 1e6
    graph, size = file.proto.graph, file.path.stat().st_size
    if file.unread is not None:
        is_own = not source.remark
        return f"ONNX Runtime reads {'its own format' if is_own else 'the file'} by itself, whole"
    if not is_in_order(graph):
        return "its nodes or names are in no order that parts could keep"
    if size < cutting.SMALL_MODEL_BYTES and len(graph.node) <= cutting.SMALL_MODEL_NODES:
        return f"it is small, at most {cutting.SMALL_MODEL_NODES} nodes in less than 1 MiB"
    if not types:
        return "the types of its values cannot be inferred"
    if total_ms <= longest_ms:
        return f"it takes {total_ms:.1f} ms, and up to {longest_ms:g} need no cut"
    if len(cutting.cut_points(file.proto, size, longest_ns=0)[0]) > 1:
        return (
            f"no boundary is cheap: cuts would cost more than {cutting.MOST_LOSS:.0%} of its time"
        )
    halves = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    if any(kind.tensor_type.elem_type in halves for kind in types.values()):
        return "it computes in half precision, which a boundary would round"
    return "nowhere do tensors of known types alone cross"


def _prepared(
    file: Path, threads: int, taps: Sequence[str], tuning: SessionTuning
) -> tuple[PreparedModel | None, str]:
    """Return the prepared form if a load would use it, else None, and a text about it."""

    def open_form(path: Path) -> PreparedModel:
        return PreparedModel(path, file, threads, taps, tuning, sibling=sibling)

    if not tuning.keeps_answers:
        return None, "not used: the entry wants its sessions otherwise"
    path = find_prepared(file, taps)
    sibling = sibling_of(read_model_file(file)) if not taps and tuning.shares_structures else None
    if path is None:
        other = None if sibling is None else find_form(sibling, open_form)
        start = "from its file" if other is None else f"by that of a model like it ({other.path})"
        why = refusal_of(file)
        text = "none here" if why is None else f"none here, {why}"
        return None, f"{text}; it starts {start}, and is optimised when there is time"
    try:
        prepared = PreparedModel(path, file, threads, taps, tuning)
        prepared.check()
    except ArtefactError as error:
        return None, f"not used: {error}"
    text = f"{path} ({path.stat().st_size / 1e6:.1f} MB) fits"
    if sibling is not None and path in noted_forms(sibling.digest):
        text += "; other models of its structure start by it"
    return prepared, text


def _assumed_text(inputs: Sequence[Variable]) -> str:
    """Return what is assumed of the inputs' sizes that the model leaves open."""
    sizes = [size for each in inputs for size in (each.type.shape or (None,))]
    if all(isinstance(size, int) for size in sizes):
        return ""
    return f"; sizes that the model leaves open count as {UNKNOWN_BATCH} (batch) or {UNKNOWN_SIZE}"


def packing_words(kept: KeptSegment) -> str:
    """Return a text on whether a segment's weights are packed, and the measured gain of that."""
    if kept.needs_packing:
        return "packed, as its answers depend on that"
    if kept.gain is None:
        return "packed when there is time, not measured"
    text = f"{kept.gain:.2f} times as fast"
    if kept.batch_gain is not None:
        text += f" for a row, {kept.batch_gain:.2f} times for {SEVERAL_ROWS} rows"
    structure, shared = kept.structure, ""
    if structure is not None:
        shared = f"; of structure {structure.digest[:8]}"
        if not structure.is_lasting:
            shared += (
                ": a start may use a session of another model of that, which runs it at "
                f"{structure.speed:.2f} times the speed of its own"
            )
    words = "stays mapped: packed it would be"
    if kept.packs:
        for_batches = "" if kept.packs_for_a_row else ", for the sake of batches"
        words = f"packed when there is time{for_batches}: then"
    return f"{words} {text}{shared}"


def _crossing_text(names: Sequence[str], types: Mapping[str, TypeProto]) -> str:
    """Return a text on the number of the named tensors and their bytes."""
    sizes = [_bytes_of(types.get(name)) for name in names]
    known_bytes = sum(size for size in sizes if size is not None)
    unknown = sizes.count(None)
    text = f"{known_bytes / 1e6:.2f} MB" if known_bytes >= 10_000 else f"{known_bytes} bytes"
    return f"{counted(len(names), 'tensor')}, {text}" + (
        f" and {unknown} of unknown size" if unknown else ""
    )


def _bytes_of(kind: TypeProto | None) -> int | None:
    """Return the bytes of a tensor, with open sizes assumed; None if they are unknown."""
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    element = kind.tensor_type.elem_type
    if element in (TensorProto.UNDEFINED, TensorProto.STRING):
        return None
    open_sizes = chain([UNKNOWN_BATCH], repeat(UNKNOWN_SIZE))
    dims = zip(kind.tensor_type.shape.dim, open_sizes, strict=False)
    shape = [dim.dim_value if dim.dim_value > 0 else open_size for dim, open_size in dims]
    return helper.tensor_dtype_to_np_dtype(element).itemsize * math.prod(shape)


# The text of ``brisk explain`` on a model on a GPU.


def captured_text(file: Path, device: str, *, every: bool) -> Iterator[str]:
    """Yield lines of text on a model on a GPU. ``every``: list all nodes, inputs and outputs.
    Raises InvalidModelError as a load does."""
    source = BareModel(file, 1, longest_ns=math.inf)
    inputs = (*source.plan.inputs, *source.plan.fixed)
    yield f"{file}: computed by ONNX Runtime's CUDA provider on {device}"
    yield f"  {size_text(source)}"
    yield from _variables_text("input", inputs, every=every)
    yield from _variables_text("output", source.plan.outputs, every=every)
    yield "  a run of batch 1 is captured by the load, which says what it is made of; others when"
    yield "  they come (brisk status, the server's log); what cannot be captured is run as ever"
    for node in source.segments[0].proto.graph.node if every else ():
        domain = f"{shown(node.domain)}." if node.domain else ""
        name = shown(node.name or (node.output[0] if node.output else ""))
        yield f"        {domain}{shown(node.op_type)} {name}"


def _exits(
    file: Path, plan: SegmentPlan, aim: Aim | None
) -> tuple[Mapping[int, tuple[str, ...]], str]:
    """Return the names of the exits that the model would be served with, by the number of segments
    before them, and a text about them. ``aim``: what the entry asks to learn.
    """
    path = latest(file)
    record = present_record(file, aim)
    tried = f"; tried alone: {', '.join(map(str, record.ways))}" if record and record.ways else ""
    if not path.exists():
        told = learning_text(file, aim)
        return {}, f"none; {told}{tried}" if told else "none"
    if aim is None and not caches_file(file).exists():
        return {}, f"none; {path} was learned, for entries that ask for it (brisk_accuracy){tried}"
    try:
        cascade, graph = read_cascade(path, digest_of(file)), read_graph(file)
        places = find_places(plan, graph, cascade)
    except (DamagedFileError, InvalidModelError, OSError) as error:
        return {}, f"{path} is ignored: {error}"
    if places is None or not cascade.levels:
        return {}, f"{path} is ignored: its exits are not values of the model; train again"
    is_learned = not caches_file(file).exists()
    if is_learned and aim is not None and not is_asked_for(cascade, graph, aim):
        return {}, f"none; {path} was learned, but not for {aim}{tried}"
    exits = {
        done: tuple(cascade.exits[index].name for index, _ in found)
        for done, found in places.exits.items()
    }
    if not exits:
        return exits, f"{path} has no exit in use"
    count = counted(sum(map(len, exits.values())), "exit")
    behind = ", ".join(str(done - 1) for done in sorted(exits) if done)
    segments = "segments" if "," in behind else "segment"
    where = [f"behind {segments} {behind}"] if behind else []
    if 0 in exits:
        where.insert(0, "in front of all")
    short = ""
    if aim is not None and cascade.level(aim.accuracy) is None:
        most = cascade.levels[-1].accuracy
        short = f", for requests that ask for {most:.1%} or less: the entry asks for {aim}"
    return exits, f"{count} {' and '.join(where)}, of {path}{short}{tried}"


# Types, sizes and variables.


def _type_text(value: ValueType) -> str:
    """Return a text like ``float32[batch, 3, 224, 224]``; ``?`` stands for an unknown part."""
    shape = (
        "?"
        if value.shape is None
        else ", ".join("?" if d is None else str(d) for d in value.shape)
    )
    container = "" if value.container.value == "tensor" else f"{value.container.value} of "
    return f"{container}{value.dtype or '?'}[{shape}]"


def _variables_text(kind: str, variables: Sequence[Variable], *, every: bool) -> Iterator[str]:
    """Yield a line for each variable, after its ``kind``; only the first few unless ``every``."""
    listed = variables if every else variables[:MOST_VARIABLES]
    for variable in listed:
        optional = " optional" * variable.optional
        yield f"  {kind} {variable.name}: {_type_text(variable.type)}{optional}"
    if len(listed) < len(variables):
        yield f"  and {len(variables) - len(listed)} {kind}s more (--all)"
