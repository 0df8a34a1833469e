"""The command line as a user types it."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

import brisk
import brisk.cli.application as application_module
from brisk.cli import main
from brisk.triton.locate import LIBRARY, STUB
from support.models.identity_models import FLOAT_BATCH, write_model
from support.server.entries import make_model
from support.waiting import PATIENCE_S, wait_until


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    words = ["brisk", *map(str, arguments)]
    output, errors = io.StringIO(), io.StringIO()
    status: object = 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        patch.setattr(sys, "argv", words)
        try:
            main()
        except SystemExit as ended:
            status = ended.code or 0
    assert isinstance(status, int)
    return subprocess.CompletedProcess(words, status, output.getvalue(), errors.getvalue())


@pytest.mark.parametrize(
    "command",
    [
        "serve",
        "install",
        "config",
        "explain",
        "prepare",
        "status",
        "check",
        "doctor",
        "trace",
        "bench",
        "workload",
        "demo",
    ],
)
def test_every_command_has_help(command: str) -> None:
    answer = run(command, "--help")
    assert answer.returncode == 0
    assert f"brisk {command}" in answer.stdout


def test_the_version_is_printed() -> None:
    command = [sys.executable, "-m", "brisk.cli", "--version"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert answer.stdout.strip() == brisk.__version__


def test_looking_at_help_loads_neither_torch_nor_onnx() -> None:
    program = (
        "import sys, brisk.cli; "
        "print(sorted({'torch', 'onnx', 'numpy', 'tritonclient'} & sys.modules.keys()))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        (FileNotFoundError(2, "No such file or directory", "absent.npz"), "'absent.npz': No such"),
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (TimeoutError("timed out"), "timed out"),
        (InferenceServerException("unknown model 'x'"), "the server answers: unknown model 'x'"),
    ],
)
def test_errors_of_files_networks_and_servers_are_one_line(
    raised: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise raised

    monkeypatch.setattr(application_module, "application", fail)
    answer = run("status")
    assert answer.returncode == 1
    (line,) = answer.stderr.splitlines()
    assert line.startswith("error: ")
    assert text in line


def test_a_fault_of_brisk_keeps_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise KeyError("a fault")

    monkeypatch.setattr(application_module, "application", fail)
    with pytest.raises(KeyError, match="a fault"):
        run("status")


def test_who_reads_the_first_lines_alone_is_told_of_no_error() -> None:
    command = f"{sys.executable} -m brisk.cli --help | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_tracing_without_a_server_or_an_address_names_it() -> None:
    for url, text in (
        ("127.0.0.1:1", "no server answers at '127.0.0.1:1': "),
        ("nowhere", "'nowhere': expected HOST:PORT"),
        ("127.0.0.1:99999", "'127.0.0.1:99999': expected HOST:PORT"),
    ):
        answer = run("trace", "net", "--url", url)
        assert answer.returncode == 1
        (line,) = answer.stderr.splitlines()
        assert text in line


def test_serving_nothing_is_an_error_in_one_line_with_the_next_step() -> None:
    answer = run("serve", "--http-port", "1")
    assert answer.returncode == 1
    assert answer.stderr == "error: no model repository; give one with --repository DIR\n"


def test_ctrl_c_while_a_server_is_made_ready_ends_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "models" / "net" / "1").mkdir(parents=True)
    (tmp_path / "models" / "net" / "1" / "model.onnx").touch()
    python = tmp_path / "python"  # which `serve` waits for
    python.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\nexec sleep 60\n")
    python.chmod(0o755)
    program = (  # a shell may have had Ctrl-C ignored
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from brisk.cli import main; main()"
    )
    serving = subprocess.Popen(
        [sys.executable, "-c", program, "serve", "--repository", str(tmp_path / "models")],
        env={**os.environ, "BRISK_PYTHON": str(python)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until((tmp_path / "asked").exists, "the other Python's start")
    os.killpg(serving.pid, signal.SIGINT)
    _, said = serving.communicate(timeout=PATIENCE_S)
    assert (serving.returncode, said) == (130, "")


@pytest.mark.parametrize("stray", ["models", "--repositry"])
def test_what_was_meant_for_a_repository_is_told(stray: str) -> None:
    answer = run("serve", stray, "models")
    assert answer.returncode == 1
    assert answer.stderr.endswith(f"--repository DIR, not '{stray}'\n")


@pytest.mark.parametrize(
    ("files", "text"),
    [([], "there is no model in it"), (["net.onnx"], "'net.onnx' lies in the repository itself")],
)
def test_serving_a_repository_without_a_model_says_what_is_expected(
    tmp_path: Path, files: list[str], text: str
) -> None:
    (tmp_path / "models").mkdir()
    for name in files:
        (tmp_path / "models" / name).touch()
    words = ("serve", "--repository", tmp_path / "models", "--tritonserver", tmp_path / "absent")
    (told,) = run(*words).stderr.splitlines()
    assert told.startswith("error: ")
    assert text in told
    assert "my_model/1/model.onnx" in told
    assert "--model-control-mode explicit or poll" in told
    told, error = run(*words, "--model-control-mode", "explicit").stderr.splitlines()
    assert told.startswith("brisk: ")
    assert text in told
    assert "absent" in error  # the server that it would have become


def test_a_wrong_option_of_a_command_of_our_own_is_a_usage_error() -> None:
    answer = run("config", "--nonsense")
    assert answer.returncode == 2
    assert "--nonsense" in answer.stderr


def test_config_writes_the_file_once_and_overwrites_only_when_forced(tmp_path: Path) -> None:
    entry = write_model(tmp_path / "net", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    assert run("config", entry).returncode == 0
    written = (entry / "config.pbtxt").read_text()
    assert "max_batch_size: 4" in written
    again = run("config", entry, "--max-batch-size", "2")
    assert again.returncode == 1
    assert "--force adds what it lacks" in again.stderr
    assert (entry / "config.pbtxt").read_text() == written
    assert run("config", entry, "--max-batch-size", "2", "--stdout").stdout == written.replace(
        "max_batch_size: 4", "max_batch_size: 2"
    )
    assert run("config", entry, "--max-batch-size", "2", "--force").returncode == 0
    assert "max_batch_size: 2" in (entry / "config.pbtxt").read_text()


def test_config_keeps_what_is_no_utf_8_text(tmp_path: Path) -> None:
    entry = write_model(tmp_path / "net", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    file = tmp_path / "ours.pbtxt"
    (entry / "config.pbtxt").symlink_to(file)
    own = b"# M\xfcller's\nmax_batch_size: 2"
    file.write_bytes(own)
    file.chmod(0o640)
    command = [sys.executable, "-m", "brisk.cli", "config", str(entry)]
    shown = subprocess.run([*command, "--stdout"], capture_output=True, check=True).stdout
    assert shown.startswith(own)
    assert run("config", entry, "--force").returncode == 0
    assert file.read_bytes() == shown
    assert file.stat().st_mode & 0o777 == 0o640
    assert (entry / "config.pbtxt").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net", "ours.pbtxt"]


def test_a_directory_whose_name_is_no_utf_8_text_is_told(tmp_path: Path) -> None:
    entry = write_model(tmp_path / "m\udcfcller", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    answer = run("config", entry)
    assert (answer.returncode, "is no UTF-8 text" in answer.stderr) == (1, True)
    command = [sys.executable, "-m", "brisk.cli", "check", str(tmp_path)]
    done = subprocess.run(command, capture_output=True)
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"m\xfcller: its name is no UTF-8 text" in done.stdout


def test_explain_shows_what_a_model_is_served_as(tmp_path: Path) -> None:
    entry = write_model(tmp_path / "net", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    answer = run("explain", entry, "--all")
    assert answer.returncode == 0, answer.stderr
    assert "input x: float32[batch, 3, height]" in answer.stdout
    assert "output y: float32[batch, 3, height]" in answer.stdout
    assert "1 segment: it is small" in answer.stdout


@pytest.mark.parametrize(
    ("config", "shape", "said"),
    [
        ("", ["batch", 3], "up to 4 rows (max_batch_size)"),
        ("max_batch_size: 1", ["batch", 3], "up to 1 row (max_batch_size)"),
        ("", [2, 3], "none (max_batch_size 0)"),
    ],
)
def test_explain_shows_the_batch_that_an_entry_is_completed_with(
    tmp_path: Path, config: str, shape: list[str | int], said: str
) -> None:
    kind = (TensorProto.FLOAT, shape)
    entry = write_model(tmp_path / "net", {"x": kind}, {"y": kind})
    (entry / "config.pbtxt").write_text(config)
    assert f"  batch: {said}" in run("explain", entry).stdout.splitlines()
    assert "  batch: " not in run("explain", entry / "1" / "model.onnx").stdout


@pytest.mark.parametrize(
    ("config", "shape", "said"),
    [
        ("", ["batch"], ["  requests: x [n, 1]"]),
        ("", [], ["  requests: x [1]"]),
        ("", ["batch", 3], []),
        ("", [3], []),
        (
            "max_batch_size: 8 input { name: 'x' data_type: TYPE_FP32 dims: [2, 3] "
            "reshape { shape: [6] } }",
            ["batch", 6],
            ["  requests: x [n, 2, 3]"],
        ),
    ],
)
def test_explain_shows_the_shape_of_requests_where_it_has_more_sizes_than_the_models(
    tmp_path: Path, config: str, shape: list[str | int], said: list[str]
) -> None:
    kind = (TensorProto.FLOAT, shape)
    entry = write_model(tmp_path / "net", {"x": kind}, {"y": kind})
    (entry / "config.pbtxt").write_text(config)
    lines = run("explain", entry).stdout.splitlines()
    assert [line for line in lines if line.startswith("  requests:")] == said


def test_explain_counts_what_bodies_of_nodes_hold(tmp_path: Path) -> None:
    kind = (TensorProto.FLOAT, [256, 256])

    def body(name: str) -> GraphProto:
        weight = numpy_helper.from_array(np.ones((256, 256), np.float32), f"{name}_w")
        node = helper.make_node("MatMul", ["x", f"{name}_w"], [name])
        return helper.make_graph(
            [node], name, [], [helper.make_tensor_value_info(name, *kind)], [weight]
        )

    chosen = helper.make_node("If", ["c"], ["y"], then_branch=body("a"), else_branch=body("b"))
    inputs = [("c", TensorProto.BOOL, []), ("x", *kind)]
    onnx.save(make_model([chosen], inputs, [("y", *kind)]), tmp_path / "m.onnx")
    answer = run("explain", tmp_path / "m.onnx")
    assert "1 node and 2 in bodies, 0.5 MB of weights" in answer.stdout


def test_explain_of_a_repository_tells_of_all_its_models(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_model(tmp_path / name, {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    (tmp_path / "no_model").mkdir()
    answer = run("explain", tmp_path)
    assert answer.returncode == 0, answer.stderr
    for name in ("one", "two"):
        assert f"{tmp_path / name / '1' / 'model.onnx'}: computed by" in answer.stdout
    answer = run("explain", tmp_path / "no_model")
    assert answer.returncode == 1
    assert "has no version: expected a file like" in answer.stderr


def test_explain_of_a_repository_names_the_entry_of_each_error_once(tmp_path: Path) -> None:
    wrong = 'parameters { key: "brisk_acuracy" value { string_value: "0.98" } }'
    for name, config in (("good", ""), ("misspelt", wrong), ("torn", "")):
        write_model(tmp_path / name, {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
        (tmp_path / name / "config.pbtxt").write_text(config)
    torn = tmp_path / "torn" / "1" / "model.onnx"
    torn.write_text("no model")
    answer = run("explain", tmp_path)
    assert answer.returncode == 1
    assert "computed by ONNX Runtime" in answer.stdout
    misspelt, of_torn = answer.stderr.splitlines()
    assert misspelt.startswith(f"error: {tmp_path / 'misspelt'}: ")
    assert "brisk_acuracy" in misspelt
    assert of_torn.startswith(f"error: {torn}: ")


def test_explain_for_a_gpu_says_who_computes_and_that_it_is_captured(tmp_path: Path) -> None:
    entry = write_model(tmp_path / "net", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    answer = run("explain", entry, "--device", "cuda:0", "--all")
    assert answer.returncode == 0, answer.stderr
    assert "computed by ONNX Runtime's CUDA provider on cuda:0" in answer.stdout
    assert "captured by the load" in answer.stdout
    assert "input x: float32[batch, 3, height]" in answer.stdout


def test_explaining_an_absent_version_lists_the_present_ones(tmp_path: Path) -> None:
    entry = write_model(tmp_path / "net", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    answer = run("explain", entry, "--version", "9")
    assert answer.returncode == 1
    assert "no version 9, only [1]" in answer.stderr


def test_install_says_where_and_how_to_use_it(tmp_path: Path) -> None:
    (tmp_path / "python").mkdir()
    for name in (LIBRARY, STUB):
        (tmp_path / "python" / name).touch()
    answer = run("install", "--backend-directory", tmp_path, "--as", "onnxruntime", "--copy")
    assert answer.returncode == 0, answer.stderr
    assert str(tmp_path / "onnxruntime") in answer.stdout
    assert not (tmp_path / "onnxruntime" / "brisk").is_symlink()


def test_an_unknown_benchmark_is_refused() -> None:
    answer = run("bench", "nonsense")
    assert answer.returncode == 1
    assert "there is no benchmark 'nonsense'" in answer.stderr


def test_benchmarks_are_listed_and_read_their_own_options() -> None:
    names = run("bench").stdout.split()
    assert {"conformance", "warm"} <= set(names)
    for name in ("conformance", "warm"):
        answer = run("bench", name, "--help")
        assert answer.returncode == 0
        assert f"brisk bench {name}" in answer.stdout
        assert "--quick" in answer.stdout
    assert run("bench", "conformance", "--nonsense").returncode == 2


def test_a_workload_that_cannot_be_read_is_an_error_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "w.json"
    file.write_text('{"time": 1, "tasks": [{"id": "a", "load": {"type": "contiguous"}}]}')
    answer = run("workload", file)
    assert answer.returncode == 1
    assert "w.json': task 'a'" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_a_workload_without_its_server_names_task_model_and_endpoint(tmp_path: Path) -> None:
    file = tmp_path / "w.json"
    task = '{"id": "a", "load": {"type": "continuous"}, "client": {"model_name": "vgg"}}'
    file.write_text(f'{{"time": 1, "tasks": [{task}]}}')
    answer = run("workload", file, "--url", "127.0.0.1:1", "--model", "vgg=mine")
    assert answer.returncode == 1
    assert "error: task 'a': model 'mine' at 127.0.0.1:1: " in answer.stderr
