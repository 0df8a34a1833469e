"""A rack: hosts and a switch on one machine, each a network namespace, joined by a bridge.

A namespace lives as long as a process is in it. Each host's is held by a process that waits on a
pipe from here, the switch's by a warden (``brisk_bench.fleet.warden``), which ends everything in
all of them when the rack is left, or this process dies. Nothing has a name outside: no file under
``/run/netns``, no interface in the namespace of the process that makes a rack. All hosts share
files, process ids, processors and memory.

``/sys`` shows the interfaces of the namespace that mounted it: use ``ip`` in a host.
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, TypeAlias

from brisk.errors import InternalError, InvalidRequestError, UnavailableError
from brisk_bench.fleet import warden
from brisk_bench.fleet.warden import end_processes, namespace_of, processes_in

Stream: TypeAlias = int | IO[Any] | None
"""A standard stream as ``subprocess.Popen`` takes it."""

MOST_HOSTS = 200
INTERFACE = "eth0"
"""The name of a host's end of its link."""

_TOOLS = ("ip", "tc", "bridge", "unshare", "nsenter", "cat")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,10}")
_TIME_OUT_S = 20.0
_BETWEEN_S = 0.001
_TRIED = (
    "ip link add name probe type bridge && ip link add name probe-a type veth peer probe-b"
    " && tc qdisc add dev probe-a root tbf rate 1mbit burst 16k limit 64k"
)
"""The commands that show whether the kernel has bridges and tbf; some have none."""


class NoNamespacesError(UnavailableError):
    """No network namespaces can be made here; the message says why. Tests skip with it."""


class Rights(enum.Enum):
    """The rights by which namespaces are made."""

    ROOT = "root"
    """The rights of this process."""
    ROOTLESS = "rootless"
    """The rights that any user has in a user namespace of its own."""


@dataclass(frozen=True, slots=True)
class _Namespace:
    """A network namespace and how to enter it."""

    name: str
    holder_id: int
    rights: Rights

    @property
    def number(self) -> int:
        """The kernel's number of the namespace. Raises InternalError if its holder has ended."""
        number = namespace_of(self.holder_id)
        if number is None:
            raise InternalError(f"the process that holds {self.name} has ended")
        return number

    def command(self, argv: Sequence[str], *, net: bool = True) -> list[str]:
        """Return a command that runs ``argv`` within; without ``net`` in its user namespace."""
        entered = ["--net"] if net else []
        if self.rights is Rights.ROOTLESS:
            entered += ["--user", "--preserve-credentials"]
        if not entered:
            return [*argv]
        return ["nsenter", f"--target={self.holder_id}", *entered, "--", *argv]

    def run(self, argv: Sequence[str], told: str = "") -> str:
        """Run a command on the input ``told``; return its output. Raises UnavailableError."""
        return _run(self.command(argv), told)


class NamespaceHost:
    """One host of a rack. Its address is reachable from all other hosts of the rack only."""

    def __init__(self, namespace: _Namespace, address: str) -> None:
        self.name = namespace.name
        self.address = address
        self._namespace = namespace
        self._number = namespace.number
        self._started: dict[int, subprocess.Popen[bytes]] = {}

    def __repr__(self) -> str:
        return f"<host {self.name} {self.address}>"

    def popen(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program in this host, in a session of its own. ``env`` None: as this process's.

        It is in the host when this returns, but may not have begun. The id is the program's, and
        that of its process group. A program that does not exist ends with status 127. With
        rootless rights it believes to be root; files are this user's.

        Raises UnavailableError if the host cannot be entered.
        """
        process = subprocess.Popen(
            self._namespace.command([os.fspath(each) for each in argv]),
            env=env,
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        self._started[process.pid] = process
        deadline_s = time.monotonic() + _TIME_OUT_S
        while namespace_of(process.pid) != self._number and process.poll() is None:
            if time.monotonic() > deadline_s:
                raise UnavailableError(f"{argv[0]} has not come into {self.name}")
            time.sleep(_BETWEEN_S)
        return process

    def run(self, argv: Sequence[str], told: str = "") -> str:
        """Run a command on the input ``told``; return its output. Raises UnavailableError."""
        return self._namespace.run(argv, told)

    def kill(self, process_id: int) -> None:
        """Kill (SIGKILL) the group of a process that ``popen`` started, and wait for its end.

        Peers notice it as with any killed process: the kernel closes its connections. Does nothing
        if it has ended and was waited for. Raises InvalidRequestError for another id.
        """
        process = self._started.get(process_id)
        if process is None:
            ids = ", ".join(map(str, self._started)) or "none"
            raise InvalidRequestError(f"{self.name} started no process {process_id}, but {ids}")
        if process.returncode is None:
            os.killpg(process_id, signal.SIGKILL)
            process.wait(_TIME_OUT_S)

    def processes(self) -> list[int]:
        """Return the ids of all processes in this host but the one that holds it."""
        ids = processes_in({self._number})
        return [each for each in ids if each != self._namespace.holder_id]

    def _end(self) -> None:
        for process_id in self._started:
            self.kill(process_id)


class Rack:
    """Hosts and the switch between them; ``rack`` makes one."""

    def __init__(self, hosts: Sequence[NamespaceHost], switch: _Namespace) -> None:
        self.hosts = tuple(hosts)
        self.rights = switch.rights
        self._switch = switch

    def __getitem__(self, name: str) -> NamespaceHost:
        """Return a host by name. Raises InvalidRequestError if no host has that name."""
        for host in self.hosts:
            if host.name == name:
                return host
        names = ", ".join(host.name for host in self.hosts)
        raise InvalidRequestError(f"the rack has no host {name!r}, but {names}")

    def run_on_switch(self, argv: Sequence[str], told: str = "") -> str:
        """Run a command on the input ``told``; return its output. Raises UnavailableError."""
        return self._switch.run(argv, told)


def port_of(host: NamespaceHost) -> str:
    """Return the name of the switch's end of a host's link."""
    return f"to-{host.name}"


def usable_rights(wanted: Sequence[Rights] = tuple(Rights)) -> Rights:
    """Return the first of the wanted rights by which this process may make what a rack is made of.

    Raises NoNamespacesError if there are none, with what is missing or what the kernel said.
    """
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        raise NoNamespacesError(f"no {', '.join(missing)} here: install iproute2 and util-linux")
    reasons = []
    for rights in wanted:
        try:
            _run([*_unshare(rights), "sh", "-c", _TRIED])
        except UnavailableError as error:
            reasons.append(f"{rights.value}: {error}")
        else:
            return rights
    raise NoNamespacesError(f"no network namespaces can be made here; {'; '.join(reasons)}")


@contextlib.contextmanager
def rack(names: Sequence[str], rights: Rights | None = None) -> Iterator[Rack]:
    """Make hosts of these names, from 10.0.0.1 on, whose links are not shaped yet.

    In the end, also after an exception, every process in them is killed, and nothing is left.
    ``rights`` None: as root if this process may, else rootless. Raises NoNamespacesError if that
    is impossible, InvalidRequestError for a name that is no interface's.
    """
    _check_names(names)
    rights = usable_rights(tuple(Rights) if rights is None else (rights,))
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(_warden(rights))
        switch = _Namespace("the switch", watch.pid, rights)
        hosts: list[NamespaceHost] = []
        numbers: list[int] = []
        stack.callback(_end_all, hosts, numbers)
        for position, name in enumerate(names, 1):
            namespace = stack.enter_context(_held_namespace(name, switch))
            numbers.append(namespace.number)
            _tell(watch, str(numbers[-1]))
            hosts.append(NamespaceHost(namespace, f"10.0.0.{position}"))
        _connect(hosts, switch)
        yield Rack(hosts, switch)


def _end_all(hosts: Sequence[NamespaceHost], numbers: Sequence[int]) -> None:
    """End what runs in the hosts. Raises InternalError for what does not end.

    The warden would do it too, but only this process can wait for what it started.
    """
    for host in hosts:
        host._end()
    if survivors := end_processes(numbers):
        raise InternalError(f"processes that do not end: {', '.join(map(str, survivors))}")


def _connect(hosts: Sequence[NamespaceHost], switch: _Namespace) -> None:
    """Make a bridge, and a link from each host to it. Hosts know each other's hardware addresses.

    So a host that cannot be reached is silent: no host asks for its address in vain, which would
    end connections with "no route to host" after seconds.
    """
    lines = ["link add name rack type bridge stp_state 0 mcast_snooping 0", "link set rack up"]
    for host in hosts:
        port, peer = port_of(host), f"{INTERFACE} address {_hardware(host)}"
        holder = host._namespace.holder_id
        lines += [
            f"link add name {port} type veth peer name {peer} netns {holder}",
            f"link set {port} addrgenmode none master rack up",
        ]
    switch.run(["ip", "-batch", "-"], "\n".join(lines))
    for host in hosts:
        lines = [
            "link set lo up",
            f"link set {INTERFACE} addrgenmode none up",
            f"address add {host.address}/24 dev {INTERFACE}",
        ]
        for other in hosts:
            if other is not host:
                at = f"{other.address} lladdr {_hardware(other)}"
                lines.append(f"neighbour add {at} dev {INTERFACE} nud permanent")
        host.run(["ip", "-batch", "-"], "\n".join(lines))


def _hardware(host: NamespaceHost) -> str:
    """Return a locally administered address, with the IP address as its last four bytes."""
    return "02:00:" + ":".join(f"{int(part):02x}" for part in host.address.split("."))


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise InvalidRequestError(
                f"{name!r} is no name of a host: a small letter, then up to 10 of a-z, 0-9 and -"
            )
    if len(set(names)) < len(names) or not 0 < len(names) <= MOST_HOSTS:
        raise InvalidRequestError(
            f"{list(names)}: expected 1 to {MOST_HOSTS} hosts, each with a name of its own"
        )


def _unshare(rights: Rights) -> list[str]:
    user = ["--user", "--map-root-user"] if rights is Rights.ROOTLESS else []
    return ["unshare", *user, "--net"]


@contextlib.contextmanager
def _warden(rights: Rights) -> Iterator[subprocess.Popen[bytes]]:
    """Run the warden in a new namespace, the switch's, until it has ended what is left there."""
    command = [*_unshare(rights), sys.executable, "-I", warden.__file__]
    with _waiting_program(command) as process:
        _hear(process, "ready")
        try:
            yield process
        finally:
            process.communicate(timeout=_TIME_OUT_S)


@contextlib.contextmanager
def _held_namespace(name: str, switch: _Namespace) -> Iterator[_Namespace]:
    """Hold a new network namespace under the switch's user namespace, while entered."""
    command = switch.command(["unshare", "--net", "cat"], net=False)
    with _waiting_program(command) as process:
        _tell(process, "is there")  # cat answers: so it is, and in its namespace
        yield _Namespace(name, process.pid, switch.rights)


@contextlib.contextmanager
def _waiting_program(argv: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with pipes, killed and waited for in the end."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _tell(process: subprocess.Popen[bytes], line: str) -> None:
    """Write a line to a program that repeats what it hears, and wait until it has."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # _hear raises with the reason
        process.stdin.write(f"{line}\n".encode())
        process.stdin.flush()
    _hear(process, line)


def _hear(process: subprocess.Popen[bytes], line: str) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    spoke = bool(select.select([process.stdout], [], [], _TIME_OUT_S)[0])
    if not spoke or process.stdout.readline().decode().strip() != line:
        process.kill()
        reason = process.stderr.read().decode().strip()
        raise NoNamespacesError(f"no network namespace can be made here: {reason}")


def _run(argv: Sequence[str], told: str = "") -> str:
    done = subprocess.run(argv, input=told, capture_output=True, text=True, timeout=_TIME_OUT_S)
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()
        raise UnavailableError(f"{' '.join(argv)} ended with {done.returncode}: {said}")
    return done.stdout
