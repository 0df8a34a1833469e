"""The files that a model entry names, which are found, checked and opened here alone.

Whoever writes to the model repository decides which files are read: ``default_model_filename``,
external data of ONNX files, the networks of a ``pipeline.json``, learned caches beside a model.
None of them may lie outside the entry's version folder, however its path is written and whatever
links it has. The version folder itself may be a link, or lie behind one: whoever manages the
repository puts entries where they like. So it is opened first, and everything below must stay
within it.

No file is checked by its name and opened by the name afterwards. It is opened without reading
(``O_PATH``, which neither waits for the writer of a FIFO nor wakes a device), the kernel reports
where it lies and what kind it is, and that very file is then opened for reading.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from brisk.errors import InvalidModelError

_PLACE = os.O_PATH | os.O_CLOEXEC
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}
Stamp = list[int]
"""Size, modification and change time in ns, inode, device: a file with another stamp is another
file, or was written to. The change time alone shows a write after which the modification time was
put back."""

_EXPECTED = "expected a path to a regular file inside that folder, links followed"


def version_folder(path: Path) -> Path:
    """Return the folder that a model's file must not lie outside of.

    It is the nearest one above ``path`` whose name is a version's number; else, as for a file that
    a command is given, its own folder.
    """
    return next((above for above in path.parents if above.name.isdecimal()), path.parent)


def find_inside(folder: Path, name: str, what: str) -> Path | None:
    """Return the path of the file or directory ``name`` in ``folder``; None if there is none.

    ``what``: the parameter that names it, for messages. Raises InvalidModelError if it lies
    elsewhere, or is neither a regular file nor a directory. Whoever opens the path later uses
    ``open_file``, which checks again: by then it may lead elsewhere.
    """
    try:
        found = _Found(folder, name, what)
    except FileNotFoundError:
        return None
    with found:
        found.check(stat.S_IFREG, stat.S_IFDIR)
        return folder / name


def open_inside(folder: Path, name: str, what: str) -> BinaryIO:
    """Open the regular file ``name`` in ``folder`` for reading.

    Raises InvalidModelError like ``find_inside``, and if it is no regular file or cannot be read;
    FileNotFoundError if there is none.
    """
    with _Found(folder, name, what) as found:
        found.check(stat.S_IFREG)
        return found.open()


def open_file(path: Path, what: str = "the model") -> BinaryIO:
    """Open the file at ``path``, which must not lie outside its ``version_folder``, like
    ``open_inside``.

    Precondition: a path that a user gave to a command has been resolved.
    """
    folder = version_folder(path)
    return open_inside(folder, str(path.relative_to(folder)), what)


COPIES = "remote"
"""The folder of the copies (``brisk.copies``) in the cache directory."""

KEPT = stat.S_ISVTX | 0o600
"""The mode of the files of a copy (``brisk.copies``), which no other program sets: they are of
their full size from the beginning, arrive in any order, and hold what their digest says, whatever
their times."""


def is_kept(status: os.stat_result) -> bool:
    """Whether a file belongs to a copy."""
    return status.st_mode & 0o7777 == KEPT and status.st_uid == os.geteuid()


def stamp_of(status: os.stat_result) -> Stamp:
    """Return a file's stamp. A copy's has no times: it is the same model before and after it has
    arrived."""
    times = (0, 0) if is_kept(status) else (status.st_mtime_ns, status.st_ctime_ns)
    return [status.st_size, *times, status.st_ino, status.st_dev]


class _Found:
    """A file that lies within its folder, held by a descriptor that reads nothing."""

    def __init__(self, folder: Path, name: str, what: str) -> None:
        """Find the file. Raises InvalidModelError if it lies outside, FileNotFoundError if there
        is none."""
        self._text = f"{what} '{shown(name, 120)}'"
        self._folder = folder
        if not name:
            raise self._error("is empty")
        if "\0" in name:
            raise self._error("holds a NUL character")
        if os.path.isabs(name):
            raise self._error("is an absolute path, outside the model's folder")
        if os.path.normpath(name).split("/")[0] == "..":  # whether there is a file or not
            raise self._error("leads outside the model's folder")
        outer = version_folder(folder / "file")
        roots: list[int] = []
        try:
            for each in dict.fromkeys((outer, folder)):
                roots.append(self._open(str(each), _PLACE | os.O_DIRECTORY))
            places = [_place(root) for root in roots]
            self._descriptor = self._open(name, _PLACE, roots[-1])
        finally:
            for root in roots:
                os.close(root)
        lies = _place(self._descriptor)
        for place in places:
            if not lies.startswith(place.rstrip("/") + "/"):
                os.close(self._descriptor)
                raise self._error(
                    f"leads to {lies}, outside the model's folder {place}: copy it there (cp -L) "
                    "or link it hard"
                )

    def __enter__(self) -> _Found:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)

    def check(self, *kinds: int) -> None:
        """Raise InvalidModelError unless it is of one of these kinds (``stat.S_IFMT``)."""
        status = os.fstat(self._descriptor)
        kind = stat.S_IFMT(status.st_mode)
        if not status.st_nlink:
            raise self._error("is being removed")
        if kind not in kinds:
            kind_text = _KINDS.get(kind, "no file")
            raise self._error(f"cannot be read: it is {kind_text}, not a regular file")

    def open(self) -> BinaryIO:
        # By the descriptor, whose file has been looked at: the name may mean another one by now.
        flags = os.O_RDONLY | os.O_CLOEXEC
        return open(self._open(f"/proc/self/fd/{self._descriptor}", flags), "rb")

    def _open(self, name: str, flags: int, folder: int | None = None) -> int:
        try:
            return os.open(name, flags, dir_fd=folder)
        except FileNotFoundError:
            raise
        except NotADirectoryError as error:
            raise FileNotFoundError(error.errno, error.strerror, name) from error
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror}") from error
        except ValueError as error:  # characters that no file's name has
            raise self._error(f"is no file's name: {error}") from error

    def _error(self, problem: str) -> InvalidModelError:
        return InvalidModelError(f"{self._text} of {self._folder} {problem}; {_EXPECTED}")


def listed(directory: Path) -> list[Path]:
    """Return the paths in ``directory``; none if it cannot be listed.

    ``Path.glob`` raises FileNotFoundError where another process removes a directory meanwhile.
    """
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _place(descriptor: int) -> str:
    """Return the path that the kernel reports for an open file, without links."""
    return os.readlink(f"/proc/self/fd/{descriptor}")


def shown(name: str, most: int = 80) -> str:
    """``name`` in a message: ``most`` characters of it, with what cannot be printed escaped."""
    text = repr(name)[1:-1]
    return text if len(text) <= most else text[:most] + "…"
