"""Prepared forms that are not at the registry, damaged or never come, in virtual time: starts take
weights instead. The link has 8 MB/s; nothing here takes the time that it tells of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from brisk.copies.manifest import ListedFile, Range
from brisk.errors import ArtefactError
from brisk.sourcing.policies.patience import FORM_PATIENCE_S
from brisk.sourcing.sources.failures import MissingError, SourceError, WrongBytesError
from brisk.sourcing.sources.registry import Pieces
from support.remote.published import Published, form_of, publish
from support.remote.virtual_hosts import Link, VirtualHost, VirtualRegistry
from support.virtual_loop import run_virtually

RATE = 8e6
CHUNK = 1 << 16
MODEL_BYTES = 2_000_000
FORM = "model-here.segments"
BEST_RATE = 1e9

pytestmark = pytest.mark.usefixtures("private_cache")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    folder = tmp_path_factory.mktemp("p")
    return publish(folder, MODEL_BYTES, chunk_bytes=CHUNK, forms={FORM: form_of(2_100_000)})


async def not_there(name: str) -> None:
    raise MissingError(f"registry: {name} answers 404")


async def of_another_size(name: str) -> None:
    raise WrongBytesError(f"registry: {name} has 3 bytes")


async def failing(name: str) -> None:
    raise SourceError(f"registry: {name} answers 500")


async def silent(name: str) -> None:
    await asyncio.sleep(3600.0)


class FormlessRegistry(VirtualRegistry):
    """A registry that treats requests for forms otherwise."""

    def __init__(
        self,
        published: Published,
        before: Callable[[str], Awaitable[None]] | None = None,
        damaged: range = range(0),
    ) -> None:
        """``before``: awaited before a form is sent. ``damaged``: bytes that are sent wrong."""
        super().__init__(published, RATE, Link(RATE))
        self.before = before
        self.damaged = damaged
        self.form_requests = 0

    def for_host(self, down: Link) -> VirtualRegistry:
        return self

    @asynccontextmanager
    async def read(
        self, number: int, file: ListedFile, offset: int, size: int
    ) -> AsyncIterator[Pieces]:
        if not file.form:
            yield Pieces(self._pieces(number, offset, size), offset, True)
            return
        self.form_requests += 1
        await asyncio.sleep(0.001)
        if self.before is not None:
            await self.before(file.name)
        yield Pieces(self._changed(number, offset, size), offset, True)

    async def _changed(self, number: int, offset: int, size: int) -> AsyncIterator[bytes]:
        async for piece in self._pieces(number, offset, size):
            yield bytes(len(piece)) if offset in self.damaged else piece
            offset += len(piece)


@asynccontextmanager
async def fetching(folder: Path, registry: FormlessRegistry) -> AsyncIterator[VirtualHost]:
    host = VirtualHost("host", folder, registry.published, RATE, 0.001)
    host.start(registry, [])
    try:
        yield host
    finally:
        await host.close()


async def wait(host: VirtualHost, *parts: Range) -> None:
    assert host.fetch is not None
    async for _ in host.fetch.wait_for(parts, str):
        pass


@pytest.mark.parametrize(
    ("before", "damaged", "patience_s"),
    [
        pytest.param(not_there, range(0), 0.2, id="not there"),
        pytest.param(of_another_size, range(0), 0.2, id="of another size"),
        pytest.param(None, range(100_000), 0.2, id="damaged"),
        pytest.param(failing, range(0), FORM_PATIENCE_S + 0.5, id="failing"),
        pytest.param(silent, range(0), FORM_PATIENCE_S + 0.5, id="silent"),
    ],
)
@pytest.mark.parametrize("is_guessed", [False, True])
def test_weights_are_fetched_instead_of_a_form_that_cannot_come(
    tmp_path: Path,
    published: Published,
    caplog: pytest.LogCaptureFixture,
    before: Callable[[str], Awaitable[None]] | None,
    damaged: range,
    patience_s: float,
    is_guessed: bool,
) -> None:
    registry = FormlessRegistry(published, before, damaged)

    async def scenario() -> None:
        async with fetching(tmp_path, registry) as host:
            assert host.fetch is not None
            assert host.supply is not None
            guessing = None
            if is_guessed:
                guessing = asyncio.create_task(host.fetch.guess(FORM, BEST_RATE))
                await asyncio.sleep(0)
            taken = asyncio.create_task(host.fetch.take(FORM, BEST_RATE))
            assert await asyncio.wait_for(taken, patience_s) is None
            assert host.fetch.forms == ()
            await asyncio.wait_for(wait(host, Range(0, 0, MODEL_BYTES)), 20.0)
            assert not host.supply.is_hopeless
            asked = registry.form_requests
            assert await host.fetch.take(FORM, BEST_RATE) is None
            assert registry.form_requests == asked
            if guessing is not None:
                await asyncio.wait_for(guessing, 1.0)

    run_virtually(scenario())
    assert sum("left for weights" in line for line in caplog.messages) == 1


def test_who_waits_for_a_form_that_turns_out_to_be_damaged_is_told_and_weights_come(
    tmp_path: Path, published: Published
) -> None:
    """What says where its parts lie is right: at its begin, and at its end."""
    number = published.manifest.form_named(FORM)
    assert number is not None
    half = Range(number, 1_000_000, 100_000)
    registry = FormlessRegistry(published, damaged=range(900_000, 1_200_000))

    async def scenario() -> None:
        async with fetching(tmp_path, registry) as host:
            assert host.fetch is not None
            assert host.supply is not None
            assert await host.fetch.take(FORM, BEST_RATE) is not None
            with pytest.raises(ArtefactError, match="is not what the manifest says"):
                await asyncio.wait_for(wait(host, half), 5.0)
            with pytest.raises(ArtefactError, match="is not what the manifest says"):
                await wait(host, half)
            assert await host.fetch.take(FORM, BEST_RATE) is None
            await asyncio.wait_for(wait(host, Range(0, 0, MODEL_BYTES)), 5.0)
            (record,) = host.supply.records()
            assert record.problem == ""

    run_virtually(scenario())


def test_a_start_takes_weights_when_no_source_is_left_for_the_form(
    tmp_path: Path, published: Published
) -> None:
    async def scenario() -> None:
        async with fetching(tmp_path, FormlessRegistry(published, silent)) as host:
            assert host.fetch is not None
            taken = host.fetch.take(FORM, BEST_RATE, lambda: True)
            assert await asyncio.wait_for(taken, 1.0) is None

    run_virtually(scenario())
