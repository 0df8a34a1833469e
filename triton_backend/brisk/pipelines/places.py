"""Where the networks of a pipeline lie: inside the model repository, nowhere else."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from brisk.pipelines.fields import Fields, hint, shown

MODEL_FILE = "model.onnx"


def locate(fields: Fields, pipeline: Path) -> Path:
    """The ONNX file that ``file``, or ``entry`` and ``version``, name; its absolute path.

    ``file`` is relative to the pipeline's version directory; ``entry`` is a sibling of the
    pipeline's own, whose ``model.onnx`` is used, of its newest version where none is said. Notes
    a problem, and gives any path, where there is no such file in the repository.
    """
    version_directory = pipeline.absolute().parent
    repository = version_directory.parent.parent
    file, entry = fields.optional("file"), fields.optional("entry")
    version = fields.optional("version")
    if isinstance(file, str) and file and entry is None and version is None:
        found = _inside(fields, version_directory, file)
    elif isinstance(entry, str) and entry and file is None:
        found = _entry_file(fields, repository, entry, version)
    else:
        fields.note(
            "names its network by 'file' alone, or by 'entry' and, if it is not to be the "
            "newest, 'version'"
        )
        return pipeline
    if found is not None and found.is_dir():
        found /= MODEL_FILE
    if found is None or not _is_within(fields, found, repository):
        return pipeline
    return found


def _inside(fields: Fields, directory: Path, name: str) -> Path | None:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        fields.note(f"file {shown(name)} leads out of the entry; name one inside {directory}")
        return None
    return directory / parts


def _entry_file(fields: Fields, repository: Path, name: str, version: object) -> Path | None:
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
    return directory / str(version) / MODEL_FILE


def _is_within(fields: Fields, path: Path, repository: Path) -> bool:
    """Whether it is a file, whose symbolic links lead to a place inside of the repository."""
    if not path.is_file():
        siblings = [other.name for other in path.parent.glob("*.onnx")]
        fields.note(f"there is no file {path}{hint(path.name, siblings)}")
        return False
    if not path.resolve().is_relative_to(repository.resolve()):
        fields.note(f"{path} leads to {path.resolve()}, out of the model repository")
        return False
    return True
