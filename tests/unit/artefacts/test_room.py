"""The room of artefacts on disk: the least recently used make room, what is mapped stays."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from typer.testing import CliRunner

from brisk.artefacts import content, room, store
from brisk.artefacts.container import Container
from brisk.cli.application import application
from brisk.doctor.installation import artefacts
from brisk.errors import ArtefactError, InvalidConfigurationError
from brisk.ownership import hold
from brisk.segments.frame import run_serially
from brisk.segments.prepared.form import PreparedModel, find_prepared
from brisk.segments.prepared.preparation import prepare
from brisk.segments.starting import open_warm_program
from support.deployments import deployment
from support.models.segment_models import chain, whole
from support.runtime.external_data import LOCATION, rename_over, write_external
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("private_cache")

MIB = 1 << 20


def prepared(folder: Path, number: int) -> Path:
    """The form of a model of 1 MiB that differs from the others."""
    folder.mkdir(exist_ok=True)
    model = chain(folder / f"{number}.onnx", layers=1, width=512, seed=number)
    return prepare(model, 1).path


def used_at(artefact: Path, seconds: int) -> None:
    os.utime(artefact.with_suffix(room.USED), (seconds, seconds))


def test_a_copy_is_started_from_the_form_of_the_first(tmp_path: Path) -> None:
    model = chain(tmp_path / "model.onnx", layers=1, width=64)
    form = prepare(model, 1).path
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "another name.onnx"
    copy.write_bytes(model.read_bytes())
    assert find_prepared(copy) == form
    PreparedModel(form, copy, 1).check()
    model.unlink()
    assert find_prepared(copy) == form
    assert find_prepared(model) is None


def test_models_that_differ_in_other_files_have_forms_of_their_own(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two", "same")]
    for folder, value in zip(folders, (5, 6, 5), strict=True):
        folder.mkdir()
        write_external(folder, "initialiser")
        rename_over(folder / LOCATION, value)
    one, two, same = (folder / "model.onnx" for folder in folders)
    assert one.read_bytes() == two.read_bytes()
    first, second = prepare(one, 1).path, prepare(two, 1).path
    assert first != second
    assert first.parent == second.parent
    assert find_prepared(same) == first
    (folders[0] / LOCATION).unlink()
    assert find_prepared(one) is None
    assert find_prepared(two) == second


def test_the_least_recently_used_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forms = [prepared(tmp_path / "models", number) for number in range(3)]
    for form in forms:
        room.note_use(form)
    used_at(forms[0], 300)
    used_at(forms[1], 100)
    used_at(forms[2], 200)
    monkeypatch.setenv("BRISK_CACHE_MIB", "4")
    added = prepared(tmp_path / "models", 3)
    assert [each.exists() for each in (*forms, added)] == [True, False, True, True]
    assert not forms[1].parent.exists()
    assert content.find_folder(tmp_path / "models" / "1.onnx") is None
    monkeypatch.setenv("BRISK_CACHE_MIB", "1")
    with pytest.raises(OSError, match=r"may take 1 MiB \(BRISK_CACHE_MIB\)"):
        prepared(tmp_path / "models", 1)
    assert [each.exists() for each in (*forms, added)] == [True, False, True, True]


def test_explain_and_doctor_tell_of_a_form_that_was_not_kept_for_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def text_of(number: int) -> str:
        model = repository / f"{number}" / "1" / "model.onnx"
        answer = CliRunner().invoke(application, ["explain", str(model)])
        (line,) = (each for each in answer.output.splitlines() if "prepared form: " in each)
        own = {"environment": os.environ, "repositories": (repository,)}
        texts = [each.found for each in artefacts(deployment(tmp_path, **own))]
        text = next((each for each in texts if str(model) in each), "")
        assert text.partition("has none here: ")[2] in line
        return text

    repository = tmp_path / "models"
    for number in range(2):
        (repository / f"{number}" / "1").mkdir(parents=True)
        chain(repository / f"{number}" / "1" / "model.onnx", layers=2, width=512, seed=number)
        assert text_of(number) == ""
    monkeypatch.setenv("BRISK_CACHE_MIB", "1")
    with pytest.raises(room.NoRoomError, match="with this one those that are in use take"):
        prepare(repository / "0" / "1" / "model.onnx", 1)
    assert "it was not kept for its size: it takes 3 MiB, the others here 0, and" in text_of(0)
    assert "all together may take 1 (BRISK_CACHE_MIB=3 has room for it)" in text_of(0)
    monkeypatch.setenv("BRISK_CACHE_MIB", "4")
    prepare(repository / "0" / "1" / "model.onnx", 1)
    prepare(repository / "1" / "1" / "model.onnx", 1)
    assert "the others here 3, and all together may take 4 (BRISK_CACHE_MIB=5 has" in text_of(0)
    assert text_of(1) == ""
    monkeypatch.setenv("BRISK_CACHE_MIB", "6")
    prepare(repository / "0" / "1" / "model.onnx", 1)
    assert text_of(0) == ""


def test_what_is_mapped_stays_until_its_last_user_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = prepared(tmp_path / "models", 0)
    model = tmp_path / "models" / "0.onnx"
    program = open_warm_program(PreparedModel(form, model, 1))
    monkeypatch.setenv("BRISK_CACHE_MIB", "2")
    with pytest.raises(OSError, match="those that are in use take"):
        prepared(tmp_path / "models", 1)
    assert form.exists()
    assert room.is_held(form)
    assert not room.remove(form)
    rows = {"x": np.random.default_rng(5).standard_normal((1, 512)).astype(np.float32)}
    answer = run_serially(program, rows)["y"]
    np.testing.assert_allclose(answer, whole(model, rows)["y"], 1e-5, 1e-5)
    del program
    gc.collect()
    wait_until(lambda: not room.is_held(form), "the lock's end")
    prepared(tmp_path / "models", 1)
    assert not form.exists()


def test_all_are_counted_only_where_they_may_be_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    monkeypatch.setattr(
        room, "kept_artefacts", lambda count=room.kept_artefacts: [counts.append(1), count()][1]
    )
    monkeypatch.setenv("BRISK_CACHE_MIB", "4")
    tally = store.artefacts_directory() / "taken"
    forms = [prepared(tmp_path / "models", number) for number in range(3)]
    assert len(counts) == 2, "before there was a tally"
    assert int(tally.read_text()) == sum(form.stat().st_size for form in forms)
    for form in forms[:2]:
        assert room.remove(form)
    added = [prepared(tmp_path / "models", number) for number in range(3, 5)]
    assert len(counts) == 4, "what was removed does not make the others go"
    assert all(form.exists() for form in (forms[2], *added))
    assert int(tally.read_text()) == sum(form.stat().st_size for form in (forms[2], *added))
    for text in (b"", b"many", b"-7", b"\xff" * 100, b"9" * 5000):
        tally.write_bytes(text)
        with pytest.raises(OSError, match=r"may take 4 MiB \(BRISK_CACHE_MIB\): .* take 5$"):
            room.make_room((4 << 20) + 1)
        room.make_room(0)
        assert int(tally.read_bytes()) == sum(form.stat().st_size for form in (forms[2], *added))


def test_a_form_that_has_room_and_is_not_published_yet_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bringing it to the disk may take seconds, in which others make room for theirs."""
    monkeypatch.setenv("BRISK_CACHE_MIB", "4")
    first = prepared(tmp_path / "models", 0)
    size, publish = first.stat().st_size, store.publish

    def publish_late(target: Path, write: Callable[[BinaryIO], object], **options: bool) -> None:
        def write_and_wait(file: BinaryIO) -> None:
            write(file)
            if target.suffix == room.ARTEFACT:
                room.make_room(2 * size)

        publish(target, write_and_wait, **options)

    monkeypatch.setattr(store, "publish", publish_late)
    assert 3 * size <= 4 * MIB < 4 * size
    second = prepared(tmp_path / "models", 1)
    assert second.exists()
    assert not first.exists()


def test_a_complete_draft_of_a_killed_builder_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = prepared(tmp_path / "models", 0)
    draft = form.with_name(f".{form.name}.killed")
    draft.write_bytes(bytes(4 * MIB))
    draft.chmod(room.COMPLETE)
    monkeypatch.setenv("BRISK_CACHE_MIB", "4")
    (store.artefacts_directory() / "taken").unlink()
    assert prepared(tmp_path / "models", 1).exists()
    assert form.exists()
    assert not draft.exists()


def test_folders_that_come_and_go_while_all_are_listed_are_no_error(tmp_path: Path) -> None:
    """Where a thousand models come and go, a form was not made for that: no such file."""
    kept = prepared(tmp_path / "models", 1)
    has_ended = threading.Event()

    def come_and_go() -> None:
        for number in itertools.cycle(range(50)):
            folder = store.artefacts_directory() / f"{number:016x}" / "settings"
            folder.mkdir(parents=True)
            folder.rmdir()
            folder.parent.rmdir()
            if has_ended.is_set():
                return

    others = threading.Thread(target=come_and_go)
    others.start()
    try:
        for _ in range(2000):
            assert [each.path for each in room.kept_artefacts()] == [kept]
            room.sweep()
    finally:
        has_ended.set()
        others.join()


def test_what_another_process_maps_stays(tmp_path: Path) -> None:
    form = prepared(tmp_path / "models", 0)
    script = (
        "import sys\nfrom pathlib import Path\nfrom brisk.artefacts.container import Container\n"
        "view = Container(Path(sys.argv[1])).view(0)\nprint('mapped', flush=True)\ninput()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(form)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == "mapped\n"
        assert not room.remove(form)
        assert form.exists()
        user.communicate("\n")
    assert room.remove(form)
    assert not form.exists()


def test_what_is_being_removed_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = prepared(tmp_path / "models", 0)
    with store.locked(form) as is_ours:
        assert is_ours
        with pytest.raises(ArtefactError, match="it is being removed"):
            Container(form)
    opened = os.open(form, os.O_RDONLY)
    assert hold(opened)
    os.close(opened)
    opened = os.open(form, os.O_RDONLY)
    assert room.remove(form)
    assert not hold(opened), "it has gone since it was opened"
    os.close(opened)


def test_an_opening_waits_for_who_only_looks_whether_it_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = prepared(tmp_path / "models", 0)
    with contextlib.ExitStack() as looking:
        assert looking.enter_context(store.locked(form))
        monkeypatch.setattr(room.time, "sleep", lambda seconds: looking.close())
        held = Container(form)
    assert room.is_held(form)
    del held


def test_a_form_that_is_published_just_before_its_folder_is_tidied_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = content.writable_folder(chain(tmp_path / "model.onnx", layers=1, width=64))
    form = folder / f"form{room.ARTEFACT}"
    lock = store.locked

    def publish_and_lock(path: Path) -> contextlib.AbstractContextManager[bool]:
        form.write_bytes(b"form")
        return lock(path)

    monkeypatch.setattr(store, "locked", publish_and_lock)
    room.tidy(folder)
    assert form.exists()


def with_remnants(model: Path) -> Path:
    """The folder of the model's artefacts, with what a killed builder leaves."""
    folder = content.writable_folder(model)
    (folder / f"{room.DRAFT}dead").mkdir()
    (folder / f"{room.DRAFT}dead" / "optimised.bin").write_bytes(bytes(99))
    (folder / f".0123{room.ARTEFACT}.abc").write_bytes(bytes(99))
    return folder


def test_what_killed_builders_left_goes_with_the_next_form_or_a_clearing(tmp_path: Path) -> None:
    form = prepared(tmp_path / "models", 0)
    models = [chain(tmp_path / f"{name}.onnx", layers=1, seed=name) for name in (7, 8)]
    folders = [with_remnants(model) for model in (*models, tmp_path / "models" / "0.onnx")]
    with store.locked(folders[1]):
        room.make_room(0)
        assert all(folder.exists() for folder in folders), "all were looked at a moment ago"
        stamp = store.artefacts_directory() / room.SWEPT
        os.utime(stamp, (0.0, stamp.stat().st_mtime - room.SWEEP_S))
        room.make_room(0)
        assert [folder.exists() for folder in folders] == [False, True, True]
        assert list(folders[2].glob(".*")) == [], "its own builder left it"
        assert len(list(folders[1].glob(".*"))) == 2, "somebody builds there"
    assert form.exists()
    CliRunner().invoke(application, ["cache", "clear", "--unused-days", "1"])
    assert [folder.exists() for folder in folders] == [False, False, True]
    assert form.exists()


def test_the_removal_of_a_form_takes_along_what_killed_builders_left(tmp_path: Path) -> None:
    form = prepared(tmp_path / "models", 0)
    with_remnants(tmp_path / "models" / "0.onnx")
    assert room.remove(form)
    assert not form.parent.exists()


def test_the_limit_is_a_share_of_the_disk_unless_it_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_path / "models", 0)
    monkeypatch.delenv("BRISK_CACHE_MIB", raising=False)
    status = os.statvfs(store.artefacts_directory())
    assert room.limit() == int(status.f_blocks * status.f_frsize * 0.25)
    monkeypatch.setenv("BRISK_CACHE_MIB", "7")
    assert room.limit() == 7 * MIB
    for text in ("0", "-1", "1.5", "many", "٣"):
        monkeypatch.setenv("BRISK_CACHE_MIB", text)
        with pytest.raises(InvalidConfigurationError, match=rf"whole number .* not '{text}'"):
            room.limit()


def test_the_command_lists_what_is_kept_and_clears_what_nobody_uses(tmp_path: Path) -> None:
    folder = tmp_path / "models[v1]:x:"  # no markup, and no emoji
    forms = [prepared(folder, number) for number in range(2)]
    held = Container(forms[1])
    listed = CliRunner().invoke(application, ["cache", "list"], env={"COLUMNS": "250"})
    assert listed.exit_code == 0, listed.output
    rows = [line for line in listed.stdout.splitlines() if ".onnx" in line]
    assert [(" yes " in row, f"{folder}/1.onnx" in row) for row in rows] == [
        (True, True),
        (False, False),
    ]
    assert "2 in " in listed.stdout
    cleared = CliRunner().invoke(application, ["cache", "clear", "--unused-days", "1"])
    assert "removed 0 of 0.0 MiB; 0 are in use" in cleared.stdout
    wait_until(lambda: not room.is_held(forms[0]), "the end of the listing's lock")
    cleared = CliRunner().invoke(application, ["cache", "clear"])
    assert "removed 1 of " in cleared.stdout
    assert "; 1 are in use" in cleared.stdout
    assert [form.exists() for form in forms] == [False, True]
    del held
    wait_until(lambda: not room.is_held(forms[1]), "the lock's end")
    CliRunner().invoke(application, ["cache", "clear"])
    empty = CliRunner().invoke(application, ["cache", "list"])
    assert "holds no prepared form" in empty.stdout


def test_forms_that_are_no_longer_readable_are_listed_and_cleared(tmp_path: Path) -> None:
    form = prepared(tmp_path / "models", 0)
    form.unlink()
    form.write_bytes(b"no form")
    listed = CliRunner().invoke(application, ["cache", "list"], env={"COLUMNS": "250"})
    assert "not usable" in listed.stdout
    CliRunner().invoke(application, ["cache", "clear"])
    assert room.kept_artefacts() == []
