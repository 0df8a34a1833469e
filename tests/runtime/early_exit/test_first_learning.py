"""Early answers that nobody has trained, in a real runtime: collected for, then served."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from brisk.exits.cascade_file import write_cascade
from brisk.exits.files.learning_record import (
    Aim,
    LearningRecord,
    Stage,
    collected,
    read_record,
    write_record,
)
from brisk.exits.files.sample_files import read_samples_file
from brisk.exits.files.versions import (
    caches_file,
    learned_file,
    private_folder,
    samples_folder,
)
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.runtime.early_exit.cache_watch import LOOK_S
from brisk.settings import cache_directory
from brisk.telemetry.observer import Observer
from brisk_bench.samples.writer import GraphWriter
from support.exits.cascades import network
from support.exits.exits_model import MILLION, Model, ask, make_model, taken, with_smaller
from support.runtime.runtime_process import describe, end_processes, opened, quick_model
from support.runtime.runtime_processes import hurry_helpers
from support.waiting import wait_until

PPM = 970_000


@pytest.fixture(autouse=True)
def _cache(place: RuntimePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test looks where the runtime does."""
    monkeypatch.setenv("BRISK_CACHE_DIR", str(place.base.parent / "cache"))


@pytest.fixture(scope="module")
def place() -> Iterator[RuntimePaths]:
    parent = Path(tempfile.mkdtemp(prefix="brisk-"))
    compiled = cache_directory() / "native"
    compiled.mkdir(parents=True, exist_ok=True)
    (parent / "cache").mkdir()
    (parent / "cache" / "native").symlink_to(compiled.resolve())
    own = RuntimePaths(parent / "runtime", "cpu")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("BRISK_CACHE_DIR", str(parent / "cache"))
        environment.setenv("BRISK_THREADS", "1")
        environment.setenv("BRISK_ARTEFACTS", "off")
        with opened(own, describe(quick_model(parent / "quick.onnx"))):  # keeps it alive
            yield own
    end_processes(own)
    shutil.rmtree(parent)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """Without caches beside it."""
    made = make_model(tmp_path / "model.onnx")
    caches_file(made.file).unlink()
    return made


def learning(place: RuntimePaths, model: Path) -> str:
    """What the status says of it. Who asks waits for a process on idle processors."""
    hurry_helpers(place.base)
    with Observer(place, Role.FOREGROUND) as observer:
        found = [each for each in observer.status().models if str(model).endswith(each.path)]
    return found[0].learning


def await_record(place: RuntimePaths, model: Path) -> None:
    def is_there() -> bool:
        hurry_helpers(place.base)
        return read_record(model) is not None

    wait_until(is_there, "a record", every_s=0.1)


def has_learned(place: RuntimePaths, model: Model) -> None:
    """The model has been served, and its traffic has taught what is promised at 97 %."""
    with opened(place, describe(model.file, max_batch_size=64, accuracy_ppm=PPM)):
        await_record(place, model.file)
    write_record(model.file, LearningRecord(Stage.SERVED, Aim(0.97), 0, 1000, 1, 1.5))
    write_cascade(learned_file(model.file), model.cascade)


def test_traffic_is_collected_and_what_was_learned_is_served(
    place: RuntimePaths, model: Model
) -> None:
    with opened(place, describe(model.file, max_batch_size=64, accuracy_ppm=PPM)) as connection:
        wait_until(
            lambda: learning(place, model.file).startswith("collecting: 0 of 1,345"),
            "a process that has looked at the model",
        )
        record = read_record(model.file)
        aim = Aim.of(model.file, 0.97, "", "")
        digest = model.cascade.model_digest
        assert record == LearningRecord(Stage.COLLECTING, aim, wanted=1345, model_digest=digest)

        def is_written() -> bool:
            assert taken(ask(connection, model.easy[:1])) == "", "nothing has been learned yet"
            return collected(model.file)[0] > 0

        wait_until(is_written, "samples of the runs")
        (file, *_) = sorted(samples_folder(model.file).glob("*.npz"))
        (sampled,) = read_samples_file(file)
        assert list(sampled) == ["image"]
        np.testing.assert_array_equal(sampled["image"][:1], model.easy[:1])
        write_record(model.file, LearningRecord(Stage.SERVED, Aim(0.97), 0, 1000, 1, 1.5))
        write_cascade(learned_file(model.file), model.cascade)
        wait_until(lambda: taken(ask(connection, model.easy[:1])) == model.name, "an early answer")
        assert taken(ask(connection, model.hard[:1])) == ""
        assert learning(place, model.file) == "learned from 1,000 samples: likely 1.50 ×"
    with opened(place, describe(model.file, max_batch_size=64, accuracy_ppm=PPM)) as connection:
        wait_until(lambda: taken(ask(connection, model.easy[:1])) == model.name, "after a load")
        wait_until(
            lambda: learning(place, model.file).startswith("learned from 1,000 samples"),
            "what it was learned from",
        )


def test_requests_that_opt_out_are_not_sampled_while_samples_are_collected(
    place: RuntimePaths, model: Model
) -> None:
    with opened(place, describe(model.file, max_batch_size=64, accuracy_ppm=PPM)) as connection:
        wait_until(lambda: learning(place, model.file).startswith("collecting: "), "a look")
        for _ in range(20):
            ask(connection, model.hard[:1], ppm=MILLION).output()

        def is_written() -> bool:
            ask(connection, model.hard[:1], ppm=MILLION).output()
            ask(connection, model.easy[:1]).output()
            return collected(model.file)[0] > 0

        wait_until(is_written, "samples of the other runs")
        (file, *_) = sorted(samples_folder(model.file).glob("*.npz"))
        (sampled,) = read_samples_file(file)
        assert {row.tobytes() for row in sampled["image"]} == {model.easy[0].tobytes()}


def test_what_was_learned_of_another_model_is_learned_anew(
    place: RuntimePaths, model: Model
) -> None:
    write = private_folder(model.file)
    with opened(place, describe(model.file, accuracy_ppm=PPM)):
        await_record(place, model.file)
    assert write.is_dir()
    write_record(model.file, LearningRecord(Stage.SERVED, Aim(0.97), 0, 1000, 1, 1.5))
    write_cascade(learned_file(model.file), model.cascade)
    changed = onnx.load(model.file)
    changed.producer_name = "somebody else"
    onnx.save(changed, model.file)
    with opened(place, describe(model.file, accuracy_ppm=PPM)):
        wait_until(
            lambda: learning(place, model.file).startswith("collecting: "), "a new beginning"
        )
    assert not learned_file(model.file).exists()


def test_a_stricter_promise_is_collected_for_beside_what_was_learned(
    place: RuntimePaths, model: Model
) -> None:
    """What promises 97 % answers nothing there, and samples of it come."""
    has_learned(place, model)
    with opened(place, describe(model.file, max_batch_size=64, accuracy_ppm=995_000)) as strict:
        wait_until(
            lambda: learning(place, model.file).startswith("collecting: "), "another record"
        )
        assert taken(ask(strict, model.easy[:1])) == ""

        def is_written() -> bool:
            ask(strict, model.easy[:1]).output()
            return collected(model.file)[0] > 0

        wait_until(is_written, "samples of the runs")
    assert learned_file(model.file).exists()


def test_of_a_model_without_classes_nothing_is_kept_until_its_file_is_another(
    place: RuntimePaths, model: Model, tmp_path: Path
) -> None:
    file = tmp_path / "fixed.onnx"
    onnx.save(embedding(), file)
    with opened(place, describe(file, accuracy_ppm=PPM)):
        wait_until(lambda: learning(place, file).startswith("not for this model: "), "a look")
        assert "this model: set brisk_tolerance in the entry" in learning(place, file)
        assert collected(file) == (0, 0)
        shutil.copy(model.file, file.with_suffix(".new"))
        file.with_suffix(".new").rename(file)
        wait_until(
            lambda: learning(place, file).startswith("off: a file of the model is another than"),
            "a look at the file",
        )
    wait_until(lambda: not progress(place, dataclasses.replace(model, file=file)), "its unloading")
    with opened(place, describe(file, accuracy_ppm=PPM)):
        wait_until(lambda: learning(place, file).startswith("collecting: "), "a new beginning")


def test_what_was_withdrawn_is_learned_anew_from_the_next_load_on(
    place: RuntimePaths, model: Model
) -> None:
    has_learned(place, model)
    with opened(place, describe(model.file, accuracy_ppm=PPM)):
        wait_until(
            lambda: learning(place, model.file).startswith("learned from"), "what is served"
        )
        learned_file(model.file).unlink()
        wait_until(lambda: learning(place, model.file).startswith("withdrawn: "), "its end")
    wait_until(lambda: not progress(place, model), "its unloading")
    with opened(place, describe(model.file, accuracy_ppm=PPM)):
        wait_until(lambda: learning(place, model.file).startswith("collecting: "), "a beginning")


def test_what_was_learned_of_the_same_bytes_stays_though_the_file_is_newer(
    place: RuntimePaths, model: Model
) -> None:
    has_learned(place, model)
    for _ in range(2):
        wait_until(lambda: not progress(place, model), "its unloading")
        os.utime(model.file)
        with opened(place, describe(model.file, max_batch_size=64, accuracy_ppm=PPM)) as served:
            wait_until(lambda: taken(ask(served, model.easy[:1])) == model.name, "early answers")
            wait_until(
                lambda: learning(place, model.file).startswith("learned from 1,000 samples"),
                "what it was learned from",
            )


def test_where_the_server_alone_asks_nothing_is_kept_of_a_model_that_may_give_values(
    place: RuntimePaths, tmp_path: Path
) -> None:
    file = tmp_path / "forecast.onnx"
    onnx.save(network(tail="plain"), file)
    asks = describe(file, accuracy_ppm=PPM)
    by_server = asks._replace(needs_classes=True, model=2)
    with opened(place, by_server):
        wait_until(lambda: "not for this model: " in learning(place, file), "a look")
        assert "may be values" in learning(place, file)
        with opened(place, asks):
            wait_until(
                lambda: any(each.startswith("collecting: ") for each in all_learning(place, file)),
                "a look by the entry's own word",
            )
    assert collected(file) == (0, 0)


def test_an_entry_that_asks_for_nothing_is_left_alone(place: RuntimePaths, model: Model) -> None:
    with opened(place, describe(model.file)) as connection:
        taken(ask(connection, model.easy[:1]))
        assert learning(place, model.file) == ""
    assert not private_folder(model.file).exists()


def test_a_promise_of_trained_caches_below_the_entrys_is_not_enough(
    place: RuntimePaths, model: Model
) -> None:
    write_cascade(caches_file(model.file), model.cascade)
    with (
        opened(place, describe(model.file, max_batch_size=64)) as plain,
        opened(place, describe(model.file, max_batch_size=64, accuracy_ppm=995_000)) as strict,
    ):
        wait_until(lambda: taken(ask(plain, model.easy[:1])) == model.name, "an early answer")
        assert taken(ask(strict, model.easy[:1])) == "", "0.97 is promised, 0.995 is asked for"
        assert taken(ask(strict, model.easy[:1], ppm=960_000)) == model.name


def test_what_keeps_to_another_tolerance_answers_nothing(
    place: RuntimePaths, model: Model
) -> None:
    """The entry's answers were classes, and are values within a tolerance from now on."""
    has_learned(place, model)
    near = describe(model.file, max_batch_size=64, accuracy_ppm=PPM, tolerance="cosine 0.99")
    with opened(place, near) as connection:
        wait_until(
            lambda: learning(place, model.file).startswith("collecting: "),
            "another look at the model, whose outputs are to be values",
        )
        assert taken(ask(connection, model.easy[:1])) == ""
        assert not learned_file(model.file).exists()
        write_cascade(learned_file(model.file), model.cascade)  # as a worker finds it beside
        time.sleep(3 * LOOK_S)
        assert taken(ask(connection, model.easy[:1])) == ""


def test_answers_of_a_smaller_model_end_once_the_entry_does_not_name_it(
    place: RuntimePaths, model: Model
) -> None:
    shutil.copy(model.file, model.file.with_name("small.onnx"))
    plain = describe(model.file, max_batch_size=64, accuracy_ppm=PPM)
    named = plain._replace(smaller="small.onnx")
    with opened(place, named):
        await_record(place, model.file)
        kept = read_record(model.file)
        status = model.file.with_name("small.onnx").stat()
        os.utime(model.file.with_name("small.onnx"))
        wait_until(
            lambda: learning(place, model.file).startswith("off: a file of the model is another"),
            "a look at the smaller model's file",
        )
        assert read_record(model.file) == kept, "no process has looked at the model since"
        os.utime(model.file.with_name("small.onnx"), ns=(status.st_atime_ns, status.st_mtime_ns))
    record = read_record(model.file)
    assert record is not None
    assert record.aim == Aim.of(model.file, 0.97, "", "small.onnx")
    write_record(model.file, dataclasses.replace(record, stage=Stage.SERVED, speed_up=1.5))
    write_cascade(learned_file(model.file), with_smaller(model))
    with opened(place, named):
        wait_until(lambda: learning(place, model.file).startswith("learned"), "what is served")
        assert learned_file(model.file).exists()
    with opened(place, plain):
        wait_until(lambda: learning(place, model.file).startswith("collecting"), "a new look")
        assert not learned_file(model.file).exists()


def test_an_entry_that_no_longer_asks_for_early_answers_gets_none(
    place: RuntimePaths, model: Model
) -> None:
    has_learned(place, model)
    with opened(place, describe(model.file, max_batch_size=64, accuracy_ppm=PPM)) as connection:
        wait_until(lambda: taken(ask(connection, model.easy[:1])) == model.name, "early answers")
        cut = segments(place, model)
    wait_until(lambda: not progress(place, model), "its unloading")
    with opened(place, describe(model.file, max_batch_size=64)) as connection:
        time.sleep(3 * LOOK_S)
        assert taken(ask(connection, model.easy[:1])) == ""
        assert segments(place, model) < cut, "it is not cut for exits, either"
    assert learned_file(model.file).exists(), "it may ask again"


def test_an_entry_that_asks_anew_does_so_while_its_predecessor_is_there(
    place: RuntimePaths, model: Model
) -> None:
    """Triton loads a changed entry before it unloads the present one."""
    plain = describe(model.file, max_batch_size=64)
    asking = plain._replace(accuracy_ppm=PPM, model=2)
    with opened(place, plain) as before, opened(place, asking) as after:
        wait_until(lambda: "collecting: 0 of 1,345 samples" in progress(place, model), "a look")
        write_record(model.file, LearningRecord(Stage.SERVED, Aim(0.97), 0, 1000, 1, 1.5))
        write_cascade(learned_file(model.file), model.cascade)
        wait_until(lambda: taken(ask(after, model.easy[:1])) == model.name, "early answers")
        assert taken(ask(before, model.easy[:1])) == "", "it has not asked for them"
        with opened(place, plain._replace(accuracy_ppm=990_000, model=3)):
            wait_until(
                lambda: "off: another entry of this file asks for 99.0%" in progress(place, model),
                "the newest entry, which decides what is learned",
            )


def progress(place: RuntimePaths, model: Model) -> set[str]:
    """Return what the status says of all sessions of a model."""
    return all_learning(place, model.file)


def all_learning(place: RuntimePaths, file: Path) -> set[str]:
    hurry_helpers(place.base)
    with Observer(place, Role.FOREGROUND) as observer:
        models = observer.status().models
    return {each.learning for each in models if str(file).endswith(each.path)}


def segments(place: RuntimePaths, model: Model) -> int:
    with Observer(place, Role.FOREGROUND) as observer:
        models = observer.status().models
    (found,) = (each for each in models if str(model.file).endswith(each.path))
    return found.layers


def embedding() -> onnx.ModelProto:
    graph = GraphWriter("embedding", opset=17)
    value = graph.add("Relu", graph.input("x", "float32", ("batch", 4)))
    graph.output(value, "y", "float32", ("batch", 4))
    return graph.model()
