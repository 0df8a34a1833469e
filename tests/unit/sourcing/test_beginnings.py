"""The beginning of a copy, where nobody answers for what was published."""

from __future__ import annotations

import asyncio
import time

import pytest

from brisk.errors import UnavailableError
from brisk.sourcing.sources import beginning
from brisk.sourcing.sources.downloads import Web
from brisk.sourcing.sources.registry import Registry

PATIENCE_S = 0.3


def test_who_refuses_every_connection_is_asked_again_and_named_at_once_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(beginning, "OPEN_PATIENCE_S", PATIENCE_S)
    asked = 0

    class Counted(Registry):
        async def manifest(self) -> bytes:
            nonlocal asked
            asked += 1
            return await super().manifest()

    async def obtain() -> None:
        web = Web()
        try:
            registry = Counted("http://127.0.0.1:9/gone/manifest.json", web)
            await beginning.obtain(registry, [], "0" * 64)
        finally:
            await web.close()

    began_s = time.monotonic()
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:9/gone"):
        asyncio.run(obtain())
    assert time.monotonic() - began_s >= PATIENCE_S
    assert asked > 1
    (line,) = caplog.messages
    assert "cannot be opened yet" in line
    assert "127.0.0.1:9/gone" in line
