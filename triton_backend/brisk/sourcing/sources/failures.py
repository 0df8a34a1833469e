"""The errors that a source of a model's bytes raises."""

from __future__ import annotations

from brisk.errors import InvalidModelError, UnavailableError


class SourceError(UnavailableError):
    """The source does not give the requested bytes at the moment."""


class MissingError(SourceError):
    """The source does not have the requested file or copy."""


class WrongBytesError(InvalidModelError):
    """The source gives bytes that contradict the manifest: it is not asked for that model
    again."""
