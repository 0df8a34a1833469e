"""Where a runtime is found: private, held by one process at a time, swept when left behind."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from brisk.errors import InvalidConfigurationError
from brisk.protocol.runtime_paths import (
    MAX_SOCKET_PATH_BYTES,
    Role,
    RuntimePaths,
    runtime_place,
)
from brisk.settings import runtime_directory
from support.open_files import nothing_left_open


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[RuntimePaths]:
    parent = Path(tempfile.mkdtemp(prefix="brisk-"))
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(parent / "runtime"))
    yield runtime_place("cpu")
    shutil.rmtree(parent)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def process_that(hold: RuntimePaths) -> tuple[int, int]:
    """A process that holds the lock until it is killed, and a pipe that says so."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, b"y" if hold.try_lock() is not None else b"n")
            signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    return child, reading


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"BRISK_RUNTIME_DIR": "/a/b", "XDG_RUNTIME_DIR": "/run/user/1"}, "/a/b"),
        ({"XDG_RUNTIME_DIR": "/run/user/1"}, "/run/user/1/brisk"),
        ({}, f"/tmp/brisk-{os.geteuid()}"),
    ],
)
def test_the_first_directory_that_is_given_is_taken(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name in ("BRISK_RUNTIME_DIR", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert runtime_directory() == Path(expected)


def test_a_relative_directory_is_the_same_for_a_runtime_that_starts_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BRISK_RUNTIME_DIR", "run")
    assert runtime_directory() == Path.cwd() / "run"


def test_every_device_has_a_place_of_its_own(place: RuntimePaths) -> None:
    assert runtime_place("cuda:1").directory.name == "cuda-1"
    assert place.directory.name == "cpu"


@pytest.mark.parametrize("device", ["", "gpu", "cuda", "cuda:", "cuda:x", "cpu/..", "cpu\n"])
def test_a_device_that_cannot_be_is_refused(device: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="is neither cpu nor cuda:<number>"):
        runtime_place(device)


def test_a_path_too_long_for_a_socket_is_refused_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rest = len("/cpu/foreground.sock")
    monkeypatch.setenv("BRISK_RUNTIME_DIR", "/" + "x" * (MAX_SOCKET_PATH_BYTES - rest - 1))
    assert runtime_place("cpu").socket_path(Role.FOREGROUND)
    monkeypatch.setenv("BRISK_RUNTIME_DIR", "/" + "x" * (MAX_SOCKET_PATH_BYTES - rest))
    with pytest.raises(InvalidConfigurationError, match="set BRISK_RUNTIME_DIR to a shorter"):
        runtime_place("cpu")


def test_directories_are_made_for_their_user_alone(place: RuntimePaths) -> None:
    place.prepare()
    assert (mode(place.base), mode(place.directory)) == (0o700, 0o700)


def test_a_device_s_directory_that_others_could_enter_is_closed_to_them(
    place: RuntimePaths,
) -> None:
    place.prepare()
    place.directory.chmod(0o777)
    place.prepare()
    assert mode(place.directory) == 0o700


def test_the_mode_of_a_directory_given_for_general_use_is_left_alone(
    place: RuntimePaths,
) -> None:
    """Root may well say BRISK_RUNTIME_DIR=/run."""
    place.base.mkdir()
    place.base.chmod(0o755)
    place.prepare()
    assert (mode(place.base), mode(place.directory)) == (0o755, 0o700)


def test_something_else_in_the_place_is_refused(place: RuntimePaths) -> None:
    place.base.write_text("a file")
    with pytest.raises(InvalidConfigurationError, match=r"cannot be used .*BRISK_RUNTIME_DIR"):
        place.prepare()


def test_a_link_in_the_place_is_refused(place: RuntimePaths) -> None:
    elsewhere = place.base.parent / "elsewhere"
    elsewhere.mkdir()
    place.base.symlink_to(elsewhere)
    with pytest.raises(InvalidConfigurationError, match="must be a directory of user"):
        place.prepare()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(place: RuntimePaths) -> None:
    place.base.mkdir()
    os.chown(place.base, 65534, 65534)
    with pytest.raises(InvalidConfigurationError, match="must be a directory of user 0"):
        place.prepare()


def test_one_process_at_a_time_holds_the_place(place: RuntimePaths) -> None:
    place.prepare()
    child, reading = process_that(place)
    assert os.read(reading, 1) == b"y"
    os.close(reading)
    assert place.try_lock() is None
    end(child)
    take_away(place)


def take_away(place: RuntimePaths) -> None:
    lock = place.try_lock()
    assert lock is not None
    place.remove(lock)


def test_what_a_killed_runtime_left_goes_with_the_next_that_holds_it(
    place: RuntimePaths,
) -> None:
    place.prepare()
    child, reading = process_that(place)
    os.read(reading, 1)
    os.close(reading)
    for role in Role:
        place.socket_path(role).touch()
    end(child)
    take_away(place)
    assert not place.base.exists()


def test_another_device_s_runtime_keeps_its_directory(place: RuntimePaths) -> None:
    other = runtime_place("cuda:0")
    other.prepare()
    held = other.try_lock()
    assert held is not None
    place.prepare()
    take_away(place)
    assert not place.directory.exists()
    assert other.lock_path.exists()
    other.remove(held)
    assert not place.base.exists()


def test_a_lock_of_a_removed_file_is_not_taken_for_the_place_s(place: RuntimePaths) -> None:
    """Whoever waits for the lock when its holder removes it must lock the new file."""
    place.prepare()
    first = place.try_lock()
    assert first is not None
    place.lock_path.unlink()
    second = place.try_lock()
    assert second is not None
    assert os.fstat(second).st_ino == place.lock_path.stat().st_ino
    os.close(first)
    place.remove(second)


def test_no_two_threads_that_come_and_go_ever_hold_the_place_together(
    place: RuntimePaths,
) -> None:
    holders, most, failures = 0, 0, []
    counting = threading.Lock()

    def come_and_go() -> None:
        nonlocal holders, most
        try:
            for _ in range(150):
                place.prepare()
                lock = place.try_lock()
                if lock is None:
                    continue
                with counting:
                    holders += 1
                    most = max(most, holders)
                with counting:
                    holders -= 1
                place.remove(lock)
        except BaseException as error:  # noqa: BLE001  # asserted below
            failures.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert not failures
    assert most == 1


def test_words_about_a_path_that_is_no_text_come_to_whoever_takes_them(
    place: RuntimePaths,
) -> None:
    place.prepare()
    place.leave_words("/caf\udce9 cannot be used")
    assert place.take_words(os.getpid()) == "/caf\\udce9 cannot be used"
    assert place.take_words(os.getpid()) == ""


def test_nobody_to_connect_to_is_the_socket_s_error(place: RuntimePaths) -> None:
    with nothing_left_open(), pytest.raises(FileNotFoundError):
        place.connect(1.0)
