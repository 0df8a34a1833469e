"""Preparing a model: whole or nothing, by one process, whatever ends it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from brisk.artefacts import content, room, store
from brisk.artefacts.content import find_folder, writable_folder
from brisk.errors import ArtefactError, InvalidModelError, UnavailableError
from brisk.segments.frame import run_serially
from brisk.segments.prepared import preparation, saving
from brisk.segments.prepared.form import PreparedModel, find_prepared, open_saved
from brisk.segments.prepared.preparation import prepare
from brisk.segments.starting import open_warm_program
from support.models.segment_models import chain
from support.runtime.runtime_processes import hurry
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("private_cache", "short_segments")

THREADS = 2


def test_the_published_file_cannot_be_written(model: Path) -> None:
    status = prepare(model, THREADS).path.stat()
    assert status.st_mode & 0o777 == 0o400


def test_a_model_that_reads_strings_is_prepared_though_nothing_can_try_it(tmp_path: Path) -> None:
    """Inputs are made up as OrtValues, which strings have none of."""
    path = tmp_path / "strings.onnx"
    strings = [helper.make_tensor_value_info(name, TensorProto.STRING, [2]) for name in "abc"]
    node = helper.make_node("StringConcat", ["a", "b"], ["c"])
    graph = helper.make_graph([node], "strings", strings[:2], strings[2:])
    opset = helper.make_opsetid("", 20)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)
    source = PreparedModel(prepare(path, THREADS).path, path, THREADS)
    assert [kept.gain for kept in source.kept] == [None]
    program = open_warm_program(source)
    words = np.array(["ä", "b"], object)
    assert run_serially(program, {"a": words, "b": words})["c"].tolist() == ["ää", "bb"]


def test_a_full_disk_is_an_error_and_leaves_nothing(model: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (4096, 3 << 20):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises((OSError, InvalidModelError), match=r"too large|disk|cannot save"):
                prepare(model, THREADS)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert find_folder(model) is None


def test_a_disk_without_room_is_told_before_anything_is_saved(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = type(saving.shutil.disk_usage("/"))(10, 9, 1)
    monkeypatch.setattr(saving.shutil, "disk_usage", lambda folder: full)
    with pytest.raises(OSError, match="1 bytes are free"):
        prepare(model, THREADS)
    assert find_folder(model) is None


def test_an_interrupted_preparation_leaves_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gains = iter(([1.0, 1.0], [1.0, 1.0]))

    def stop(*arguments: object) -> list[float]:
        try:
            return next(gains)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(preparation, "gains", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare(model, THREADS)
    assert find_folder(model) is None


def test_the_session_that_was_saved_is_gone_before_one_with_packed_weights_is_made(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a copy of all weights."""
    saved: list[weakref.ref[Any]] = []

    def save(*arguments: Any) -> Any:
        optimised, session = saving.save_optimised(*arguments)
        saved.append(weakref.ref(session))
        return optimised, session

    def open_one(*arguments: Any, packs: bool, **options: Any) -> Any:
        assert not packs or saved[-1]() is None
        return open_saved(*arguments, packs=packs, **options)

    monkeypatch.setattr(preparation, "save_optimised", save)
    monkeypatch.setattr(preparation, "open_saved", open_one)
    prepare(model, THREADS)
    assert len(saved) > 1


def test_what_a_killed_builder_left_is_removed_by_the_next(model: Path) -> None:
    directory = writable_folder(model)
    (directory / ".draft-dead").mkdir()
    (directory / ".draft-dead" / "optimised.bin").write_bytes(bytes(99))
    (directory / ".0123-4567.segments.abc").write_bytes(bytes(99))
    prepare(model, THREADS)
    assert [each for each in directory.iterdir() if each.name.startswith(".")] == []


def test_who_comes_second_leaves_it_to_the_first(model: Path) -> None:
    with store.locked(writable_folder(model)) as is_ours:
        assert is_ours
        with pytest.raises(UnavailableError, match="another process prepares"):
            prepare(model, THREADS)


def replaced_while_prepared(
    model: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, *, before: bool
) -> None:
    """Prepare a model that is replaced just before or after the first call of ``owner.name``: no
    form may have its name for a moment, as a server might map it then."""
    other = chain(model.with_name("other.onnx"), seed=9).read_bytes()
    called = getattr(owner, name)
    published: list[str] = []

    def replace_model() -> None:
        if model.read_bytes() != other:
            model.with_name("new.onnx").write_bytes(other)
            model.with_name("new.onnx").replace(model)

    def call(*arguments: Any) -> Any:
        if before:
            replace_model()
        result = called(*arguments)
        replace_model()
        return result

    def rename(source: str, target: Path, named: Any = os.rename) -> None:
        published.append(Path(target).suffix)
        named(source, target)

    with monkeypatch.context() as patches:
        patches.setattr(owner, name, call)
        patches.setattr(os, "rename", rename)
        with pytest.raises(InvalidModelError, match="has changed while it was prepared"):
            prepare(model, THREADS)
    assert room.ARTEFACT not in published
    assert not any(store.artefacts_directory().glob(f"*/*/*{room.ARTEFACT}"))


@pytest.mark.parametrize(
    ("owner", "name", "before"),
    [
        (preparation, "check_alike", True),
        (content, "content_of", True),
        (content, "writable_folder", False),
    ],
    ids=["before it is tried", "before it is digested", "before it is mapped"],
)
def test_a_model_that_is_replaced_meanwhile_gets_no_form(
    model: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, before: bool
) -> None:
    replaced_while_prepared(model, monkeypatch, owner, name, before=before)


def test_a_model_that_is_replaced_before_it_is_cut_anew_gets_no_form(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = preparation.differing_output
    answers = iter(("y",))
    monkeypatch.setattr(
        preparation, "differing_output", lambda *given: next(answers, None) or compare(*given)
    )
    replaced_while_prepared(model, monkeypatch, preparation, "differing_output", before=False)


def test_what_answers_otherwise_than_before_it_was_saved_is_not_published(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ONNX Runtime's writing, staged: one weight comes back as zeros."""
    take = saving._take_weights

    def lose_one(*arguments: object) -> tuple[saving.Weight, ...]:
        first, *others = take(*arguments)
        return (replace(first, data=np.zeros_like(first.data)), *others)

    monkeypatch.setattr(saving, "_take_weights", lose_one)
    with pytest.raises(InvalidModelError, match="other answers than before"):
        prepare(model, THREADS)
    assert find_prepared(model) is None


def test_a_form_larger_than_allowed_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brisk.segments.prepared.preparation.SPARE_BYTES", 0)
    with pytest.raises(InvalidModelError, match="takes more than"):
        prepare(model, THREADS, disk_factor=0.5)


def end_of(builder: subprocess.Popen[str]) -> str:
    """Wait for a process that gets idle processors only; what it has said."""
    wait_until(lambda: hurry([builder.pid]) or builder.poll() is not None, "its end")
    return builder.communicate()[1]


def test_the_builder_process_prepares_without_torch_and_steps_aside(model: Path) -> None:
    script = (
        "import sys\nfrom brisk.runtime.models import background_prepare as builder\n"
        "sys.argv[1:] = builder.arguments(*eval(sys.argv[1]))\n"
        "status = builder.main()\n"
        "assert 'torch' not in sys.modules\n"
        "sys.exit(status)\n"
    )
    words = f"({str(model)!r}, 2, ())"
    for _ in range(2):
        program = [sys.executable, "-c", script, words]
        with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as builder:

            def has_stepped_aside(process: int = builder.pid) -> bool:
                is_idle = os.sched_getscheduler(process) == os.SCHED_IDLE
                return is_idle or os.getpriority(os.PRIO_PROCESS, process) == 19

            wait_until(has_stepped_aside, "the end of its precedence")
            said = end_of(builder)
        assert builder.returncode == 0, said
    assert find_prepared(model) is not None


def test_the_builder_process_says_why_a_model_has_no_prepared_form(tmp_path: Path) -> None:
    from brisk.runtime.models.background_prepare import REFUSED, arguments

    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    program = [sys.executable, "-m", "brisk.runtime.models.background_prepare"]
    program += arguments(path, 2, ())
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as builder:
        said = end_of(builder)
    assert builder.returncode == REFUSED
    assert said.count("\n") == 1
    assert "not a complete ONNX model" in said


def test_data_lies_beside_the_path_also_where_that_is_a_link(tmp_path: Path) -> None:
    """ONNX Runtime looks there, and not beside what the link leads to."""
    version = tmp_path / "entry" / "1"
    (version / "real").mkdir(parents=True)
    chain(version / "real" / "model.onnx", save_as_external_data=True, location="weights.bin")
    (version / "real" / "weights.bin").rename(version / "weights.bin")
    link = version / "model.onnx"
    link.symlink_to("real/model.onnx")
    made = prepare(link, THREADS).path
    PreparedModel(made, link, THREADS)
    data = version / "weights.bin"
    data.write_bytes(data.read_bytes()[::-1])
    with pytest.raises(ArtefactError, match="has changed since it was made"):
        PreparedModel(made, link, THREADS)
