"""Where the networks of a pipeline lie: in its own version folder or in another entry's."""

from __future__ import annotations

from pathlib import Path

from brisk.errors import InvalidModelError
from brisk.paths import find_inside
from brisk.pipelines.fields import Fields, hint, shown

MODEL_FILE = "model.onnx"


def locate(fields: Fields, pipeline: Path) -> Path:
    """The ONNX file that ``file``, or ``entry`` and ``version``, name; its absolute path.

    ``file`` is relative to the pipeline's version directory; ``entry`` is a sibling of the
    pipeline's own, whose ``model.onnx`` is used, of its newest version where none is said. Notes
    a problem, and gives any path, where there is no such file in that version's directory.
    """
    version_directory = pipeline.absolute().parent
    file, entry = fields.optional("file"), fields.optional("entry")
    version = fields.optional("version")
    found: Path | None = None
    if isinstance(file, str) and file and entry is None and version is None:
        found = _file(fields, version_directory, file, "file")
    elif isinstance(entry, str) and entry and file is None:
        folder = _entry_folder(fields, version_directory.parent.parent, entry, version)
        if folder is not None:
            found = _file(fields, folder, MODEL_FILE, f"entry '{entry:.60}', its file")
    else:
        fields.note(
            "names its network by 'file' alone, or by 'entry' and, if it is not to be the "
            "newest, 'version'"
        )
    return found or pipeline


def _file(fields: Fields, folder: Path, name: str, what: str) -> Path | None:
    """A file, or the model in a directory of that name. Notes a problem where it is none."""
    try:
        found = find_inside(folder, name, what)
        if found is not None and found.is_dir():
            found = find_inside(folder, f"{name}/{MODEL_FILE}", what)
    except InvalidModelError as error:
        fields.note(str(error))
        return None
    if found is None:
        siblings = [other.name for other in folder.glob("*.onnx")]
        fields.note(f"there is no file {folder / name}{hint(Path(name).name, siblings)}")
    return found


def _entry_folder(fields: Fields, repository: Path, name: str, version: object) -> Path | None:
    if "/" in name or name in (".", ".."):
        fields.note(f"entry {shown(name)} is no name of an entry")
        return None
    directory = repository / name
    if not directory.is_dir():
        siblings = [path.name for path in repository.iterdir() if path.is_dir()]
        fields.note(f"there is no entry '{name:.60}' in {repository}{hint(name, siblings)}")
        return None
    if version is None:
        versions = [int(path.name) for path in directory.iterdir() if path.name.isdecimal()]
        version = max(versions, default=1)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        fields.note(f"version must be a whole number above 0, not {shown(version)}")
        return None
    return directory / str(version)
