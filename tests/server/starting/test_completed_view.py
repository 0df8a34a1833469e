"""Entries completed by ``brisk serve``, and by Triton where it reads its repositories again."""

from __future__ import annotations

import json
import shutil
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from brisk.fork_server.build import find_compiler
from brisk.triton.options import option
from support.server.entries import doubled, identity, make_model, write_entry
from support.server.running import Endings
from support.server.serve_command import ServeCommand, Serving, serving
from support.unprivileged import UNPRIVILEGED, of_mode
from support.waiting import TIMED, wait_until

pytestmark = [pytest.mark.timing, pytest.mark.beside]

EXPLICIT = ("--model-control-mode=explicit",)

PYTHON_MODEL = """
import json, os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        beside = os.path.join(args["model_repository"], "..", "python", "1", "scale.txt")
        self.scale = float(open(beside).read())

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            y = pb_utils.Tensor("y", (x * self.scale).astype(np.float32))
            answers.append(pb_utils.InferenceResponse([y]))
        return answers
"""
PYTHON_CONFIG = """
backend: "python" max_batch_size: 0
input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] }
output { name: "y" data_type: TYPE_FP32 dims: [-1, 4] }
"""


def write_python(repository: Path, config: str = PYTHON_CONFIG, model: str = PYTHON_MODEL) -> Path:
    version = repository / "python" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(model)
    (version / "scale.txt").write_text("3")
    (version.parent / "config.pbtxt").write_text(config)
    return version.parent


def stateful() -> object:
    """``y = x + before``, ``after = y``."""
    shape = ("batch", 4)
    return make_model(
        [
            helper.make_node("Add", ["x", "before"], ["y"]),
            helper.make_node("Identity", ["y"], ["after"]),
        ],
        [("x", TensorProto.FLOAT, shape), ("before", TensorProto.FLOAT, shape)],
        [("y", TensorProto.FLOAT, shape), ("after", TensorProto.FLOAT, shape)],
    )


SEQUENCE = """
backend: "brisk" max_batch_size: 4
sequence_batching {
  state [ { input_name: "before" output_name: "after" data_type: TYPE_FP32 dims: [4]
            initial_state { name: "zeros" data_type: TYPE_FP32 dims: [4] zero_data: true } } ]
}
"""


def write_all(repository: Path) -> None:
    """Entries that leave out different things."""
    write_entry(repository, "backend", doubled())
    write_entry(repository, "platform", doubled((2, 4)), 'platform: "onnxruntime_onnx"')
    write_entry(repository, "zero", doubled(), "backend: 'brisk' # a comment\nmax_batch_size: 0")
    write_entry(repository, "eight", doubled(), 'backend: "brisk", max_batch_size: 8;')
    write_entry(repository, "nothing", doubled(), "")
    (write_entry(repository, "absent", doubled()) / "config.pbtxt").unlink()
    write_entry(
        repository,
        "input",
        doubled(),
        'backend: "brisk" input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]',
    )
    write_entry(
        repository,
        "labels",
        doubled(),
        'backend: "brisk" max_batch_size: 2 output { name: "y" data_type: TYPE_FP32 dims: [4] '
        'label_filename: "labels.txt" }',
    )
    (repository / "labels" / "labels.txt").write_text("a\nb\nc\nd\n")
    write_entry(repository, "strings", identity(TensorProto.STRING, ("n", "m", 2)))
    write_entry(repository, "rows", identity(TensorProto.FLOAT, ("n",)))
    open_output = identity(TensorProto.FLOAT, ("n", 3))
    open_output.graph.output[0].ClearField("type")
    write_entry(repository, "open", open_output)
    write_entry(repository, "sequence", stateful(), SEQUENCE)
    write_entry(
        repository,
        "versions",
        doubled(),
        'backend: "brisk" version_policy { specific { versions: [1] } }',
    )
    shutil.copytree(repository / "versions" / "1", repository / "versions" / "3")


def test_a_completed_entry_is_configured_as_triton_completes_it(
    tmp_path: Path, serve: Serving
) -> None:
    write_all(tmp_path / "repository")
    names = sorted(path.name for path in (tmp_path / "repository").iterdir())

    def path(name: str) -> str:
        return f"models/{urllib.parse.quote(name)}/config"

    with serve(tmp_path, [tmp_path / "repository"], ["--no-complete-entries"]) as plain:
        assert "--disable-auto-complete-config" not in plain.options
        wanted = {name: plain.get(path(name)) for name in names}
    for each in wanted.values():  # Triton makes two of its ONNX Runtime backend's, for nothing
        assert each["instance_group"][0]["count"] == (2 if each["platform"] else 1)
        each["instance_group"][0]["count"] = 1
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "repository").rglob("*")}
    with serving(tmp_path, [tmp_path / "repository"]) as served:
        assert "--disable-auto-complete-config" in served.options
        assert {name: served.get(path(name)) for name in names} == wanted
        assert served.ask("backend") == [2.0] * 8
    assert {
        file: file.stat().st_mtime_ns for file in (tmp_path / "repository").rglob("*")
    } == before


def test_the_next_server_removes_the_view_of_one_that_has_ended_and_no_other(
    tmp_path: Path, serve: Serving
) -> None:
    repository = tmp_path / "repository"
    write_entry(repository, "model", doubled())
    with serve(tmp_path, [repository]) as served:
        (view,) = served.views
        assert view.stat().st_mode & 0o777 == 0o700
        left = view.parent / "left"
        (left / "shown").mkdir(parents=True)
        (left / "shown" / "link").symlink_to(repository)
        environment = {"BRISK_RUNTIME_DIR": str(served.runtime)}
        with serve(tmp_path, [repository], environment=environment):
            assert not left.exists()
            assert view.exists()
            assert (repository / "model" / "config.pbtxt").exists()


def test_other_backends_entries_work_beside_completed_ones(tmp_path: Path, serve: Serving) -> None:
    write_entry(tmp_path / "one", "model", doubled())
    write_python(tmp_path / "two")
    with serve(tmp_path, [tmp_path / "one", tmp_path / "two"]) as served:
        assert "--disable-auto-complete-config" in served.options
        assert served.ask("model", 1) == [2.0] * 4
        assert served.ask("python", 1) == [3.0] * 4


def test_where_another_backend_may_rely_on_completion_triton_keeps_it(
    tmp_path: Path, serve: Serving
) -> None:
    completing = PYTHON_MODEL + (
        "\n    @staticmethod\n    def auto_complete_config(config):\n"
        "        config.add_input({'name': 'x', 'data_type': 'TYPE_FP32', 'dims': [-1, 4]})\n"
        "        config.add_output({'name': 'y', 'data_type': 'TYPE_FP32', 'dims': [-1, 4]})\n"
        "        return config\n"
    )
    write_entry(tmp_path / "repository", "model", doubled())
    write_python(tmp_path / "repository", 'backend: "python"', completing)
    with serve(tmp_path, [tmp_path / "repository"]) as served:
        assert "--disable-auto-complete-config" not in served.options
        assert f"'{tmp_path}/repository/python' relies on Triton's completion" in served.log_text
        assert not served.views
        assert served.ask("model", 1) == [2.0] * 4
        assert served.ask("python", 1) == [3.0] * 4


@pytest.mark.parametrize(
    "option_given",
    ["--no-complete-entries", "--strict-model-config=false", "--disable-auto-complete-config"],
)
def test_what_the_user_says_about_completion_holds(
    tmp_path: Path, option_given: str, serve: Serving
) -> None:
    write_entry(tmp_path / "repository", "model", doubled())
    with serve(tmp_path, [tmp_path / "repository"], [option_given]) as served:
        assert not served.views
        assert option(served.options, "model-repository") == str(tmp_path / "repository")
        is_completed = bool(served.get("models/model/config")["input"])
        assert is_completed == (option_given != "--disable-auto-complete-config")


def test_what_is_wrong_with_an_entry_is_said_of_the_users_file(
    tmp_path: Path, serve: Serving
) -> None:
    repository = tmp_path / "repository"
    write_entry(repository, "unreadable", doubled(), 'backend: "brisk"\nmax_batch_size: {{')
    write_entry(repository, "unknown", doubled(), 'backend: "brisk"\n\nno_such_field: 1')
    write_entry(repository, "contradiction", doubled((2, 4)), 'backend: "brisk" max_batch_size: 4')
    write_entry(repository, "broken", b"no model")
    write_entry(
        repository, "outside", doubled(), 'backend: "brisk" default_model_filename: "../../x"'
    )
    (repository / "linked" / "1").mkdir(parents=True)
    (repository / "linked" / "config.pbtxt").write_text('backend: "brisk"')
    (tmp_path / "secret.onnx").write_bytes(doubled().SerializeToString())
    (repository / "linked" / "1" / "model.onnx").symlink_to(tmp_path / "secret.onnx")
    write_entry(repository, "good", doubled())
    with serve(tmp_path, [repository]) as served:
        assert served.ask("good", 1) == [2.0] * 4
        assert "max_batch_size is 4, but" in served.why("contradiction")
        assert str(repository / "broken" / "1" / "model.onnx") in served.why("broken")
        assert "outside" in served.why("outside")
        assert "outside the model's folder" in served.why("linked")
        assert f"{repository}/unreadable/config.pbtxt" in served.log_text
        assert f"{repository}/unknown/config.pbtxt" in served.log_text or "3:" in served.log_text


@pytest.mark.parametrize("options", [(), (*EXPLICIT, "--load-model=*")])
def test_a_version_that_cannot_be_read_keeps_no_other_entry_from_being_served(
    tmp_path: Path, options: Sequence[str], serve: Serving
) -> None:
    repository = tmp_path / "repository"
    write_entry(repository, "good", doubled())
    for name, config in (("bad", 'backend: "brisk"'), ("bare", "")):
        write_entry(repository, name, doubled(), config)
    (repository / "bare" / "config.pbtxt").unlink()
    with (
        of_mode(repository / "bad" / "1", 0),
        of_mode(repository / "bare" / "1", 0),
        serve(tmp_path, [repository], options, under=UNPRIVILEGED) as served,
    ):
        assert served.ask("good", 1) == [2.0] * 4
        for name in ("bad", "bare"):
            line = f"'{repository / name}' is not served: '{name}/1' cannot be read; expected a"
            assert line in served.log_text


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository to which tests add entries of their own."""
    made = tmp_path_factory.mktemp("explicit") / "repository"
    made.mkdir()
    return made


@pytest.fixture(scope="module")
def explicit(empty: Path, endings: Endings) -> Iterator[ServeCommand]:
    """The server of that repository; it has loaded nothing by itself."""
    with serving(empty.parent, [empty], EXPLICIT, endings=endings) as served:
        yield served


def test_a_load_sees_the_entry_as_it_is_at_that_moment(
    empty: Path, explicit: ServeCommand
) -> None:
    """Each change and the load behind it, again and again: no load may find an older entry."""
    write_entry(empty, "changed", doubled())
    for size in range(5, 25):
        text = f'backend: "brisk" max_batch_size: {size}'
        (empty / "changed" / "config.pbtxt").write_text(text)
        explicit.load("changed")
        assert explicit.get("models/changed/config")["max_batch_size"] == size
        assert explicit.get("models/changed/config")["input"]


def test_an_entry_that_comes_later_is_complete_when_it_is_loaded(
    empty: Path, explicit: ServeCommand
) -> None:
    for number in range(10):
        write_entry(empty, f"new{number}", doubled())
        explicit.load(f"new{number}")
        assert explicit.get(f"models/new{number}/config")["max_batch_size"] == 4
    assert explicit.ask("new3") == [2.0] * 8
    explicit.post("repository/models/new3/unload")
    shutil.rmtree(empty / "new3")
    with pytest.raises(AssertionError, match="new3"):
        explicit.load("new3")


def test_triton_makes_two_instances_of_an_onnx_runtime_entry_that_it_completes(
    empty: Path, explicit: ServeCommand
) -> None:
    """As docs/migration.md says of ``instance_group``."""
    write_entry(empty, "two", doubled(), 'platform: "onnxruntime_onnx"')
    explicit.load("two")
    (group,) = explicit.get("models/two/config")["instance_group"]
    assert group["count"] == 2
    page = (Path(__file__).resolve().parents[3] / "docs" / "migration.md").read_text()
    assert "in `poll` and `explicit` mode, and under another server, Triton completes it" in page


def test_completion_by_triton_costs_a_load_no_second(tmp_path: Path, serve: Serving) -> None:
    """Of the later ones of several loads, whose stubs are forked: a tenth of a second each."""
    if find_compiler() is None:
        pytest.skip("there is no C++ compiler")
    repository = tmp_path / "repository"
    for number in range(6):
        write_entry(repository, f"model{number}", doubled())

    def fastest_load_s(loads: int, environment: Mapping[str, str]) -> float:
        times_s = []
        with serve(tmp_path, [repository], EXPLICIT, environment) as served:
            for number in range(loads):
                start_s = time.monotonic()
                served.load(f"model{number}")
                times_s.append(time.monotonic() - start_s)
                assert served.get(f"models/model{number}/config")["max_batch_size"] == 4
        return min(times_s)

    assert fastest_load_s(6, {}) < 0.8
    assert fastest_load_s(3, {"BRISK_FORK_STUBS": "0"}) > 1.0


def test_a_load_may_bring_its_configuration(empty: Path, explicit: ServeCommand) -> None:
    write_entry(empty, "model", doubled())
    whole = {
        "backend": "brisk",
        "max_batch_size": 16,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [4]}],
    }
    explicit.load("model", config=json.dumps(whole))
    assert explicit.get("models/model/config")["max_batch_size"] == 16
    assert explicit.ask("model") == [2.0] * 8
    explicit.load("model", config=json.dumps({"backend": "brisk", "max_batch_size": 2}))
    assert explicit.get("models/model/config")["max_batch_size"] == 2
    assert explicit.ask("model") == [2.0] * 8


def test_polling_finds_new_changed_and_removed_entries(tmp_path: Path, serve: Serving) -> None:
    repository = tmp_path / "repository"
    write_entry(repository, "model", doubled())
    options = ("--model-control-mode=poll", "--repository-poll-secs=1")
    with serve(tmp_path, [repository], options) as served:
        text = 'backend: "brisk" max_batch_size: 7'
        (repository / "model" / "config.pbtxt").write_text(text)
        write_entry(repository, "later", doubled())
        size = "max_batch_size"
        with TIMED:
            wait_until(lambda: served.get("models/model/config")[size] == 7, "it changes", 20)

        def is_there() -> bool:
            return any(
                entry["name"] == "later" and entry.get("state") == "READY"
                for entry in served.post("repository/index")
            )

        with TIMED:
            wait_until(is_there, "the new one is ready", 20)
        shutil.rmtree(repository / "later")

        def is_gone() -> bool:
            return not is_there()

        with TIMED:
            wait_until(is_gone, "it is unloaded", 20)


def test_the_runtime_is_there_before_the_first_stub_asks(tmp_path: Path, serve: Serving) -> None:
    """Explicit mode: no stub has ever run."""
    repository = tmp_path / "repository"
    write_entry(repository, "model", doubled())
    with serve(tmp_path, [repository], EXPLICIT) as served:
        with TIMED:
            wait_until(
                (served.runtime / "cpu" / "foreground.sock").exists, "the runtime starts", 20
            )
        served.load("model")
        assert served.ask("model") == [2.0] * 8
