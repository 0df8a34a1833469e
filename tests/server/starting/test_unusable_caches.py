"""A first start where the cache directory cannot be used: served without, with one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.server.entries import doubled, write_entry
from support.server.serve_command import serving

pytestmark = [pytest.mark.timing, pytest.mark.beside]


@pytest.mark.parametrize("place", ["file", "/proc/brisk", "everybodys"])
def test_a_server_starts_without_its_cache_and_says_so_once(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "everybodys").mkdir()
    (tmp_path / "everybodys").chmod(0o777)  # who writes there would decide what code runs
    write_entry(tmp_path / "repository", "model", doubled())
    cache = tmp_path / place  # an absolute one stays what it is
    environment = {"BRISK_CACHE_DIR": str(cache), "BRISK_ARTEFACTS": "build"}
    with serving(tmp_path, [tmp_path / "repository"], environment=environment) as served:
        assert served.ask("model") == [2.0] * 8
        assert served.log_text.count(f"the cache directory '{cache}' cannot be used") == 1
        assert "Traceback" not in served.log_text
    assert list((tmp_path / "everybodys").iterdir()) == []
