"""The adapter, which makes the next version of a model's caches from sampled requests."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from brisk.exits.adaptation.features import Material, gather, joined, read_points
from brisk.exits.adaptation.reference import ReferenceData, read_reference
from brisk.exits.adaptation.replay_buffer import (
    BufferedSample,
    SampleWindow,
    Use,
    newest_of_sources,
    recent_choice,
)
from brisk.exits.adaptation.retraining import AdaptationSettings, OutOfDistribution, retrain
from brisk.exits.adaptation.validation import (
    Judgement,
    is_better,
    judge,
    standing_of,
    unproved,
)
from brisk.exits.base_model import BATCH_ROWS, BaseModel, load_graph, taps_of
from brisk.exits.cascade import Cascade, Exit
from brisk.exits.cascade_file import read_cascade, unchanged
from brisk.exits.data.outliers import FOR_FLOOR, make_outliers
from brisk.exits.files.container import DamagedFileError, digest_at_end
from brisk.exits.files.versions import reference_file, trained_file
from brisk.exits.guarantee.calibration import Promise, Scored, in_order
from brisk.exits.guarantee.proposals import fewest_to_calibrate
from brisk.exits.heads.exit_head import ExitHead
from brisk.exits.learning.exporting import export_head, network_of
from brisk.exits.model_graph import read_graph
from brisk.exits.sources import marks

JUDGED_HALF_LIVES = 2.0
"""The age, in half-lives, beyond which samples propose and prove no thresholds."""


@dataclass(frozen=True, slots=True)
class AdaptationOutcome:
    """The result of an adaptation."""

    cascade: Cascade | None
    """The next version; None if the old one stays."""
    reason: str
    """The reason why the old version stays; with a next version, the evidence of recent traffic
    against the old one, if any."""
    samples: int
    retraining_s: tuple[float, ...] = ()
    """The processor time of each cache's retraining."""
    saved_s: tuple[float, float] = (0.0, 0.0)
    """The time saved for an input of recent traffic on average, before and after."""


class Adapter:
    """Adapts the caches of one model; belongs to one thread. Samples in memory are bounded."""

    def __init__(
        self,
        base: BaseModel,
        cascade: Cascade,
        reference: ReferenceData,
        settings: AdaptationSettings,
    ) -> None:
        """Run the base model on the reference and on outliers made of it; takes some seconds."""
        self.cascade = self._trained = cascade
        self.window = SampleWindow(settings.window_rows, settings.window_bytes)
        self._reserve(reference)
        self._base = base
        self._settings = settings
        self._fit, self._select, self._held_out = (
            material.take(np.flatnonzero(material.finite_rows()))
            for material in (
                gather(base, cascade, part.inputs)
                for part in (reference.fit, reference.select, reference.held_out)
            )
        )
        self._outliers = self._make_outliers(reference)
        self._kinds = {
            name: (array.dtype, array.shape[1:]) for name, array in reference.fit.inputs.items()
        }
        # The first optimizer of a process imports a second's worth of modules.
        torch.optim.AdamW([torch.zeros(1, requires_grad=True)]).zero_grad()

    @classmethod
    def open(cls, model_file: Path, settings: AdaptationSettings) -> Adapter | None:
        """Open the model's caches and reference; return None if either is missing.

        Raises DamagedFileError if they are not whole or not of this model, or are replaced
        meanwhile, ReplacedModelError if the model is.
        """
        caches, original = trained_file(model_file), reference_file(model_file)
        if not (caches.exists() and original.exists()):
            return None
        with unchanged(model_file) as digest:
            trained = digest_at_end(caches)
            cascade = read_cascade(caches, digest)
            reference = read_reference(original, digest)  # written last
            if digest_at_end(caches) != trained:
                raise DamagedFileError(f"'{caches}' was replaced while it was read")
            cascade = dataclasses.replace(cascade, trained_digest=trained)
            graph = read_graph(model_file)
            taps = taps_of(read_points(cascade), cascade.scores, graph)
            base = load_graph(graph, 1, taps)
        return cls(base, cascade, reference, settings)

    def take(self, inputs: Mapping[str, np.ndarray], now_s: float) -> None:
        """Keep the rows of a sampled request if they are of the reference's types and shapes."""
        kinds = {name: (array.dtype, array.shape[1:]) for name, array in inputs.items()}
        if kinds != self._kinds:
            return
        rows = len(next(iter(inputs.values())))
        for start in range(0, rows, BATCH_ROWS):
            part = slice(start, start + BATCH_ROWS)
            self.window.offer({name: array[part] for name, array in inputs.items()}, now_s)
            if self.window.fresh_bytes >= self._settings.fresh_bytes:
                self._see()

    def adapt(self, now_s: float) -> AdaptationOutcome:
        """Retrain all caches; a better version becomes ``cascade``, which later calls start from.

        If traffic turns back, the caches as they were trained first may be the next version: their
        promise is proved on data of their own, and recent traffic must not contradict it.
        """
        chosen = self._chosen(now_s)
        too_few = self._too_few(chosen)
        if not too_few:
            self._see()
            chosen = self._chosen(now_s)
            too_few = self._too_few(chosen)  # rows of no numbers are gone
        samples = sum(map(len, chosen.values()))
        if too_few:
            return AdaptationOutcome(None, too_few, samples)
        parts = {use: self._joined(each) for use, each in chosen.items()}
        recent = parts[Use.HELD_OUT]
        served, trained = (standing_of(each, recent) for each in (self.cascade, self._trained))
        networks: list[ExitHead] = []
        retraining_s: list[float] = []
        verdict = Judgement((), unproved(self._promise, len(recent)), 0.0)
        if len(recent) >= fewest_to_calibrate(self._promise):
            networks, tune, retraining_s = self._retrained(parts)
            trained_to = [level.accuracy for level in self._trained.levels]
            verdict = judge(
                self.cascade, networks, tune, recent, self._held_out, served, trained_to
            )
        learned_s = verdict.saved_s if verdict.levels else 0.0
        if is_better(trained.sound_s, served) and trained.sound_s > learned_s:
            exits, levels, after_s = self._trained.exits, self._trained.levels, trained.saved_s
        elif verdict.levels:
            exits, levels, after_s = self._with(networks), verdict.levels, verdict.saved_s
        else:
            saved = served.saved_s, verdict.saved_s
            return AdaptationOutcome(None, verdict.reason, samples, tuple(retraining_s), saved)
        self.cascade = dataclasses.replace(
            self.cascade,
            exits=exits,
            levels=levels,
            revision=self.cascade.revision + 1,
            repairs=bool(served.doubt),
        )
        saved = served.saved_s, after_s
        return AdaptationOutcome(self.cascade, served.doubt, samples, tuple(retraining_s), saved)

    def _with(self, networks: Sequence[ExitHead]) -> tuple[Exit, ...]:
        """Return the cascade's exits with ``networks`` in place of their own."""
        return tuple(
            exit_
            if exit_.reads_input
            else dataclasses.replace(exit_, model=export_head(network, exit_.shape, exit_.variant))
            for exit_, network in zip(self.cascade.exits, networks, strict=True)
        )

    def _retrained(
        self, parts: Mapping[Use, Material]
    ) -> tuple[list[ExitHead], Scored, list[float]]:
        """Return all exits' networks fitted anew, the rows that tune them, and each network's
        processor time."""
        fit = self._mixed(parts[Use.FIT], self._fit)
        select = self._mixed(parts[Use.SELECT], self._select)
        networks, tune, retraining_s = [], [], []
        for index, exit_ in enumerate(self.cascade.exits):
            started_s = time.process_time()
            network, unseen = retrain(
                *(network_of(exit_), index, fit, select, self._outliers, self._settings)
            )
            networks.append(network)
            tune.append(unseen.take(slice(len(parts[Use.SELECT]))))
            retraining_s.append(time.process_time() - started_s)
        return networks, in_order(tune), retraining_s

    @property
    def _promise(self) -> Promise:
        """The first level's promise, without which there is no version."""
        return Promise(self._trained.levels[0].accuracy, self._trained.confidence)

    def _too_few(self, chosen: Mapping[Use, Sequence[BufferedSample]]) -> str:
        """Return why the samples suffice for no version, or ''.

        Too few to prove one may still speak for a return to what was trained.
        """
        samples, fewest = sum(map(len, chosen.values())), self._settings.fewest_distinct
        if samples < fewest:
            return (
                f"there are {samples} different samples in {self.window.offered} offered; "
                f"expected at least {fewest}"
            )
        held_out, is_as_trained = len(chosen[Use.HELD_OUT]), not self.cascade.revision
        if is_as_trained and held_out < fewest_to_calibrate(self._promise):
            return unproved(self._promise, held_out)
        return ""

    def _see(self) -> None:
        """Run the base model on the samples on which it has not run yet."""
        fresh = [sample for sample in self.window.samples() if sample.seen is None]
        if not fresh:
            return
        inputs = {
            name: np.stack([sample.inputs[name] for sample in fresh]) for name in fresh[0].inputs
        }
        material = gather(self._base, self.cascade, inputs)
        for row, is_finite in enumerate(material.finite_rows()):
            if is_finite:
                self.window.see(fresh[row], material.take([row]))
            else:  # a row with NaN trains nothing
                self.window.drop(fresh[row])

    def _chosen(self, now_s: float) -> dict[Use, list[BufferedSample]]:
        """Return the window's samples by use: those to fit drawn by recency, others if recent."""
        samples = self.window.samples()
        settings, found = self._settings, {}
        oldest_s = now_s - JUDGED_HALF_LIVES * settings.half_life_s
        for use in Use:
            chosen = [sample for sample in samples if sample.use is use]
            if use is Use.FIT:
                arrived_s = [sample.arrived_s for sample in chosen]
                rows = recent_choice(
                    arrived_s,
                    now_s,
                    half_life_s=settings.half_life_s,
                    count=settings.fit_rows,
                    seed=settings.seed,
                )
                chosen = [chosen[row] for row in rows]
            else:  # what is proved is proved of the traffic as it is now, each source once
                chosen = [one for one in newest_of_sources(chosen) if one.arrived_s >= oldest_s]
            found[use] = chosen
        return found

    def _joined(self, samples: Sequence[BufferedSample]) -> Material:
        materials = [sample.seen for sample in samples if sample.seen is not None]
        return joined(materials) if materials else self._fit.take([])

    def _mixed(self, recent: Material, original: Material) -> Material:
        """Return recent rows and the settings' share of original ones."""
        share = self._settings.original_share
        count = round(len(recent) * share / (1 - share))
        random = np.random.default_rng(self._settings.seed + self.cascade.revision)
        rows = random.permutation(len(original))[: max(count, 1)]
        return joined([recent, original.take(rows)])

    def _make_outliers(self, reference: ReferenceData) -> OutOfDistribution:
        outliers = make_outliers(reference.select, self._settings.seed)
        if not len(outliers):
            nothing = self._fit.take([])
            return OutOfDistribution(nothing, nothing, torch.empty(0, dtype=torch.int64))
        material = gather(self._base, self.cascade, outliers.samples.inputs)
        is_finite, is_for_floor = np.array(material.finite_rows()), outliers.uses == FOR_FLOOR
        for_floor = np.flatnonzero(is_for_floor & is_finite)
        return OutOfDistribution(
            material.take(np.flatnonzero(~is_for_floor & is_finite)),
            material.take(for_floor),
            torch.from_numpy(outliers.kinds[for_floor]),
        )

    def _reserve(self, reference: ReferenceData) -> None:
        """Reserve traffic that repeats training data for the use that this data had."""
        parts = (reference.held_out, reference.select, reference.fit)
        for part, use in zip(parts, (Use.HELD_OUT, Use.SELECT, Use.FIT), strict=True):
            self.window.reserve(marks(part.inputs), use)
        self.window.reserve(reference.learned, Use.FIT)
