"""`brisk bench exits_learned`: early answers that nobody has trained, through a real Triton.

One server has a model twice: an entry with the one line `brisk_accuracy`, and one without. A
client asks the first at a steady rate, inputs in a random order, each once while they last. Told
is when samples were enough, when the first early answer came, and what the real-time requests of a
third entry cost while the server learned, over before. Then inputs that were not sent so far are
asked of both entries in turns: latency, agreement, share of early answers. Where nothing pays,
more samples are awaited, as the product does; in the end the reason is told, and that costs
nothing then.

The model is the ResNet-50 on Fashion-MNIST of `brisk bench exits` (`--fashion`), or any other with
its inputs: `--model FILE --data FILE.npz`, or a folder of such files, of several lengths perhaps.
`--tolerance` says which values count as the model's own where it does not classify, `--smaller`
names a smaller model that may answer, too.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from brisk.errors import InvalidConfigurationError
from brisk.exits.data.reading import read_parts
from brisk.exits.data.samples import Samples
from brisk.exits.model_graph import read_graph
from brisk.exits.scores import ScoreForm, Scores, all_agreeing
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.protocol.status import ModelStatus
from brisk.settings import Tolerance, tolerance
from brisk.telemetry.observer import Observer
from brisk_bench.exits.data import FASHION, fashion_case
from brisk_bench.harness.command_line import benchmark_parser, deliver
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.report import Check, Report, check_limit, check_tail_ratio
from brisk_bench.harness.served_entries import place_model, sample_file
from brisk_bench.harness.served_server import benchmark_server
from brisk_bench.harness.tails import tail_or_shortage
from brisk_client.inference import InferenceClient, Transport

LEARNED, BARE, URGENT = "learned", "bare", "urgent"
URGENT_MODEL = "mlp/1"
SMALLER_FILE = "smaller.onnx"
URGENT_EVERY_S = 0.02

LOOK_S = 1.0
SETTLED_S = 20.0
"""The time from the first early answer to the comparison."""

COMPARED = {False: 2000, True: 300}
"""Inputs of the comparison, by whether the run is quick. They are the last, not sent before."""

AIM_S, AIM_TAIL, AIM_SPEED_UP = 600.0, 1.05, 1.3

NOTES = (
    "traffic: one gRPC client at a steady rate; looks: the runtime's own status once a second",
    "urgent: a real-time entry asked every 20 ms; learning: from enough samples to the first "
    "early answer or the refusal, before: until then",
    "compared: inputs that were not sent before, to both entries in turns",
)


@dataclass(slots=True)
class Story:
    """The course of learning, in seconds from the first request.

    ``enough_s``: when samples were enough.
    ``early_s``: when the first early answer was seen.
    ``refused_s``: when it was said that nothing pays with so many samples, each time.
    ``reason``: why nothing is served in the end; empty if something is.
    ``sent``: requests sent.
    ``before``, ``learning``: latencies of real-time requests, before and while the server learned.
    """

    enough_s: float | None = None
    early_s: float | None = None
    refused_s: tuple[float, ...] = ()
    reason: str = ""
    sent: int = 0
    before: list[float] = field(default_factory=list)
    learning: list[float] = field(default_factory=list)


Inputs = Mapping[str, np.ndarray]
"""The inputs of one request by name, each [1, ...]."""


def run(model: Path, requests: Sequence[Inputs], chosen: argparse.Namespace) -> Report:
    """Let a server learn, then compare; return the report.

    ``requests``: what is asked, each once while they last.
    """
    compared = COMPARED[chosen.quick]
    if len(requests) < 2 * compared:
        raise InvalidConfigurationError(f"there are {len(requests)} inputs; give {2 * compared}")
    order = np.random.default_rng(chosen.seed).permutation(len(requests))
    sent, held_out = ([requests[at] for at in part] for part in np.split(order, [-compared]))
    report = new_report("exits_learned", ("torch", "numpy", "tritonclient"), NOTES)
    with tempfile.TemporaryDirectory(prefix="brisk-bench-") as folder:
        repository, cache = Path(folder) / "repository", Path(folder) / "cache"
        cache.mkdir(mode=0o700)
        _write(repository, model, chosen)
        environment = {"BRISK_CACHE_DIR": str(cache), "BRISK_SAMPLES_MIB": str(chosen.samples_mib)}
        with (
            benchmark_server(repository, environment) as server,
            InferenceClient(server.grpc, Transport.GRPC) as client,
        ):
            story = _learn(client, server.grpc, server.place, sent, chosen)
            _compare(report, client, server.place, held_out, story, chosen)
    report.rows.insert(
        0,
        {
            "side": "learning",
            "enough_s": story.enough_s,
            "first_early_s": story.early_s,
            "refused_s": ", ".join(f"{each:.0f}" for each in story.refused_s),
            "reason": story.reason,
            "requests": story.sent,
            "urgent_before_p99_ms": tail_or_shortage(story.before, 0.99, 1e3),
            "urgent_learning_p99_ms": tail_or_shortage(story.learning, 0.99, 1e3),
        },
    )
    text = "from the first request to the first early answer, s"
    value = story.early_s if story.early_s is not None else (story.reason or "not in time")
    is_fast = story.early_s is not None and story.early_s <= AIM_S
    report.checks.append(Check(text, value, f"<= {AIM_S:g}", is_fast))
    text = "real-time p99 beside learning over before"
    report.checks.append(check_tail_ratio(text, story.learning, story.before, 0.99, AIM_TAIL))
    return report


def main(arguments: Sequence[str]) -> int:
    """Run the command line; the exit status is 0 if every check holds."""
    parser = benchmark_parser("exits_learned", __doc__, "fewer inputs are compared")
    parser.add_argument("--fashion", type=Path, metavar="FOLDER", default=FASHION)
    parser.add_argument("--model", type=Path, metavar="FILE", help="another model")
    parser.add_argument("--data", type=Path, metavar="PATH", help="its inputs, .npz, or a folder")
    parser.add_argument("--tolerance", default="", help="as brisk_tolerance, for values")
    parser.add_argument("--smaller", type=Path, metavar="FILE", help="a smaller model")
    parser.add_argument("--accuracy", type=float, default=0.98)
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second")
    parser.add_argument("--most-s", type=float, default=1200.0, help="give up then")
    parser.add_argument("--samples-mib", type=int, default=256, help="BRISK_SAMPLES_MIB")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    if chosen.model is not None and chosen.data is not None:
        model = chosen.model
        requests = _requests(read_parts(chosen.data, read_graph(model)))
    else:
        case = fashion_case(chosen.fashion, quick=False)
        if case is None or case.pool is None or case.streamed is None:
            raise InvalidConfigurationError(f"{chosen.fashion} has no Fashion-MNIST; give --model")
        model = case.model
        requests = _requests([case.pool, case.streamed, case.evaluation])
    return deliver(run(model, requests, chosen), chosen, None)


def _requests(parts: Sequence[Samples]) -> list[Inputs]:
    return [
        {name: array[row : row + 1] for name, array in part.inputs.items()}
        for part in parts
        for row in range(len(part))
    ]


def _write(repository: Path, model: Path, chosen: argparse.Namespace) -> None:
    line = 'parameters { key: "%s" value { string_value: "%s" } }\n'
    parameters = line % ("brisk_accuracy", chosen.accuracy)
    if chosen.tolerance:
        parameters += line % ("brisk_tolerance", chosen.tolerance)
    if chosen.smaller is not None:
        parameters += line % ("brisk_smaller_model", SMALLER_FILE)
    rows = 0 if read_graph(model).is_single else 8
    for name, file, text in (
        (LEARNED, model, parameters),
        (BARE, model, ""),
        (URGENT, sample_file(URGENT_MODEL), line % ("brisk_class", "realtime")),
    ):
        target = repository / name / "1" / "model.onnx"
        target.parent.mkdir(parents=True)
        place_model(file, target)
        config = target.parents[1] / "config.pbtxt"
        most = 8 if name == URGENT else rows
        config.write_text(f'backend: "brisk" max_batch_size: {most}\n{text}')
    if chosen.smaller is not None:
        place_model(chosen.smaller, repository / LEARNED / "1" / SMALLER_FILE)


def _learn(
    client: InferenceClient,
    url: str,
    place: RuntimePaths,
    requests: Sequence[Inputs],
    chosen: argparse.Namespace,
) -> Story:
    story, urgent = Story(), _Urgent(url)
    urgent.start()
    refused, tries = "", dict[str, float]()
    begun_s = looked_s = time.monotonic()
    until_s = begun_s + chosen.most_s
    while time.monotonic() < until_s:
        time.sleep(max(0.0, begun_s + story.sent / chosen.rate - time.monotonic()))
        client.infer(LEARNED, requests[story.sent % len(requests)])
        story.sent += 1
        now_s = time.monotonic()
        if now_s - looked_s < LOOK_S:
            continue
        looked_s, status = now_s, _status(place)
        if story.enough_s is None and status.learning.startswith(("learning from", "learned")):
            story.enough_s = now_s - begun_s
            story.before, urgent.taken_s = urgent.taken_s, []
        if story.early_s is None and any(exit_.answered for exit_ in status.exits):
            story.early_s = now_s - begun_s
            story.learning = list(urgent.taken_s)
            until_s = min(until_s, now_s + SETTLED_S)
        if status.learning.startswith(("does not pay", "not for this model")):
            refused = status.learning
            tries.setdefault(refused.partition("; again with")[0], now_s - begun_s)
            if "; again with" not in refused:
                break
    if story.early_s is None:
        story.reason = refused
        story.learning = list(urgent.taken_s)
    story.refused_s = tuple(tries.values())
    urgent.end()
    return story


class _Urgent(threading.Thread):
    """A thread that asks the real-time entry; ``taken_s`` may be exchanged meanwhile."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.taken_s: list[float] = []
        self._url = url
        self._is_over = threading.Event()

    def run(self) -> None:
        with InferenceClient(self._url, Transport.GRPC) as client:
            inputs = client.example_inputs(URGENT)
            while not self._is_over.wait(URGENT_EVERY_S):
                started_s = time.perf_counter()
                client.infer(URGENT, inputs)
                self.taken_s.append(time.perf_counter() - started_s)

    def end(self) -> None:
        self._is_over.set()
        self.join()


def _compare(
    report: Report,
    client: InferenceClient,
    place: RuntimePaths,
    requests: Sequence[Inputs],
    story: Story,
    chosen: argparse.Namespace,
) -> None:
    before = _status(place)
    latencies_s: dict[str, list[float]] = {LEARNED: [], BARE: []}
    limit = tolerance(chosen.tolerance) if chosen.tolerance else None
    agreeing = 0
    for turn, inputs in enumerate(requests):
        answers = {}
        for side in _in_turns(turn):
            started_s = time.perf_counter()
            answers[side] = client.infer(side, inputs)
            latencies_s[side].append(time.perf_counter() - started_s)
        agreeing += _agree(answers[LEARNED], answers[BARE], limit)
    after = _status(place)
    early = sum(each.answered for each in after.exits) - sum(
        each.answered for each in before.exits
    )
    used = ", ".join(each.name for each in after.exits if each.answered)
    for side, times_s in latencies_s.items():
        report.rows.append(
            {
                "side": side,
                "mean_ms": statistics.fmean(times_s) * 1e3,
                "median_ms": statistics.median(times_s) * 1e3,
                "p99_ms": tail_or_shortage(times_s, 0.99, 1e3),
                "agreement": agreeing / len(requests) if side == LEARNED else 1.0,
                "early": early / len(requests) if side == LEARNED else 0.0,
                "exits": used if side == LEARNED else "",
            }
        )
    speed_up = statistics.fmean(latencies_s[BARE]) / statistics.fmean(latencies_s[LEARNED])
    if story.reason:
        report.checks.append(check_limit("nothing is served: mean speed-up", speed_up, ">=", 0.95))
        return
    report.checks += [
        check_limit("mean speed-up", speed_up, ">=", AIM_SPEED_UP),
        check_limit("agreement", agreeing / len(requests), ">=", chosen.accuracy),
        check_tail_ratio(
            "p99 over the bare model's", latencies_s[LEARNED], latencies_s[BARE], 0.99, 1.02
        ),
    ]


def _agree(ours: Inputs, theirs: Inputs, limit: Tolerance | None) -> bool:
    """Whether the classes are the same, or every output is within the tolerance."""
    if limit is None:
        return bool(np.argmax(next(iter(ours.values()))) == np.argmax(next(iter(theirs.values()))))
    scores = Scores("", 0, 0, ScoreForm.VALUES, True, limit)
    own = [ours[name] for name in theirs]
    return bool(all_agreeing(own, list(theirs.values()), scores).all())


def _in_turns(turn: int) -> Iterator[str]:
    yield from (LEARNED, BARE) if turn % 2 else (BARE, LEARNED)


def _status(place: RuntimePaths) -> ModelStatus:
    with Observer(place, Role.FOREGROUND) as observer:
        return next(each for each in observer.status().models if each.name == LEARNED)
