"""What builds and runs an image here: Docker's engine, or buildah, which needs none.

buildah's chroot isolation works where containers may not be made: processes run in the image's
file system, and share everything else with this machine. A base image is made by debootstrap then.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BASE = "localhost/brisk-test-base:bookworm"
BUILD_TIMEOUT_S = 1500.0
STOP_TIMEOUT_S = 60.0

_PIP_FILES = ("PIP_CERT", "PIP_FIND_LINKS")
"""Settings of pip that name a file or a directory here, which a build does not see by itself."""


class ContainerError(Exception):
    """A command of the engine failed; the text ends with what it printed."""


class Engine(ABC):
    """Builds stages of a Dockerfile, and runs one command in a container at a time."""

    @abstractmethod
    def build(self, dockerfile: str, target: str) -> str:
        """The image of a stage of ``docker/<dockerfile>``."""

    @abstractmethod
    def start(self, image: str, models: Path, options: Sequence[str], log: Path) -> Container:
        """The image's entry point with ``options`` for its command, and ``models`` at /models."""

    @abstractmethod
    def output(self, image: str, models: Path, command: Sequence[str]) -> str:
        """What ``command`` prints in a new container, the entry point left out, ``models`` at
        /models; ContainerError if it fails."""

    @abstractmethod
    def configuration(self, image: str) -> dict[str, Any]:
        """The image's own settings: ``Entrypoint``, ``Cmd``, ``Healthcheck``, ``User`` …"""

    @abstractmethod
    def tag(self, image: str, name: str) -> str:
        """Give the image another name; its digest, ``sha256:…``."""

    @abstractmethod
    def remove(self, image: str) -> None: ...


class Container(ABC):
    """A running container; its services are on the loopback address of this machine."""

    @abstractmethod
    def returncode(self) -> int | None:
        """None while it runs."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """To the container's init."""

    def wait(self) -> int:
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        while (status := self.returncode()) is None:
            if time.monotonic() > deadline_s:
                raise ContainerError(f"the container did not end in {STOP_TIMEOUT_S:.0f} s")
            time.sleep(0.1)
        return status

    @abstractmethod
    def remove(self) -> None:
        """End it, however it is, and give back what it holds."""


def find_engine() -> Engine | str:
    """An engine that works here, or the reason why there is none."""
    if shutil.which("docker") and _succeeds(["docker", "info"]):
        return Docker()
    missing = [name for name in ("buildah", "debootstrap") if not shutil.which(name)]
    if missing:
        return (
            f"no Docker engine answers, and there is no {' and no '.join(missing)}; expected a "
            "running Docker (Debian: apt install docker.io), or, as root, buildah and debootstrap "
            "(Debian: apt install buildah debootstrap)"
        )
    if os.geteuid():
        return (
            "no Docker engine answers, and buildah's chroot isolation needs root; expected a "
            "running Docker (Debian: apt install docker.io), or root"
        )
    return Buildah()


class Docker(Engine):
    def build(self, dockerfile: str, target: str) -> str:
        image = f"brisk-test:{target}"
        arguments = [f"--build-arg={name}" for name in os.environ if name.startswith("PIP_")]
        file = f"--file=docker/{dockerfile}"
        run(["docker", "build", file, f"--target={target}", f"--tag={image}", *arguments, "."])
        return image

    def start(self, image: str, models: Path, options: Sequence[str], log: Path) -> Container:
        command = ["docker", "run", "--detach", "--network=host", "--shm-size=256m"]
        return _DockerContainer(run([*command, f"--volume={models}:/models:ro", image, *options]))

    def output(self, image: str, models: Path, command: Sequence[str]) -> str:
        words = ["docker", "run", "--rm", "--network=host", f"--volume={models}:/models:ro"]
        return run([*words, f"--entrypoint={command[0]}", image, *command[1:]])

    def configuration(self, image: str) -> dict[str, Any]:
        (described,) = json.loads(run(["docker", "image", "inspect", image]))
        return dict(described["Config"])

    def tag(self, image: str, name: str) -> str:
        run(["docker", "tag", image, name])
        return run(["docker", "image", "inspect", "--format={{.Id}}", name]).strip()

    def remove(self, image: str) -> None:
        run(["docker", "image", "rm", image])


class _DockerContainer(Container):
    def __init__(self, printed: str) -> None:
        self._name = printed.split()[-1]

    def returncode(self) -> int | None:
        form = "{{.State.Running}} {{.State.ExitCode}}"
        running, status = run(["docker", "inspect", f"--format={form}", self._name]).split()
        return None if running == "true" else int(status)

    def signal(self, number: int) -> None:
        run(["docker", "kill", f"--signal={number}", self._name])

    def remove(self) -> None:
        run(["docker", "rm", "--force", self._name])


class Buildah(Engine):
    def build(self, dockerfile: str, target: str) -> str:
        if not _succeeds(["buildah", "inspect", "--type=image", BASE]):
            make_debian(BASE)
        image = f"localhost/brisk-test:{target}"
        command = ["buildah", "bud", "--isolation=chroot", "--layers", "--format=docker"]
        command += [f"--file=docker/{dockerfile}", f"--target={target}", f"--tag={image}"]
        command += [f"--build-arg=BASE_IMAGE={BASE}", *_pip_arguments(os.environ)]
        run([*command, "."])
        return image

    def start(self, image: str, models: Path, options: Sequence[str], log: Path) -> Container:
        entry = self.configuration(image)["Entrypoint"]
        mount = f"--volume={models}:/models:ro"
        return _BuildahContainer(image, [mount], [*entry, *options], log)

    def configuration(self, image: str) -> dict[str, Any]:
        described = json.loads(run(["buildah", "inspect", "--type=image", image]))
        return dict(described["Docker"]["config"])

    def output(self, image: str, models: Path, command: Sequence[str]) -> str:
        container = run(["buildah", "from", image]).strip()
        words = ["buildah", "run", "--isolation=chroot", f"--volume={models}:/models:ro"]
        try:
            return run([*words, container, "--", *command])
        finally:
            run(["buildah", "rm", container])

    def tag(self, image: str, name: str) -> str:
        run(["buildah", "tag", image, name])
        form = "--format=sha256:{{.FromImageID}}"
        return run(["buildah", "inspect", "--type=image", form, name]).strip()

    def remove(self, image: str) -> None:
        run(["buildah", "rmi", image])


class _BuildahContainer(Container):
    """``buildah run`` passes no signals on; the processes in it are this machine's own."""

    def __init__(
        self, image: str, options: Sequence[str], command: Sequence[str], log: Path
    ) -> None:
        self._name = run(["buildah", "from", image]).strip()
        words = ["buildah", "run", "--isolation=chroot", *options, self._name, "--", *command]
        self._init = command[0].encode()
        with log.open("wb") as file:
            self._process = subprocess.Popen(words, stdout=file, stderr=file)

    def returncode(self) -> int | None:
        return self._process.poll()

    def signal(self, number: int) -> None:
        for process in descendants(self._process.pid):
            if _command(process).startswith(self._init + b"\0"):
                os.kill(process, number)
                return
        raise ContainerError("the container's init does not run")

    def remove(self) -> None:
        for process in [*descendants(self._process.pid), self._process.pid]:
            if self.returncode() is None:
                with contextlib.suppress(ProcessLookupError):  # it has ended by itself meanwhile
                    os.kill(process, signal.SIGKILL)
        self._process.wait()
        run(["buildah", "rm", self._name])


def make_debian(image: str) -> None:
    """A minimal Debian as ``image``, from the distribution's own packages."""
    with tempfile.TemporaryDirectory(prefix="brisk-debian-") as folder:
        system, archive = Path(folder) / "system", Path(folder) / "system.tar"
        run(["debootstrap", "--variant=minbase", "bookworm", str(system)])
        run(["tar", "-C", str(system), "-cf", str(archive), "."])
        container = run(["buildah", "from", "scratch"]).strip()
        try:
            run(["buildah", "add", container, str(archive), "/"])
            run(["buildah", "commit", container, image])
        finally:
            run(["buildah", "rm", container])


def _pip_arguments(environment: Mapping[str, str]) -> list[str]:
    """This machine's settings of pip as build arguments; the files they name are mounted.

    With packages at hand in a directory no index beside pip's own is asked.
    """
    arguments = []
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", *_PIP_FILES):
        value = environment.get(name)
        if value and name in _PIP_FILES and Path(value).exists():
            arguments += [f"--volume={value}:/run/{name}:ro", f"--build-arg={name}=/run/{name}"]
        elif value:
            arguments.append(f"--build-arg={name}={value}")
        elif name == "PIP_EXTRA_INDEX_URL" and environment.get("PIP_FIND_LINKS"):
            arguments.append(f"--build-arg={name}=")
    return arguments


def descendants(process: int) -> list[int]:
    """All processes below ``process`` that run now, the deepest last."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended meanwhile
            continue
        if parent == process:
            found.append(int(status.parent.name))
    return [*found, *(lower for child in found for lower in descendants(child))]


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def run(command: Sequence[str]) -> str:
    """What it prints to stdout. Raises ContainerError where it fails."""
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    if done.returncode:
        end = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
        raise ContainerError(f"{' '.join(command)} ended with {done.returncode}:\n{end}")
    return done.stdout


def _succeeds(command: Sequence[str]) -> bool:
    return not subprocess.run(command, capture_output=True, timeout=60, check=False).returncode
