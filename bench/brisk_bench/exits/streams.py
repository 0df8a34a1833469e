"""Streams with temporal locality: static caches against adapting ones (GATI, 7.2).

Requests that are measured show other images than those that caches learn from, and both others
than those that trained the network and its caches. Adaptation goes as in the product: its
settings, its reference, its interval, its share of the requests.

A stream is drawn from images by Zipf's law, or it is a fixed camera's video, read in two ways
(7.2.1). As in the paper a network trained on CIFAR-10 looks at a street it never saw, and its
caches were made with CIFAR-10. What it says of the frames is no truth; caches are judged by the
same answers. They learn from earlier frames and are measured on later ones. ``GAP_S`` lies
between, so that no measured frame directly follows a learned one; what stands still for longer is
seen again, as it is in a camera's traffic.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from brisk.exits.adaptation.adapter import Adapter
from brisk.exits.adaptation.reference import write_reference
from brisk.exits.adaptation.retraining import AdaptationSettings
from brisk.exits.cascade import Cascade
from brisk.exits.data.samples import Samples
from brisk.runtime.settings import ADAPTATION_S, SAMPLED_SHARE
from brisk_bench.exits.data import ACCURACY, ExitCase, as_input
from brisk_bench.exits.runs import BARE, ExitBench, ExitSide, Version, load_for, side_rows
from brisk_bench.harness.report import Check, Report, check_limit

SPEED_UP = 3.2
ALPHAS = (1.5, 3.0)
"""Skews of Zipf streams (GATI, 7.2.2)."""

SEEDS = {False: 5, True: 2}
"""Seeds of each Zipf stream, by whether the run is quick."""

PERIODS = 3
STATIC, ADAPTIVE = "static caches", "adaptive caches"
LEARNED_FROM, MEASURED = 20_000, 400
"""Requests of a period: those in the minute before caches are trained again, and those measured
after that. The paper's periods last a quarter of an hour."""

SHARE_MEASURED = 0.25
"""The share of a stream's images that are measured; nothing is learned from these."""

ARRIVALS = 12
"""Parts in which an interval's samples arrive: a worker's thread writes some at a time."""

LEAST_BRIGHT = 0.55


@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """The time between two retrainings.

    ``arriving``: requests, of which caches learn from the share ``sampled``.
    ``measured``: later requests, whose latency is measured.
    """

    stream: str
    arriving: Samples
    measured: Samples
    sampled: float = SAMPLED_SHARE


def divided(streamed: Samples, seed: int) -> tuple[Samples, Samples]:
    """Return images to learn from, and others to measure with; of every class the same share."""
    assert streamed.labels is not None, "streams are drawn by class"
    random = np.random.default_rng(seed)
    learned, measured = [], []
    for one in np.unique(streamed.labels):
        rows = random.permutation(np.flatnonzero(streamed.labels == one))
        count = round(SHARE_MEASURED * len(rows))
        measured.append(rows[:count])
        learned.append(rows[count:])
    return streamed.take(np.concatenate(learned)), streamed.take(np.concatenate(measured))


def zipf_intervals(streamed: Samples, alpha: float, seed: int) -> Iterator[Interval]:
    """Yield intervals, each with another dominant class.

    The inputs are images moved and darkened at random, so that no two are the same and that static
    caches find them somewhat unlike what they know.
    """
    random = np.random.default_rng((seed, int(alpha * 10)))
    parts = divided(streamed, seed)
    for period in range(PERIODS):
        arriving, measured = (
            _draw(part, alpha, period * 3, count, random)
            for part, count in zip(parts, (LEARNED_FROM, MEASURED), strict=True)
        )
        yield Interval(f"Zipf {alpha}", arriving, measured)


def fresh_seeds(count: int) -> list[int]:
    """Return seeds that differ in every run, so that they cannot have been selected."""
    return [int(each) for each in np.random.SeedSequence().generate_state(count)]


@dataclass(frozen=True, slots=True, eq=False)
class Followed:
    """The results of a whole stream.

    ``sides``: of all its intervals together.
    ``least_agreement``: of any interval with adaptation.
    ``slowest_s``: the longest retraining of a cache.
    """

    stream: str
    sides: Mapping[str, ExitSide]
    least_agreement: float
    slowest_s: float

    @property
    def speed_up(self) -> float:
        """Speed-up of adapting caches over the bare model, of means."""
        return self.sides[BARE].mean_s / self.sides[ADAPTIVE].mean_s

    @property
    def over_static(self) -> float:
        """Speed-up of adapting caches over static ones, of means."""
        return self.sides[STATIC].mean_s / self.sides[ADAPTIVE].mean_s


def measure_streams(
    report: Report,
    case: ExitCase,
    cascade: Cascade,
    bench: ExitBench,
    video: Path | None,
    seeds: Sequence[int],
) -> None:
    """Measure static and adapting caches on Zipf streams, each with every seed, if the case has
    images for them, and on a video."""
    if case.streamed is not None:
        for alpha in ALPHAS:
            drawn = {
                f"seed {seed}": _follow(
                    *(report, case, cascade, bench, f"seed {seed}: "),
                    zipf_intervals(case.streamed, alpha, seed),
                    seed,
                )
                for seed in seeds
            }
            _judge(report, case, {name: each for name, each in drawn.items() if each is not None})
    else:
        report.notes.append(
            f"{case.name}: no Zipf streams, there are too few images that neither the network nor "
            "its caches were trained on"
        )
    for reading in READINGS if video is not None and case.is_of_colour else ():
        assert video is not None
        followed = _follow(report, case, cascade, bench, "", video_intervals(video, reading), 0)
        if followed is None:
            report.notes.append(f"'{video}' is shorter than an interval and its gap: left out")
        else:
            _judge(report, case, {"the video": followed})


def _follow(
    report: Report,
    case: ExitCase,
    cascade: Cascade,
    bench: ExitBench,
    label: str,
    intervals: Iterable[Interval],
    seed: int,
) -> Followed | None:
    """Run a stream: in each interval some requests are sampled, caches learn, latency is measured.

    None if there is no interval. ``label``: put before the interval's number in the notes.
    """
    with TemporaryDirectory() as folder:
        reference = write_reference(
            *(Path(folder) / "model.reference", cascade.model_digest, case.training),
            *(case.division, case.more_to_fit),
        )
    base = load_for(case.model, cascade)
    adapter = Adapter(base, cascade, reference, AdaptationSettings())
    random = np.random.default_rng(seed)
    together: dict[str, ExitSide] = {}
    agreements: list[float] = []
    slowest_s = 0.0
    stream = ""
    for number, interval in enumerate(intervals):
        is_sampled = random.uniform(size=len(interval.arriving)) < interval.sampled
        for turn, rows in enumerate(np.array_split(np.flatnonzero(is_sampled), ARRIVALS)):
            arrived_s = (number + (turn + 1) / ARRIVALS) * ADAPTATION_S
            adapter.take(interval.arriving.take(rows).inputs, arrived_s)
        outcome = adapter.adapt((number + 1) * ADAPTATION_S)
        versions = {
            STATIC: Version(cascade, cascade.synchronous),
            ADAPTIVE: Version(adapter.cascade, cascade.synchronous),
        }
        sides = bench.measure(versions, interval.measured, 1, quick=False)
        for name, side in sides.items():
            together.setdefault(name, ExitSide()).add(side)
        agreements.append(sides[ADAPTIVE].agreement)
        stream, retraining_s = interval.stream, max(outcome.retraining_s, default=0.0)
        slowest_s = max(slowest_s, retraining_s)
        verdict = "published" if outcome.cascade is not None else "refused"
        verdict += f": {outcome.reason}" if outcome.reason else ""
        what = f"{stream}, {label}interval {number + 1}"
        report.notes.append(f"{what}: {verdict}; {retraining_s * 1e3:.0f} ms for a cache")
    return Followed(stream, together, min(agreements), slowest_s) if agreements else None


def _judge(report: Report, case: ExitCase, found: Mapping[str, Followed]) -> None:
    """Add rows and checks of one stream, drawn with several seeds: for speeds the median counts,
    for what is promised the worst."""
    if not found:
        return
    stream = next(iter(found.values())).stream
    for name, each in found.items():
        report.rows += side_rows(f"{case.name}, {stream}, {name}", 1, each.sides)
    speed_ups = [each.speed_up for each in found.values()]
    over_static = [each.over_static for each in found.values()]
    if len(found) > 1:
        for side, values in (
            (f"{ADAPTIVE} over bare", speed_ups),
            (f"{ADAPTIVE} over static", over_static),
        ):
            report.rows.append(
                {
                    "model": f"{case.name}, {stream}, median of {len(found)} seeds",
                    "side": side,
                    "speed_up": statistics.median(values),
                    "least": min(values),
                    "most": max(values),
                }
            )
    of = f", median of {len(found)} seeds" if len(found) > 1 else ""
    least = "least agreement of an interval with adaptation"
    slowest_s = max(each.slowest_s for each in found.values())
    agreement = min(each.least_agreement for each in found.values())
    report.checks += [
        Check(f"{stream}: retraining of a cache, s", slowest_s, "<= 0.5", 0 < slowest_s <= 0.5),
        check_limit(
            *(f"{stream}: mean speed-up with adaptation{of}", statistics.median(speed_ups)),
            *(">=", SPEED_UP),
        ),
        check_limit(
            f"{stream}: adaptive over static caches{of}", statistics.median(over_static), ">", 1
        ),
        check_limit(f"{stream}: {least}", agreement, ">=", ACCURACY),
    ]


def _draw(
    samples: Samples, alpha: float, shift: int, count: int, random: np.random.Generator
) -> Samples:
    """Draw ``count`` inputs, the class of rank r with probability as r to the power of -α."""
    assert samples.labels is not None, "streams are drawn by class"
    classes = int(samples.labels.max()) + 1
    weights = np.arange(1, classes + 1) ** -alpha
    drawn = (random.choice(classes, count, p=weights / weights.sum()) + shift) % classes
    of_class = [np.flatnonzero(samples.labels == one) for one in range(classes)]
    rows = np.array([random.choice(of_class[one]) for one in drawn])
    name, images = next(iter(samples.inputs.items()))
    moved = np.stack([_varied(images[row], random) for row in rows])
    return Samples({name: moved}, samples.labels[rows])


def _varied(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    down, right = random.integers(-2, 3, 2)
    bright = np.float32(random.uniform(LEAST_BRIGHT, 1.0))
    return np.asarray(np.roll(image, (down, right), (1, 2)) * bright)


# A camera.

ROWS, COLUMNS, SIDE = 6, 8, 32
HEIGHT, WIDTH = ROWS * SIDE, COLUMNS * SIDE
"""The size in pixels that a frame is scaled to."""

FRAMES_A_SECOND = 10
FRAMES = round(ADAPTATION_S * FRAMES_A_SECOND)
"""Frames of an interval, the time between two retrainings of the product."""

GAP_S = 2.0
GAP_FRAMES = round(GAP_S * FRAMES_A_SECOND)

MOST_MEASURED = 800
"""The most requests that are measured in the interval that follows, evenly spread over it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A way to make requests from a frame.

    ``requests``: makes uint8 [requests, SIDE, SIDE, 3] of [HEIGHT, WIDTH, 3].
    ``sampled``: the share of the requests that caches learn from.
    """

    name: str
    requests: Callable[[np.ndarray], np.ndarray]
    sampled: float


def parts_of(frame: np.ndarray) -> np.ndarray:
    """Return all of ROWS times COLUMNS parts, row by row."""
    parts = frame.reshape(ROWS, SIDE, COLUMNS, SIDE, 3).swapaxes(1, 2)
    return parts.reshape(-1, SIDE, SIDE, 3)


def squares_of(frame: np.ndarray) -> np.ndarray:
    """Return the left, middle and right square of the frame's height, each pixel a mean."""
    step = HEIGHT // SIDE
    starts = (0, (WIDTH - HEIGHT) // 2, WIDTH - HEIGHT)
    squares = np.stack([frame[:, start : start + HEIGHT] for start in starts])
    fine = squares.reshape(len(starts), SIDE, step, SIDE, step, 3)
    return np.asarray(fine.mean((2, 4)).round(), np.uint8)


READINGS = (
    Reading("video, 48 parts of a frame", parts_of, SAMPLED_SHARE),
    Reading("video, 3 squares of a frame's height", squares_of, SAMPLED_SHARE),
    Reading("video, 3 squares, BRISK_SAMPLED_SHARE=1", squares_of, 1.0),
)
"""Ways to make requests from frames. The paper's network sees squares; a minute holds so few that
the default share of them may prove nothing."""


def video_intervals(
    file: Path, reading: Reading, frames: int = FRAMES, gap: int = GAP_FRAMES
) -> Iterator[Interval]:
    """Yield intervals: caches learn from ``frames``, and the next ones are measured.

    ``gap``: frames left out between the two.
    """
    requests = [as_input(reading.requests(frame)) for frame in frames_of(file)]
    for start in range(frames, len(requests) - gap, frames):
        here, next_ = (
            np.ascontiguousarray(np.concatenate(part))
            for part in (requests[start - frames : start], requests[start + gap : start + frames])
        )
        rows = np.linspace(0, len(next_) - 1, min(MOST_MEASURED, len(next_))).astype(int)
        arriving, measured = Samples({"x": here}), Samples({"x": next_[rows]})
        yield Interval(reading.name, arriving, measured, reading.sampled)


def frames_of(file: Path) -> np.ndarray:
    """Return a video's frames as uint8 [frames, HEIGHT, WIDTH, 3]."""
    import imageio_ffmpeg

    scale = f"scale={WIDTH}:{HEIGHT}:flags=area"
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(file), "-vf", scale]
    command += ["-r", str(FRAMES_A_SECOND), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    pixels = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    return np.frombuffer(pixels, np.uint8).reshape(-1, HEIGHT, WIDTH, 3)
