"""Fields of config.pbtxt under a real Triton: what works, what is said, what is refused.

docs/migration.md names these tests in its table of every field.
"""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

from brisk.triton.launch import TritonServer
from brisk_client.inference import InferenceClient
from support.runtime.runtime_processes import hurrying_best_effort
from support.server.entries import ANY_CLASS, deep, doubled, identity, make_model, write_entry
from support.server.running import StartServer, runtime_directory
from support.server.scraping import value, wait_for
from support.waiting import wait_until

pytestmark = pytest.mark.server

WIDTH = 512
BIG_ROWS = 4096
"""Of a request that computes for far longer than one of one row."""


def signature(x: str = "", y: str = "", width: int = 4) -> str:
    """A complete configuration's beginning; ``x`` and ``y``: more fields of input and output."""
    return (
        'backend: "brisk" max_batch_size: 4096 '
        f'input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {width} ] {x} }} ] '
        f'output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {width} ] {y} }} ] '
    )


QUEUE_POLICY = (
    "default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 200000 "
    "max_queue_size: 1 } "
)
IN_VAIN = {
    "limited": (
        "instance_group [ { kind: KIND_CPU count: 2 "
        'rate_limiter { resources [ { name: "r" global: true count: 1 } ] priority: 2 } } ] '
        f"dynamic_batching {{ priority_levels: 2 default_priority_level: 1 {QUEUE_POLICY} "
        "priority_queue_policy { key: 1 value { max_queue_size: 1 } } "
        "preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 1 } ",
        (
            ("W", "instance_group.rate_limiter has no effect"),
            ("I", "instance_group.count has no effect"),
            ("W", "dynamic_batching.priority_levels holds in Triton's queue only"),
            ("W", "dynamic_batching.default_priority_level holds in Triton's queue only"),
            ("W", "dynamic_batching.default_queue_policy holds in Triton's queue only"),
            ("W", "dynamic_batching.priority_queue_policy holds in Triton's queue only"),
            ("I", "dynamic_batching.preferred_batch_size has no effect"),
            ("W", "dynamic_batching.max_queue_delay_microseconds only delays"),
        ),
    ),
    "tuned": (
        "optimization { graph { level: 1 } priority: PRIORITY_MAX cuda { graphs: true } "
        'execution_accelerators { cpu_execution_accelerator [ { name: "openvino" } ] '
        'gpu_execution_accelerator [ { name: "tensorrt" } ] } '
        "input_pinned_memory { enable: false } output_pinned_memory { enable: false } "
        "gather_kernel_buffer_threshold: 3 eager_batching: true } "
        'instance_group [ { kind: KIND_CPU host_policy: "policy_0" '
        "secondary_devices [ { kind: KIND_NVDLA device_id: 0 } ] } ] "
        'cc_model_filenames { key: "7.5" value: "model75.onnx" } '
        'parameters { key: "gpu_mem_limit" value { string_value: "2" } } ',
        (
            ("W", "optimization.priority has no effect"),
            ("I", "optimization.cuda has no effect"),
            ("W", "optimization.execution_accelerators has no effect"),
            ("I", "optimization.input_pinned_memory has no effect"),
            ("I", "optimization.output_pinned_memory has no effect"),
            ("I", "optimization.gather_kernel_buffer_threshold has no effect"),
            ("I", "optimization.eager_batching has no effect"),
            ("W", "instance_group.host_policy has no effect"),
            ("W", "instance_group.secondary_devices has no effect"),
            ("W", "cc_model_filenames has no effect"),
            ("I", "parameter gpu_mem_limit of the ONNX Runtime backend has no meaning"),
        ),
    ),
}
"""Configuration, and level and beginning of each line that says so."""

REFUSED = {
    "batch_input": (
        signature() + "batch_input [ { kind: BATCH_ELEMENT_COUNT "
        'target_name: "n" data_type: TYPE_FP32 source_input: "x" } ]',
        "batch_input is not supported: the model would not get that input",
    ),
    "batch_output": (
        signature() + 'batch_output [ { target_name: "y" '
        'kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x" } ]',
        "batch_output is not supported: the answers would not be divided",
    ),
    "allow_ragged_batch": (
        signature("allow_ragged_batch: true"),
        "input.allow_ragged_batch is not supported: the model would get each request by itself",
    ),
    "decoupled": (
        signature() + "model_transaction_policy { decoupled: true }",
        "model_transaction_policy.decoupled is not supported: an ONNX model has one answer",
    ),
    "op_library_filename": (
        signature() + 'model_operations { op_library_filename: [ "../../evil.so" ] }',
        "model_operations.op_library_filename .*leads outside the model's folder",
    ),
    "iterative_sequence": (
        signature()
        + "sequence_batching { oldest { max_candidate_sequences: 4 } iterative_sequence: true }",
        "iterative_sequence is not served",
    ),
    "correlation_id": (
        signature()
        + 'sequence_batching { oldest { max_candidate_sequences: 4 } control_input { name: "WHO" '
        "control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } } }",
        "CORRID of TYPE_STRING in 'WHO'",
    ),
    "kind_model": (
        signature() + "instance_group [ { kind: KIND_MODEL } ]",
        "KIND_MODEL is not served; expected KIND_CPU or KIND_GPU",
    ),
    "default_model_filename": (
        signature() + 'default_model_filename: "../../secret.onnx"',
        "default_model_filename '../../secret.onnx' .* leads outside the model's folder; expected",
    ),
    "profile": (
        signature() + 'instance_group [ { kind: KIND_CPU profile: [ "1" ] } ]',
        "profile field which is only supported for TensorRT",
    ),
    "gpus": (
        signature() + "instance_group [ { kind: KIND_CPU gpus: [ 0 ] } ]",
        "KIND_CPU but specifies one or more GPUs",
    ),
    "runtime": (signature() + 'runtime: "libother.so"', "unable to find backend library"),
}
"""Configuration, and the error's text: Brisk's, and Triton's own below ``default_model_…``."""

NOT_POLLED = {
    "is_shape_tensor": signature("is_shape_tensor: true"),
    "is_non_linear_format_io": signature("is_non_linear_format_io: true"),
    "format": signature("format: FORMAT_NCHW"),
    "ensemble_scheduling": signature()
    + 'ensemble_scheduling { step [ { model_name: "plain" model_version: -1 '
    'input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } ] }',
    "model_repository_agents": signature()
    + 'model_repository_agents { agents [ { name: "absent" } ] }',
}
REFUSED |= {name: (text, "failed to poll") for name, text in NOT_POLLED.items()}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fields")

    def write_doubled(name: str, fields: str) -> Path:
        return write_entry(directory, name, doubled(), signature() + fields)

    write_doubled("plain", "dynamic_batching { }")
    write_entry(directory, "limited", deep(), signature(width=WIDTH) + IN_VAIN["limited"][0])
    write_doubled("tuned", IN_VAIN["tuned"][0])
    for name, ordering in (("ordered", "true"), ("unordered", "false")):
        text = f"dynamic_batching {{ preserve_ordering: {ordering} }} "
        write_entry(directory, name, deep(), signature(width=WIDTH) + text + ANY_CLASS)
    write_doubled("delayed", "dynamic_batching { max_queue_delay_microseconds: 300000 } ")
    square = make_model(
        [helper.make_node("Transpose", ["x"], ["y"], perm=[0, 2, 1])],
        [("x", TensorProto.FLOAT, ("batch", 2, 2))],
        [("y", TensorProto.FLOAT, ("batch", 2, 2))],
    )
    write_entry(directory, "reshaped", square, signature(*["reshape { shape: [ 2, 2 ] }"] * 2))
    labelled = write_entry(
        directory, "labelled", doubled(), signature(y='label_filename: "labels.txt"')
    )
    (labelled / "labels.txt").write_text("ant\nbee\ncat\ndog\n")
    write_doubled("tagged", 'metric_tags { key: "team" value: "vision" }')
    groups = "{ kind: KIND_CPU passive: true }, { kind: KIND_CPU }"
    write_doubled("passive", f"instance_group [ {groups} ]")
    write_doubled(
        "warmed",
        'model_warmup [ { name: "twice" batch_size: 2 count: 3 '
        'inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 4 ] random_data: true } } } ]',
    )
    chosen = write_doubled("chosen", "version_policy { specific { versions: 1 } }")
    latest = write_doubled("latest", "version_policy { latest { num_versions: 1 } }")
    for entry in (chosen, latest):
        write_entry(entry.parent, f"{entry.name}-2", identity(TensorProto.FLOAT, ("batch", 4)))
        (entry.parent / f"{entry.name}-2" / "1").rename(entry / "2")
    named = write_doubled("named", 'default_model_filename: "sub/other.onnx"')
    (named / "1" / "sub").mkdir()
    (named / "1" / "model.onnx").rename(named / "1" / "sub" / "other.onnx")
    (directory / "secret.onnx").write_bytes(doubled().SerializeToString())
    for name, (text, _) in REFUSED.items():
        write_entry(directory, f"refused_{name}", doubled(), text)
    return directory


@pytest.fixture(scope="module")
def server(start_shared: StartServer, repository: Path) -> TritonServer:
    options = (
        *("--model-control-mode=explicit", "--load-model=plain"),
        "--rate-limit=execution_count",
        "--disable-auto-complete-config",  # a load is half as long
    )
    return start_shared(repository, options)


def ones(rows: int = 1, width: int = 4) -> np.ndarray:
    return np.ones((rows, width), np.float32)


def lines_of(server: TritonServer, model: str) -> list[str]:
    """Of the server's log."""
    label = f"brisk: model '{model}' version 1: "
    return [line for line in server.log.read_text().splitlines() if label in line]


@pytest.mark.parametrize("name", IN_VAIN)
def test_what_has_no_effect_is_said_once_for_all_instances(
    name: str, server: TritonServer, control: http.InferenceServerClient
) -> None:
    control.load_model(name)
    for level, text in IN_VAIN[name][1]:
        wait_until(lambda text=text: any(text in line for line in lines_of(server, name)), text)
        (line,) = [line for line in lines_of(server, name) if text in line]
        assert line.startswith(level), line


def test_nothing_is_said_of_an_entry_that_asks_for_nothing(
    server: TritonServer, control: http.InferenceServerClient
) -> None:
    wait_until(lambda: any("ready after" in each for each in lines_of(server, "plain")), "plain")
    said = [each for each in lines_of(server, "plain") if " effect" in each or "ignored" in each]
    assert said == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_make_other_answers_is_refused_with_field_and_consequence(
    name: str, control: http.InferenceServerClient, client: InferenceClient
) -> None:
    with pytest.raises(InferenceServerException, match=f"(?s){REFUSED[name][1]}"):
        control.load_model(f"refused_{name}")
    assert client.infer("plain", {"x": ones()})["y"][0, 0] == 2


def ask_for(
    client: grpc.InferenceServerClient, model: str, rows: int, job_class: str, came: list[str]
) -> None:
    """Send a request of ones; its class, or its error, comes into ``came`` with the answer."""
    described = grpc.InferInput("x", [rows, WIDTH], "FP32")
    described.set_data_from_numpy(ones(rows, WIDTH))

    def note(result: grpc.InferResult | None, error: Exception | None) -> None:
        came.append(str(error) if error else job_class)

    client.async_infer(model, [described], note, parameters={"brisk_class": job_class})


def test_rate_limiter_and_queue_policies_end_where_brisk_takes_over(
    server: TritonServer, control: http.InferenceServerClient
) -> None:
    """One at once and one waiting, for 0.2 s: where they held, most would fail."""
    control.load_model("limited")
    came: list[str] = []
    with grpc.InferenceServerClient(server.endpoints.grpc) as client:
        for count in (1, 2):
            began_s = time.perf_counter()
            ask_for(client, "limited", BIG_ROWS, "normal", came)
            wait_until(lambda count=count: len(came) == count, "an answer")
        run_s = time.perf_counter() - began_s
        for _ in range(6):
            ask_for(client, "limited", BIG_ROWS, "normal", came)
            time.sleep(run_s / 10)  # so that Triton's own queue is empty again
        answered = len(came) - 2
        wait_until(lambda: len(came) == 8, "all answers")
    assert answered < 3, "too fast to tell: nothing had to wait"
    assert came == ["normal"] * 8


def test_the_order_of_answers_is_preserved_where_the_entry_asks_for_it(
    server: TritonServer, control: http.InferenceServerClient, client: InferenceClient
) -> None:
    """Of a long best-effort request, and behind it a short real-time one."""
    expected = {"ordered": ["besteffort", "realtime"], "unordered": ["realtime", "besteffort"]}
    for name, order in expected.items():
        control.load_model(name)
        client.infer(name, {"x": ones(1, WIDTH)})
        came: list[str] = []
        with (
            hurrying_best_effort(runtime_directory(server)),
            grpc.InferenceServerClient(server.endpoints.grpc) as asking,
        ):
            ask_for(asking, name, BIG_ROWS, "besteffort", came)
            time.sleep(0.1)  # so that Triton has it first
            ask_for(asking, name, 1, "realtime", came)
            wait_until(lambda came=came: len(came) == 2, "both answers")
        assert came == order


def test_a_queue_delay_keeps_a_single_request_waiting(
    control: http.InferenceServerClient, client: InferenceClient
) -> None:
    control.load_model("delayed")
    for name in ("plain", "delayed"):
        client.infer(name, {"x": ones()})

    def shortest_s(name: str) -> float:
        times = []
        for _ in range(3):
            began_s = time.perf_counter()
            client.infer(name, {"x": ones()})
            times.append(time.perf_counter() - began_s)
        return min(times)

    assert shortest_s("delayed") > 0.3 > shortest_s("plain")


def test_reshapes_of_inputs_and_outputs_are_applied(
    control: http.InferenceServerClient, client: InferenceClient
) -> None:
    control.load_model("reshaped")
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    answer = client.infer("reshaped", {"x": x})["y"]
    np.testing.assert_array_equal(answer, [[0, 2, 1, 3], [4, 6, 5, 7]])


def test_labels_are_given_with_classes(
    server: TritonServer, control: http.InferenceServerClient
) -> None:
    control.load_model("labelled")
    described = http.InferInput("x", [1, 4], "FP32")
    described.set_data_from_numpy(np.array([[0, 5, 9, 1]], np.float32))
    wanted = http.InferRequestedOutput("y", class_count=2)
    answer = control.infer("labelled", [described], outputs=[wanted]).as_numpy("y")
    assert [text.decode() for text in answer[0]] == ["18.000000:2:cat", "10.000000:1:bee"]


def test_metric_tags_are_labels_of_tritons_own_metrics(
    server: TritonServer, control: http.InferenceServerClient
) -> None:
    control.load_model("tagged")
    with urllib.request.urlopen(f"http://{server.endpoints.metrics}/metrics") as page:
        text = page.read().decode()
    assert 'nv_inference_request_success{_team="vision",model="tagged",version="1"}' in text


def test_an_entry_with_a_passive_group_answers_by_the_other(
    control: http.InferenceServerClient, client: InferenceClient
) -> None:
    control.load_model("passive")
    assert client.infer("passive", {"x": ones()})["y"][0, 0] == 2


def test_warm_up_requests_are_computed_before_the_model_is_ready(
    server: TritonServer, control: http.InferenceServerClient
) -> None:
    control.load_model("warmed")
    asked = 3 * 2  # a sample of batch size 2 is two requests
    found = wait_for(
        server, lambda series: value(series, "brisk_requests_total", model="warmed") >= asked
    )
    assert value(found, "brisk_requests_total", model="warmed") == asked


def test_versions_are_those_of_the_policy(
    control: http.InferenceServerClient, client: InferenceClient
) -> None:
    for name, factor in (("chosen", 2), ("latest", 1)):
        control.load_model(name)
        assert client.infer(name, {"x": ones()})["y"][0, 0] == factor


def test_fields_of_later_servers_are_refused_by_this_one(
    repository: Path, control: http.InferenceServerClient
) -> None:
    text = 'model_metrics { metric_control [ { metric_identifier { family: "f" } } ] }'
    write_entry(repository, "measured", doubled(), signature() + text)
    with pytest.raises(InferenceServerException, match="failed to poll"):
        control.load_model("measured")


def test_a_file_in_a_folder_of_the_version_may_be_named(
    control: http.InferenceServerClient, client: InferenceClient
) -> None:
    control.load_model("named")
    assert client.infer("named", {"x": ones()})["y"][0, 0] == 2
