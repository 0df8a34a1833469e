"""Files that somebody else made, digests and all: read in bounded memory or refused."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brisk.artefacts import container
from brisk.artefacts.container import Container, make_key
from brisk.errors import ArtefactError
from brisk.exits.files import container as caches
from brisk.segments.prepared.form import PreparedModel
from brisk.segments.prepared.manifest import fingerprint

pytestmark = pytest.mark.usefixtures("private_cache")

BOUND_BYTES = 16 << 20
SEVERAL = settings(
    max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "fingerprint",
                    "identity",
                    "segments",
                    "weights",
                    "inputs",
                    "outputs",
                    "defaults",
                ]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)


def sealed(text: bytes, blobs: bytes = b"") -> bytes:
    """An artefact whose digests all fit and that is sealed, whatever its manifest says."""
    size = container.HEADER_BYTES + len(blobs) + len(text)
    return container.header(text, size, make_key()) + blobs + text


def caches_of(text: bytes, behind: bytes = b"") -> bytes:
    body = struct.pack("<8sIQ", caches.MAGIC, caches.VERSION, len(text)) + text
    body += bytes(-len(body) % caches.ALIGNMENT) + behind
    return body + hashlib.sha256(body).digest()


@SEVERAL
@given(manifest=json_values)
def test_a_manifest_of_any_json_is_no_artefact_or_an_empty_one(
    manifest: object, tmp_path: Path
) -> None:
    path = tmp_path / "hostile.artefact"
    path.write_bytes(sealed(json.dumps(manifest).encode()))
    with pytest.raises(ArtefactError):
        PreparedModel(path, path, 1)


@SEVERAL
@given(entry=json_values)
def test_blobs_lie_within_the_file_or_are_refused(entry: object, tmp_path: Path) -> None:
    path = tmp_path / "hostile.artefact"
    path.write_bytes(sealed(json.dumps({"blobs": [entry], "content": {}}).encode()))
    with pytest.raises(ArtefactError):
        Container(path)


@SEVERAL
@given(content=json_values)
def test_the_content_of_an_artefact_is_checked_field_by_field(
    content: object, tmp_path: Path
) -> None:
    fits = {"fingerprint": fingerprint()}
    if isinstance(content, dict):
        content = {**content, **fits}
    path = tmp_path / "hostile.artefact"
    path.write_bytes(sealed(json.dumps({"blobs": [], "content": content}).encode()))
    with pytest.raises(ArtefactError):
        PreparedModel(path, path, 1)


@SEVERAL
@given(header=json_values, tensors=json_values)
def test_learned_caches_of_any_header_are_refused_in_words(
    header: object, tensors: object, tmp_path: Path
) -> None:
    path = tmp_path / "hostile.caches"
    text = json.dumps({"header": header, "tensors": {"t": tensors}}).encode()
    path.write_bytes(caches_of(text, bytes(256)))
    with pytest.raises(caches.DamagedFileError):
        caches.read_container(path)


@pytest.fixture
def in_bounded_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < BOUND_BYTES
    finally:
        tracemalloc.stop()


NESTED = b"[" * 200_000 + b"]" * 200_000
HUGE = {"dtype": "float32", "shape": [2**40, 2**40], "offset": 0}
EMPTY_AND_HUGE = {"dtype": "float32", "shape": [0, 2**70], "offset": 0}


@pytest.mark.usefixtures("in_bounded_memory")
@pytest.mark.parametrize(
    "text",
    [
        NESTED,
        b'{"blobs": [[128, 1152921504606846976, "x"]], "content": {}}',
        b'{"blobs": [[-64, 64, "x"]], "content": {}}',
        b'{"blobs": [[1e300, 64, "x"]], "content": {}}',
        b"\xff\xfe",
        b"",
    ],
)
def test_a_manifest_that_nests_or_claims_too_much_is_refused_in_bounded_memory(
    text: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "hostile.artefact"
    path.write_bytes(sealed(text))
    with pytest.raises(ArtefactError):
        Container(path)


@pytest.mark.usefixtures("in_bounded_memory")
@pytest.mark.parametrize(
    "text",
    [
        b'{"header": ' + NESTED + b', "tensors": {}}',
        json.dumps({"header": {}, "tensors": {"t": HUGE}}).encode(),
        json.dumps({"header": {}, "tensors": {"t": EMPTY_AND_HUGE}}).encode(),
    ],
)
def test_caches_that_nest_or_claim_too_much_are_refused_in_bounded_memory(
    text: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "hostile.caches"
    path.write_bytes(caches_of(text))
    with pytest.raises(caches.DamagedFileError):
        caches.read_container(path)


@pytest.mark.usefixtures("in_bounded_memory")
def test_a_file_that_claims_to_be_vast_is_not_read(tmp_path: Path) -> None:
    """A sparse file takes no disk; reading it would take all memory. Nothing is compressed, so a
    file never yields more than its own bytes."""
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(caches.DamagedFileError, match="1099511627776 bytes"):
        caches.read_container(path)
    with pytest.raises(ArtefactError, match="not an artefact"):
        Container(path)
