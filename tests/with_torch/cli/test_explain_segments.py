"""``brisk explain`` of models that ONNX Runtime computes."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from brisk.cli.application import application
from brisk.cli.views.segments import packing_words
from brisk.doctor.deployment import Severity
from brisk.doctor.installation import artefacts
from brisk.errors import InvalidConfigurationError, InvalidModelError
from brisk.exits.files.learning_record import Aim, LearningRecord, Stage, write_record
from brisk.exits.files.versions import (
    caches_file,
    learned_file,
    make_private_folder,
    samples_folder,
)
from brisk.runtime.sessions.segment_session import load_segment_session
from brisk.segments.model import cutting
from brisk.segments.prepared.form import find_prepared
from brisk.segments.prepared.manifest import KeptSegment
from brisk.segments.sharing import KeptStructure
from support.deployments import deployment
from support.exits.exits_model import make_model
from support.models.segment_models import chain, info, save
from support.server.contradictions import saved


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def _short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "LONGEST_SEGMENT_NS", 50_000)
    monkeypatch.setattr(cutting, "MOST_LOSS", 1.0)


def explained(*arguments: Path | str) -> list[str]:
    words = ["explain", *map(str, arguments)]
    done = CliRunner().invoke(application, words, catch_exceptions=False, standalone_mode=False)
    return done.output.splitlines()


def is_of_segment(line: str) -> bool:
    return re.match(r" {0,3}\d+  \S", line) is not None


def entry(folder: Path, config: str = "") -> Path:
    """An entry with a model of several segments, where these are short."""
    (folder / "1").mkdir(parents=True)
    chain(folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(config)
    return folder


def test_an_operator_of_onnxruntime_alone_is_told_with_its_segment(tmp_path: Path) -> None:
    node = helper.make_node(
        "TransposeMatMul", ["x", "x"], ["y"], domain="com.microsoft", name="square", transB=1
    )
    shapes = [info("x", 4, 4)], [info("y", 4, 4)]
    domains = {"": 17, "com.microsoft": 1}
    path = save(tmp_path / "model.onnx", [node], *shapes, domains=domains)
    lines = explained(path, "--all")
    assert "computed by ONNX Runtime" in lines[0]
    assert lines[-2].startswith("   0  1 node, square: ")
    assert lines[-2].endswith("answers 1 tensor, 64 bytes")
    assert lines[-1].split() == ["com.microsoft.TransposeMatMul", "square"]


def test_a_broken_model_gets_the_error_of_its_load(tmp_path: Path) -> None:
    node = helper.make_node("Nonesuch", ["x"], ["y"])
    path = save(tmp_path / "model.onnx", [node], [info("x", 4)], [info("y", 4)])
    with pytest.raises(InvalidModelError, match="Nonesuch") as told:
        explained(path)
    with pytest.raises(InvalidModelError) as loaded:
        load_segment_session(path, 2, None, None)
    assert str(told.value) == str(loaded.value)


@pytest.mark.usefixtures("_short_segments")
def test_the_summary_comes_first_and_then_a_line_for_each_segment(tmp_path: Path) -> None:
    lines = explained(entry(tmp_path / "net"))
    segments = [line for line in lines if is_of_segment(line)]
    summary = [line for line in lines if not is_of_segment(line)]
    assert lines == [*summary, *segments]
    assert len(summary) < 20
    assert "37 nodes, 12.6 MB of weights" in lines[1]
    assert "  input x: float32[n, 512]" in summary
    assert "  output y: float32[n, 512]" in summary
    assert "  class: normal" in summary
    assert f"  {len(segments)} segments: cut where crossing is cheap" in "\n".join(summary)
    assert "  learned caches: none" in summary
    assert any(line.startswith("  prepared form: none here") for line in summary)
    assert len(segments) > 1
    assert "hands on 1 tensor, 2048 bytes" in segments[0]
    assert "answers 1 tensor, 2048 bytes" in segments[-1]


@pytest.mark.usefixtures("_short_segments")
def test_a_prepared_form_is_told_with_its_gains_or_why_it_does_not_fit(tmp_path: Path) -> None:
    folder = entry(tmp_path / "net")
    file = folder / "1" / "model.onnx"
    assert CliRunner().invoke(application, ["prepare", str(folder)]).exit_code == 0
    prepared = find_prepared(file)
    assert prepared is not None
    lines = explained(folder)
    assert any(line.startswith(f"  prepared form: {prepared} (") for line in lines)
    for line in lines:
        if is_of_segment(line):
            assert ("packed when there is time" in line) or ("stays mapped" in line)
            assert "times as fast" in line
    prepared.chmod(0o600)
    prepared.write_bytes(b"damaged")
    (told,) = (line for line in explained(folder) if line.startswith("  prepared form: "))
    assert f"not used: {prepared}" in told


def test_an_entry_says_its_class_and_how_it_wants_its_sessions(tmp_path: Path) -> None:
    parameters = (("brisk_class", "besteffort"), ("brisk_max_class", "realtime"))
    text = "".join(
        f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'
        for key, value in parameters
    )
    level = "optimization { graph { level: 2 } }"
    lines = explained(entry(tmp_path / "net", text + level))
    assert "  class: besteffort; requests may ask for realtime" in lines
    assert "  prepared form: not used: the entry wants its sessions otherwise" in lines
    (tmp_path / "net" / "config.pbtxt").write_text(text.replace("realtime", "urgent"))
    with pytest.raises(InvalidConfigurationError, match="brisk_max_class"):
        explained(tmp_path / "net")
    (tmp_path / "net" / "config.pbtxt").write_text("parameters {")
    with pytest.raises(InvalidConfigurationError, match=r"config\.pbtxt of"):
        explained(tmp_path / "net")


def whole_text(path: Path) -> str:
    (line,) = (line for line in explained(path) if line.startswith("  1 segment: "))
    return line.removeprefix("  1 segment: ")


def test_a_model_of_one_segment_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = save(tmp_path / "small.onnx", nodes, [info("x", 4)], [info("y", 4)])
    assert whole_text(path).startswith("it is small")
    path = chain(tmp_path / "quick.onnx")
    assert "up to 10 need no cut" in whole_text(path)
    monkeypatch.setattr(cutting, "LONGEST_SEGMENT_NS", 50_000)
    monkeypatch.setattr(cutting, "MOST_LOSS", 0.0)
    assert whole_text(path) == "no boundary is cheap: cuts would cost more than 0% of its time"


def test_half_precision_is_the_reason_of_a_model_that_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "LONGEST_SEGMENT_NS", 1)
    monkeypatch.setattr(cutting, "SMALL_MODEL_BYTES", 0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    half = TensorProto.FLOAT16
    shapes = [info("x", 4, 8, kind=half)], [info("y", 4, 8, kind=half)]
    path = save(tmp_path / "half.onnx", nodes, *shapes, {"w": np.ones((8, 8), np.float16)})
    assert "half precision" in whole_text(path)


def test_many_inputs_are_told_in_part_unless_all_are_asked_for(tmp_path: Path) -> None:
    names = [f"x{number}" for number in range(9)]
    inputs = [info(name, 4) for name in names]
    nodes = [helper.make_node("Sum", names, ["y"])]
    path = save(tmp_path / "model.onnx", nodes, inputs, [info("y", 4)])
    lines = explained(path)
    assert "  and 3 inputs more (--all)" in lines
    assert "  input x8: float32[4]" not in lines
    assert "  input x8: float32[4]" in explained(path, "--all")


def test_exits_are_told_with_the_segments_behind_which_they_stand(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model.onnx")
    lines = explained(model.file)
    (told,) = (line for line in lines if line.startswith("  learned caches: "))
    assert re.search(rf"1 exit behind segment 0, of {caches_file(model.file)}$", told)
    assert f"  cut for them behind: {', '.join(model.cascade.taps)}" in lines
    (first, *others) = (line for line in lines if is_of_segment(line))
    assert first.endswith(f"; exit at {model.name}")
    assert others
    assert not any("exit at" in line for line in others)
    assert any("cut behind what learned caches read" in line for line in lines)


def test_caches_that_do_not_fit_are_told_as_ignored(tmp_path: Path) -> None:
    path = chain(tmp_path / "model.onnx")
    caches_file(path).write_bytes(b"no caches")
    (told,) = (line for line in explained(path) if line.startswith("  learned caches: "))
    assert f"{caches_file(path)} is ignored: " in told


def test_samples_that_find_too_little_room_are_told_with_how_much_would_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_model(tmp_path / "model.onnx")
    caches_file(made.file).unlink()
    make_private_folder(made.file)
    record = LearningRecord(Stage.REFUSED, Aim(0.98), 2966, 1483, 1, 0.0, "nothing is shorter")
    write_record(made.file, record)
    (samples_folder(made.file) / f"{1:020}-1-5.npz").write_bytes(bytes(2**20))
    monkeypatch.setenv("BRISK_SAMPLES_MIB", "2")
    (line,) = (line for line in explained(made.file) if "learned caches" in line)
    told = "BRISK_SAMPLES_MIB keeps 10 samples at most: set it to 593 to keep 2,966"
    assert f"none; {told}; does not" in line


def test_an_entry_that_has_learned_nothing_yet_says_what_it_asks_for(tmp_path: Path) -> None:
    asks = 'parameters { key: "brisk_accuracy" value { string_value: "0.98" } }'
    net = entry(tmp_path / "net", asks)
    asked = (
        "  learned caches: none; brisk_accuracy 0.98 is learned from the traffic: "
        "{} of 2,027 samples are there"
    )
    assert asked.format(0) in explained(net)
    file = net / "1" / "model.onnx"
    make_private_folder(file)
    write_record(file, LearningRecord(Stage.REFUSED, Aim(0.9), reason="of another promise"))
    (samples_folder(file) / f"{1:020}-1-5.npz").write_bytes(b"five rows")
    assert asked.format(5) in explained(net)
    (net / "config.pbtxt").write_text(asks + "sequence_batching { state { input_name: 'a' } }")
    assert not any("is learned from the traffic" in line for line in explained(net))


def test_an_entry_of_which_nothing_can_be_learned_says_so_before_a_server_runs(
    tmp_path: Path,
) -> None:
    net = entry(
        tmp_path / "net", 'parameters { key: "brisk_accuracy" value { string_value: "0.98" } }'
    )
    image = (TensorProto.FLOAT, ["b", 4, 2])
    saved(net / "1", [("x", *image)], [("y", *image)])
    (told,) = (line for line in explained(net) if "learned caches" in line)
    assert told.startswith(
        "  learned caches: none; not for this model: set brisk_tolerance in the entry"
    )


def test_sizes_are_assumed_only_where_the_model_leaves_them_open(tmp_path: Path) -> None:
    path = saved(tmp_path)
    times = "  times: predicted, of one thread"
    assumed = "sizes that the model leaves open count as 1 (batch) or 128"
    assert f"{times}; {assumed}" in explained(path)
    fixed = (TensorProto.FLOAT, [1, 4])
    saved(tmp_path, [("x", *fixed)], [("y", *fixed)])
    assert times in explained(path)


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        (
            (0.8, 1.3),
            "packed when there is time, for the sake of batches: then 0.80 times as fast for a "
            "row, 1.30 times for 4 rows",
        ),
        ((1.2, None), "packed when there is time: then 1.20 times as fast"),
        (
            (1.01, 1.1),
            "stays mapped: packed it would be 1.01 times as fast for a row, 1.10 times for 4 rows",
        ),
    ],
)
def test_why_a_segment_is_packed_is_told(gains: tuple[float, float | None], words: str) -> None:
    kept = KeptSegment(0, (), (), *gains, None, needs_packing=False, digest="")
    assert packing_words(kept) == words
    structure = KeptStructure(0, "0123456789", (), (), (), (), 0.82, is_lasting=False)
    told = packing_words(replace(kept, structure=structure))
    assert told.startswith(f"{words}; of structure 01234567: a start may use a session of another")
    assert told.endswith("at 0.82 times the speed of its own")


def test_what_is_known_of_another_file_in_the_models_place_is_not_told(tmp_path: Path) -> None:
    asks = 'parameters { key: "brisk_accuracy" value { string_value: "0.98" } }'
    net = entry(tmp_path / "net", asks)
    file = net / "1" / "model.onnx"
    make_private_folder(file)
    aim = Aim.of(file, 0.98, "", "")
    write_record(file, LearningRecord(Stage.UNFIT, aim, reason="no scores"))
    assert "  learned caches: none; not for this model: no scores" in explained(net)
    os.utime(file)
    told = next(line for line in explained(net) if "learned caches" in line)
    assert "brisk_accuracy 0.98 is learned from the traffic: 0 of" in told
    (net / "config.pbtxt").write_text("")
    assert "  learned caches: none" in explained(net)


def test_what_was_learned_is_served_only_where_an_entry_asks_for_it(tmp_path: Path) -> None:
    made = make_model(tmp_path / "model.onnx")
    make_private_folder(made.file)
    caches_file(made.file).rename(learned_file(made.file))
    text = "\n".join(explained(made.file))
    assert f"none; {learned_file(made.file)} was learned, for entries that ask for it" in text


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"brisk_accuracy": "0.97"}, r"1 exit behind segment \d+, of .*learned\.caches"),
        (
            {"brisk_accuracy": "0.995"},
            r"1 exit .*, for requests that ask for 99\.0% or less: the entry asks for 99\.5%",
        ),
        (
            {"brisk_accuracy": "0.97", "brisk_tolerance": "cosine 0.9"},
            r"none; .*learned\.caches was learned, but not for 97\.0% cosine 0\.9",
        ),
    ],
)
def test_exits_are_told_only_if_the_entry_is_served_with_them(
    asked: dict[str, str], told: str, tmp_path: Path
) -> None:
    version = tmp_path / "net" / "1"
    version.mkdir(parents=True)
    made = make_model(version / "model.onnx")
    make_private_folder(made.file)
    caches_file(made.file).rename(learned_file(made.file))
    form = 'parameters {{ key: "{}" value: {{ string_value: "{}" }} }}\n'
    text = "".join(form.format(*each) for each in asked.items())
    (tmp_path / "net" / "config.pbtxt").write_text(text)
    lines = explained(tmp_path / "net")
    (line,) = (line for line in lines if line.startswith("  learned caches: "))
    assert re.search(told, line), line
    assert any("cut for them" in line for line in lines)
    (tmp_path / "net" / "config.pbtxt").write_text("")
    assert not any("cut for them" in line for line in explained(tmp_path / "net"))


@pytest.mark.parametrize("asks", [False, True])
def test_a_form_is_prepared_for_what_the_entry_is_served_with(tmp_path: Path, asks: bool) -> None:
    version = tmp_path / "net" / "1"
    version.mkdir(parents=True)
    made = make_model(version / "model.onnx")
    make_private_folder(made.file)
    caches_file(made.file).rename(learned_file(made.file))
    said = 'parameters { key: "brisk_accuracy" value { string_value: "0.97" } }'
    (tmp_path / "net" / "config.pbtxt").write_text(said if asks else "")
    assert CliRunner().invoke(application, ["prepare", str(tmp_path / "net")]).exit_code == 0
    forms = [find_prepared(made.file, taps) is not None for taps in (made.cascade.taps, ())]
    assert forms == [asks, not asks]
    (finding,) = artefacts(deployment(tmp_path, repositories=(tmp_path,), environment=os.environ))
    assert finding.verdict is Severity.GOOD
