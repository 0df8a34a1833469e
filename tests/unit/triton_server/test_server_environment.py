"""The environment and options of a server that its caller has not set."""

from __future__ import annotations

from pathlib import Path

import pytest

from brisk.triton.launch import MALLOC_ARENAS, server_environment
from brisk.triton.locate import ServerInstallation


@pytest.fixture
def installation(tmp_path: Path) -> ServerInstallation:
    return ServerInstallation(tmp_path / "tritonserver", (), None, None, ())


def test_the_allocator_gets_few_arenas_unless_the_user_has_said_how_many(
    installation: ServerInstallation,
) -> None:
    assert server_environment(installation, {})["MALLOC_ARENA_MAX"] == str(MALLOC_ARENAS)
    assert server_environment(installation, {"MALLOC_ARENA_MAX": "7"})["MALLOC_ARENA_MAX"] == "7"
