"""``brisk explain --hosts``: real models, measured here, planned for hosts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from onnx import TensorProto
from typer.testing import CliRunner

from brisk.cli.application import application
from brisk.errors import InvalidConfigurationError, InvalidModelError
from brisk.publishing.measuring import measured_profile
from brisk.segments.model.sources import BareModel
from brisk.segments.prepared.form import PreparedModel, find_prepared
from brisk.segments.prepared.preparation import prepare
from support.models.identity_models import FLOAT_BATCH, write_model
from support.models.segment_models import chain
from support.pipeline_entries import describe_fork, write

SAMPLE = Path(__file__).resolve().parents[3] / "model_repository" / "resnet50"
LAYERS, WIDTH = 60, 512


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """60 products of 1 MB each, served in several segments."""
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "net" / "1").mkdir(parents=True)
    return chain(tmp_path / "net" / "1" / "model.onnx", layers=LAYERS, width=WIDTH)


def explained(*words: Path | str | float) -> list[str]:
    answer = CliRunner().invoke(application, ["explain", *map(str, words)])
    if answer.exception is not None:
        raise answer.exception
    return answer.stdout.splitlines()


def megabytes(lines: list[str]) -> list[float]:
    """Of each host, in order."""
    return [float(found[1]) for line in lines if (found := re.search(r", ([\d.]+) MB from", line))]


def first_answers_s(lines: list[str]) -> list[float]:
    found = (re.search(r"hosts?: first answer after ([\d.]+) (m?s),", line) for line in lines)
    return [float(each[1]) / (1000 if each[2] == "ms" else 1) for each in found if each]


def test_parts_of_a_model_are_told_for_each_number_of_hosts(model: Path) -> None:
    lines = explained(model.parents[1], "--hosts", 3, "--link", 100, "--anywhere")
    assert f"{model}: " in lines[0]
    assert "links of 100 Mbit/s each way, 2000 Mbit/s from the registry" in lines[1]
    assert [line for line in lines if re.match(r"  \d hosts?: first answer after", line)]
    assert len(first_answers_s(lines)) == 3
    weights_mb = LAYERS * WIDTH * WIDTH * 4 / 1e6
    sizes = megabytes(lines)
    assert len(sizes) == 1 + 2 + 3
    for plan in (sizes[:1], sizes[1:3], sizes[3:]):
        assert sum(plan) == pytest.approx(weights_mb, rel=0.01)
        assert max(plan) == pytest.approx(weights_mb / len(plan), rel=0.1)
    whole_s, *_, parted_s = first_answers_s(lines)
    assert whole_s >= weights_mb * 8 / 100
    assert parted_s < 0.6 * whole_s
    assert "the start waits for the link of host" in lines[2]
    assert lines[-1].startswith("  best: 3 hosts, ")
    # a row of float32 lives at each border where the residual sum is all there is
    assert any(line.endswith("hands on 0.00 MB") for line in lines)


def test_where_one_uplink_bounds_the_start_one_host_is_best(model: Path) -> None:
    lines = explained(model, "--hosts", 3, "--link", 100, "--registry", 50, "--anywhere")
    assert "the uplink of the registry, shared by 1 host" in lines[2]
    assert any("the uplink of the registry, shared by 3 hosts" in line for line in lines)
    assert lines[-1] == "  best: 1 host, parts do not pay"


def test_parts_are_no_less_than_the_segments_served_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    entry = write_model(tmp_path / "net", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    lines = explained(entry, "--hosts", 4)
    assert "1 segment of its file" in lines[0]
    assert lines[-2] == (
        "  no part is less than a segment: 1 host at most; more where cuts may stand elsewhere "
        "(--anywhere)"
    )
    assert lines[-1] == "  best: 1 host, parts do not pay"


def test_a_prepared_form_is_what_travels_where_there_is_one(model: Path) -> None:
    prepare(model, 1)
    lines = explained(model, "--hosts", 2)
    assert "of its prepared form" in lines[0]
    form = find_prepared(model)
    assert form is not None
    profile = measured_profile(PreparedModel(form, model, 1))
    assert 0.9 * form.stat().st_size < profile.weight_bytes <= form.stat().st_size
    assert f"{profile.weight_bytes / 1e6:.1f} MB;" in lines[0]


def test_a_profile_has_the_bytes_and_times_of_each_segment(model: Path) -> None:
    source = BareModel(model, 1, longest_ns=0)
    profile = measured_profile(source)
    assert len(profile) == len(source.plan.segments) > 1
    assert profile.weight_bytes == pytest.approx(LAYERS * WIDTH * WIDTH * 4, rel=0.01)
    for segment in profile.segments:
        assert segment.run_s > 0
        assert segment.load_s > 0
        assert segment.live_bytes % (4 * WIDTH) == 0
        assert 4 * WIDTH <= segment.live_bytes <= 3 * 4 * WIDTH
    assert profile.segments[-1].live_bytes == 4 * WIDTH, "the answer"


def test_hosts_that_there_are_none_of_and_links_of_nothing_are_refused(model: Path) -> None:
    with pytest.raises(InvalidConfigurationError, match="a network of no hosts"):
        explained(model, "--hosts", 0)
    with pytest.raises(InvalidConfigurationError, match="finite rates above 0"):
        explained(model, "--hosts", 2, "--link", 0)
    with pytest.raises(InvalidConfigurationError, match="parts of a model run on cpu alone"):
        explained(model, "--hosts", 2, "--device", "cuda:0")


def test_a_model_whose_inputs_cannot_be_made_up_is_named(tmp_path: Path) -> None:
    words = (TensorProto.STRING, ["batch", 3])
    entry = write_model(tmp_path / "net", {"x": words}, {"y": words})
    with pytest.raises(InvalidModelError, match="takes no inputs that are made up"):
        explained(entry, "--hosts", 2)


def test_a_pipeline_is_refused_for_its_networks(tmp_path: Path) -> None:
    write(tmp_path / "fork" / "1", describe_fork(tmp_path / "fork" / "1"))
    with pytest.raises(InvalidConfigurationError, match="expected one of its networks"):
        explained(tmp_path / "fork", "--hosts", 2)


@pytest.mark.skipif(not SAMPLE.exists(), reason="sample resnet50 is not made; run `make samples`")
def test_resnet_50_starts_sooner_on_each_host_more() -> None:
    lines = explained(SAMPLE, "--hosts", 4, "--link", 500, "--registry", 2000, "--anywhere")
    first_s = first_answers_s(lines)
    assert len(first_s) == 4
    # bytes alone: 102.3 MB at 500 Mbit/s; runs may take this machine's time
    assert first_s[0] >= 1.63
    assert first_s[1] < first_s[0]
    largest_mb = [max(plan) for plan in _plans(megabytes(lines))]
    assert largest_mb == sorted(largest_mb, reverse=True)
    assert largest_mb[3] < 0.35 * largest_mb[0]


def _plans(sizes: list[float]) -> list[list[float]]:
    """Of 1, 2, 3 and 4 hosts."""
    return [sizes[0:1], sizes[1:3], sizes[3:6], sizes[6:10]]
