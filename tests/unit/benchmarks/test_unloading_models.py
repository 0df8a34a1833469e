"""A benchmark that unloads a model waits for its stub's end, and not for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from brisk.triton.launch import ServerFailedError
from brisk_bench.harness import served_server
from brisk_bench.harness.served_server import unload_model


class Server:
    """A client of a server in which ``net`` is unloaded after so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.timeouts_s: list[float] = []

    def unload_model(self, name: str, client_timeout: float) -> None:
        self.timeouts_s.append(client_timeout)

    def get_model_repository_index(self, client_timeout: float) -> Any:
        self.timeouts_s.append(client_timeout)
        self.looks -= 1
        state = "UNAVAILABLE" if self.looks <= 0 else "UNLOADING"
        models = [SimpleNamespace(name="other", state="READY")]
        return SimpleNamespace(models=[*models, SimpleNamespace(name="net", state=state)])


def test_it_waits_for_the_end_of_the_models_own_stub() -> None:
    server: Any = Server(looks=3)
    unload_model(server, "net")
    assert server.looks == 0
    assert server.timeouts_s == [served_server.UNLOAD_TIMEOUT_S] * 4


def test_a_stub_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_server, "UNLOAD_TIMEOUT_S", 0.2)
    server: Any = Server(looks=10**6)
    with pytest.raises(ServerFailedError, match="'net' is still being unloaded after 0 s"):
        unload_model(server, "net")
