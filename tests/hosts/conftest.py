"""By which rights the tests here make their hosts; where none suffice, they skip and say why."""

from __future__ import annotations

import pytest

from brisk_bench.fleet.namespaces import NoNamespacesError, Rights, usable_rights


def _reason(wanted: tuple[Rights, ...]) -> str | None:
    try:
        usable_rights(wanted)
    except NoNamespacesError as error:
        return str(error)
    return None


_REASONS = {rights: _reason((rights,)) for rights in Rights}


@pytest.fixture(params=list(Rights), ids=[each.value for each in Rights])
def rights(request: pytest.FixtureRequest) -> Rights:
    """Each in turn."""
    if reason := _REASONS[request.param]:
        pytest.skip(reason)
    return Rights(request.param)


@pytest.fixture
def _any_rights() -> None:
    """For tests that make hosts by whatever rights there are."""
    if all(_REASONS.values()):
        pytest.skip("; ".join(filter(None, _REASONS.values())))
