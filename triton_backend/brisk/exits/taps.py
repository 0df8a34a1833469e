"""Behind which values a model has to stop for its caches: asked before it is loaded."""

from __future__ import annotations

from pathlib import Path

from brisk.exits.files.container import DamagedFileError, read_container


def tapped_values(caches: Path) -> tuple[str, ...]:
    """Of the file ``caches``; none where there is no such file that can be read: whoever serves
    them says so. Names are only looked for in the model, so they need no further check.
    """
    try:
        header = read_container(caches).header
        found: dict[str, None] = {}
        for index, entry in enumerate(header["exits"]):
            if any(level["thresholds"][index] is not None for level in header["levels"]):
                found[str(entry["value"])] = None
                if entry["noticed_at"] is not None and not header["synchronous"]:
                    found[str(entry["noticed_at"])] = None
        return tuple(found)
    except (OSError, DamagedFileError, LookupError, TypeError):
        return ()
