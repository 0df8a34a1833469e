"""A manifest that lists another model's digests: its chunks are right, so the model arrives, but
neither uses that model's artefacts nor replaces them, and is refused once it was compared."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from brisk.artefacts.container import HEADER_BYTES, header
from brisk.artefacts.content import ITSELF, digest_of_file, sketch_of_file
from brisk.artefacts.seals import SEAL, manifest_size
from brisk.artefacts.store import artefacts_directory
from brisk.copies.connection import is_there, resolve
from brisk.copies.courier import Courier
from brisk.copies.local import copy_of
from brisk.copies.manifest import read_manifest, write_manifest
from brisk.copies.remote import REFUSED, read_remote_file
from brisk.errors import BriskError, InvalidModelError, UnavailableError
from brisk.protocol.runtime_paths import RuntimePaths
from brisk.publishing.describing import cuts_of
from brisk.publishing.writing import remote_text
from brisk.segments.prepared.form import find_prepared, prepared_name
from brisk.segments.prepared.preparation import prepare
from support.models.segment_models import chain, whole
from support.remote.entries import end_courier, publish_here
from support.remote.published import listed
from support.remote.registries import RegistryServer
from support.runtime.runtime_process import describe, infer, opened
from support.waiting import wait_until

WIDTH = 512
X = np.random.default_rng(3).standard_normal((2, WIDTH)).astype("f4")


def expect(answer: np.ndarray, model: Path) -> None:
    np.testing.assert_allclose(answer, whole(model, {"x": X})["y"], rtol=1e-3, atol=1e-4)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    (tmp_path / "victim").mkdir()
    return chain(tmp_path / "victim" / "model.onnx", width=WIDTH, seed=1)


@pytest.fixture
def liar(tmp_path: Path) -> Path:
    """A model of the same inputs, outputs and structure."""
    (tmp_path / "liar").mkdir()
    return chain(tmp_path / "liar" / "model.onnx", width=WIDTH, seed=2)


def publish_as(
    registry: RegistryServer, model: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Publish a model with its prepared form, both of which claim to be the victim's. Return its
    ``model.remote``."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("BRISK_CACHE_DIR", str(model.parent / "publisher"))
        remote = publish_here(registry, model, form=True)
    (digest, sketch), own = digests_of(victim), digests_of(model)
    folder = registry.folder / "m"
    path = folder / "manifest.json"
    manifest = read_manifest(path.read_bytes(), hashlib.sha256(path.read_bytes()).hexdigest())
    files = list(manifest.files)
    files[0] = files[0]._replace(digest=digest, sketch=sketch)
    claimed = claiming((folder / files[-1].name).read_bytes(), own[0], digest)
    (folder / files[-1].name).write_bytes(claimed)
    form = prepared_name({ITSELF: digest}, manifest.cuts)
    files[-1] = listed(files[-1].name, claimed, form)
    path.write_bytes(write_manifest(manifest._replace(files=tuple(files))))
    remote.write_text(remote_text(f"{registry.url}/m", path.read_bytes()))
    return remote


def digests_of(model: Path) -> tuple[str, str]:
    with model.open("rb") as file:
        size = model.stat().st_size
        return digest_of_file(file.fileno(), size), sketch_of_file(file.fileno(), size)


def claiming(form: bytes, own: str, digest: str) -> bytes:
    """Return a published prepared form that names another model as the one it was made of."""
    length = manifest_size(form[:HEADER_BYTES], len(form))
    assert own.encode() in form[-length:]
    manifest = form[-length:].replace(own.encode(), digest.encode())
    beginning = header(manifest, len(form), bytes(32))[: SEAL.start] + bytes(32)
    return beginning + form[HEADER_BYTES:-length] + manifest


def kept() -> dict[str, bytes]:
    """Return all artefacts of models by their paths."""
    found = artefacts_directory().glob("*/*/*.segments")
    return {str(path): path.read_bytes() for path in found}


def check_refused(remote: Path, local: Path) -> None:
    """Assert that nothing starts by the copy any more, and that all are told why."""
    folder = local.parent.parent

    def is_noticed() -> bool:
        with Courier() as courier:
            return all("whose bytes have" in copy["problem"] for copy in courier.status())

    wait_until((folder / REFUSED).exists, "the comparison")
    wait_until(is_noticed, "the courier's notice")
    assert not (folder / "whole").exists()
    for _ in range(2):
        with pytest.raises(InvalidModelError, match=r"for 'model\.onnx', whose bytes have"):
            resolve(remote)
        end_courier()  # the next one finds it noted
        wait_until(lambda: not is_there(), "the courier's end")
    with pytest.raises(InvalidModelError, match=r"for 'model\.onnx', whose bytes have"):
        copy_of(local)
    with pytest.raises(UnavailableError):
        prepare(local, 1)


def check_not_loaded(local: Path, place: RuntimePaths) -> None:
    """Assert that a runtime refuses the path, which a stub may still have, as soon as the worker
    has let go of the session of the last connection."""
    refusals = []

    def is_refused() -> bool:
        try:
            with opened(place, describe(local)):
                return False
        except BriskError as error:
            refusals.append(str(error))
            return True

    wait_until(is_refused, "the refusal")
    assert "for 'model.onnx', whose bytes" in refusals[0]


@pytest.mark.parametrize("is_prepared", [True, False])
def test_another_models_artefacts_are_neither_used_nor_replaced(
    registry: RegistryServer,
    place: RuntimePaths,
    victim: Path,
    liar: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_prepared: bool,
) -> None:
    if is_prepared:
        prepare(victim, 1)
        prepare(victim, 1, cuts_of(victim))
    before = kept()
    assert bool(before) is is_prepared
    remote = publish_as(registry, liar, victim, monkeypatch)
    registry.hold("/m/model.onnx", liar.stat().st_size - 1000)
    local = resolve(remote)
    assert find_prepared(local) is None
    with pytest.raises(UnavailableError, match="not compared"):
        prepare(local, 1)
    with opened(place, describe(local)) as connection:
        registry.let_go()
        expect(infer(connection, X), liar)
        check_refused(remote, local)
    check_not_loaded(local, place)
    assert find_prepared(local) is None
    assert kept() == before
    with opened(place, describe(victim)) as connection:
        expect(infer(connection, X), victim)


def test_a_form_under_another_models_name_is_not_among_its_artefacts(
    registry: RegistryServer,
    place: RuntimePaths,
    victim: Path,
    liar: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remote = publish_as(registry, liar, victim, monkeypatch)
    registry.hold("/m/model.onnx", 1 << 20)  # its form comes whole
    local = resolve(remote)
    with opened(place, describe(local)) as connection:
        expect(infer(connection, X), liar)
        assert kept() == {}
        registry.let_go()
        check_refused(remote, local)
    check_not_loaded(local, place)
    assert kept() == {}
    assert find_prepared(victim, cuts_of(victim)) is None


def test_an_honest_model_starts_while_it_arrives_and_its_form_is_kept_when_it_was_compared(
    registry: RegistryServer, place: RuntimePaths, liar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("BRISK_CACHE_DIR", str(liar.parent / "publisher"))
        remote = publish_here(registry, liar, form=True)
    registry.hold("/m/model.onnx", 1 << 20)
    local = resolve(remote)
    with opened(place, describe(local)) as connection:
        expect(infer(connection, X), liar)
        with opened(place, describe(resolve(remote))) as again:  # while it arrives
            expect(infer(again, X), liar)
        assert find_prepared(local, cuts_of(liar)) is None
        registry.let_go()
        wait_until(lambda: find_prepared(local, cuts_of(liar)) is not None, "its form")
    assert (local.parent.parent / "whole").exists()
    assert find_prepared(liar, cuts_of(liar)) == find_prepared(local, cuts_of(liar))
    sha256 = read_remote_file(remote).sha256
    assert local.parent.parent.name == sha256
    prepare(local, 1)  # of the model's own cuts
    assert find_prepared(liar) is not None
