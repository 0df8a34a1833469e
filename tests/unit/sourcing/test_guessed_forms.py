"""Fetches that begin before anybody has said which form is needed, in virtual time: the link has 8
MB/s, the model 16.3 MB, its prepared form 16.5; nothing here takes the time that it tells of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from brisk.copies.manifest import Range
from brisk.sourcing.fetching import Fetch
from brisk.sourcing.policies.stretches import bits_of
from brisk.sourcing.policies.worth import likely_form
from support.remote.published import Published, form_of, publish
from support.remote.virtual_hosts import Link, VirtualHost, VirtualRegistry
from support.virtual_loop import run_virtually

RATE = 8e6
CHUNK = 1 << 16
FORM, OTHER = "model-here.segments", "model-there.segments"
BEST_RATE = 1e8

pytestmark = pytest.mark.usefixtures("private_cache")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    forms = {FORM: form_of(16_500_000), OTHER: form_of(30_000_000)}
    folder = tmp_path_factory.mktemp("p")
    return publish(folder, 16_000_000, chunk_bytes=CHUNK, forms=forms)


@asynccontextmanager
async def fetching(folder: Path, published: Published) -> AsyncIterator[Fetch]:
    """A host that begins to fetch now."""
    host = VirtualHost("host", folder, published, RATE, 0.001)
    host.start(VirtualRegistry(published, RATE, Link(RATE)), [])
    assert host.fetch is not None
    try:
        yield host.fetch
    finally:
        await host.close()


def chunks(fetch: Fetch, number: int | None) -> int:
    """Return how many chunks of a file are here."""
    assert number is not None
    return (fetch.here & bits_of(fetch.layout.file(number))).bit_count()


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def wait(fetch: Fetch, *parts: Range) -> None:
    async for _ in fetch.wait_for(parts, str):
        pass


def test_a_likely_form_comes_instead_of_weights_what_says_where_its_parts_lie_first(
    tmp_path: Path, published: Published
) -> None:
    number = published.manifest.form_named(FORM)

    async def scenario() -> None:
        async with fetching(tmp_path, published) as fetch:
            guessing = asyncio.create_task(fetch.guess(FORM, BEST_RATE))
            await asyncio.sleep(0.2)
            assert guessing.done()  # the outline is here
            assert len(fetch.copy.outline(number or 0)) == 2
            await asyncio.sleep(0.3)
            link_bytes = 0.5 * RATE
            assert chunks(fetch, number) * CHUNK > 0.9 * link_bytes
            assert chunks(fetch, 0) * CHUNK < 0.05 * link_bytes
            before_s = now_s()
            assert await fetch.take(FORM, BEST_RATE) is not None
            assert now_s() == before_s
            await wait(fetch, Range(number or 0, 0, 16_500_000))
            assert now_s() < 1.03 * 16_500_000 / RATE + 0.1

    run_virtually(scenario())


def test_weights_that_are_asked_for_instead_come_at_once_and_the_form_no_more(
    tmp_path: Path, published: Published
) -> None:
    number = published.manifest.form_named(FORM)

    async def scenario() -> None:
        async with fetching(tmp_path, published) as fetch:
            await fetch.guess(FORM, BEST_RATE)
            await asyncio.sleep(0.3)
            began_s, before = now_s(), chunks(fetch, number)
            await wait(fetch, Range(0, 8_000_000, 2_000_000))
            assert now_s() - began_s < 2_000_000 / RATE + 0.1
            await wait(fetch, Range(0, 0, 16_000_000))
            assert chunks(fetch, number) - before <= 0.1 * RATE / CHUNK
            assert fetch.forms == ()
            assert not fetch.missing & bits_of(fetch.layout.file(number or 0))

    run_virtually(scenario())


@pytest.mark.parametrize("asked", ["nobody's", OTHER])
def test_another_form_that_is_asked_for_ends_the_guess(
    tmp_path: Path, published: Published, asked: str
) -> None:
    """``OTHER`` is not sooner than weights."""

    async def scenario() -> None:
        async with fetching(tmp_path, published) as fetch:
            await fetch.guess(FORM, BEST_RATE)
            assert await fetch.take(asked, RATE) is None
            assert fetch.forms == ()

    run_virtually(scenario())


def test_a_guess_comes_too_late_when_somebody_has_said_what_is_wanted(
    tmp_path: Path, published: Published
) -> None:
    async def scenario() -> None:
        async with fetching(tmp_path, published) as fetch:
            await wait(fetch, Range(0, 0, 100_000))
            await fetch.guess(FORM, BEST_RATE)
            assert fetch.forms == ()

    run_virtually(scenario())


def test_a_form_that_takes_longer_than_weights_is_not_guessed(
    tmp_path: Path, published: Published
) -> None:
    async def scenario() -> None:
        async with fetching(tmp_path, published) as fetch:
            await fetch.guess(OTHER, RATE)
            await asyncio.sleep(0.3)
            assert chunks(fetch, 0) * CHUNK > 0.25 * RATE

    run_virtually(scenario())


def test_who_takes_the_form_while_it_is_reserved_gets_it(
    tmp_path: Path, published: Published
) -> None:
    async def scenario() -> None:
        async with fetching(tmp_path, published) as fetch:
            guessing = asyncio.create_task(fetch.guess(FORM, BEST_RATE))
            assert await fetch.take(FORM, BEST_RATE) is not None
            await guessing
            assert fetch.forms == (published.manifest.form_named(FORM),)

    run_virtually(scenario())


@pytest.mark.parametrize(
    ("names", "key", "expected"),
    [
        ([], "", ""),
        ([FORM], "", FORM),
        ([FORM, OTHER], "", ""),
        ([FORM, OTHER], "there.segments", OTHER),
        ([FORM], "there.segments", ""),
    ],
)
def test_the_form_that_fits_is_the_only_one_or_like_the_last_one(
    names: list[str], key: str, expected: str
) -> None:
    assert likely_form(names, key) == expected
