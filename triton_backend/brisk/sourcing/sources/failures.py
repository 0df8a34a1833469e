"""What a source may do instead of giving bytes."""

from __future__ import annotations

from brisk.errors import InvalidModelError, UnavailableError


class SourceError(UnavailableError):
    """It does not give what it was asked for just now."""


class MissingError(SourceError):
    """It does not have what it was asked for."""


class WrongBytesError(InvalidModelError):
    """It gives something else than the manifest names: it is not asked again for that model."""
