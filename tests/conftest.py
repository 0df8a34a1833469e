"""What is made once for the whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from unit.exits.adapted import Adapted


@pytest.fixture(scope="session")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    """A digits network with caches. Its files are not to be changed: copy them."""
    from unit.exits.adapted import make_adapted

    return make_adapted(tmp_path_factory.mktemp("adapted"))
