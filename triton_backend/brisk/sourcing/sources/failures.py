"""The failures of a source."""

from __future__ import annotations

from brisk.errors import InvalidModelError, UnavailableError


class SourceError(UnavailableError):
    """The source does not give what it was asked for just now."""


class MissingError(SourceError):
    """The source does not have what it was asked for."""


class WrongBytesError(InvalidModelError):
    """The source gives something else than the manifest names: it is not asked again for that
    model."""
