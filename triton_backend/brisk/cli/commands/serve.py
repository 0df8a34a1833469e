"""``brisk serve``: turns this process into a tritonserver with Brisk among its backends."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from brisk.errors import InvalidConfigurationError, counted
from brisk.ownership import make_private

if TYPE_CHECKING:
    from brisk.triton.locate import ServerInstallation

_NEEDS_COMPILER = (
    "Triton gives the path to a shell as it is, and characters of it mean something there; rename "
    "it, or install a C++ compiler (Debian: g++), with which Brisk starts such a stub itself"
)

_NO_STUBS = (
    "Triton cannot start a stub whose path has a blank, a colon or, without a C++ compiler, "
    "another character that means something to a shell"
)

_AWAY = {"_BRISK_STUB_AWAY": "1"}
"""The variable by which stubs leave the working directory, whose files Triton's stub would import
before its own (``fork_server/source/launcher.cpp``): no path that they are given is relative."""


DESCRIPTION = """\
Serve model repositories with Brisk.

Every other option is given to tritonserver as it is, for example --http-port 9000,
--model-control-mode explicit, --log-verbose 1. Services listen on the loopback address
unless --http-address and --grpc-address say otherwise (metrics follow HTTP's).

This process becomes the server, so signals and the exit status are the server's own. Shared
memory that earlier ones left when they were killed is removed first.

The runtime starts beside the server where a repository has an entry of Brisk's. Where no entry
needs more than Brisk's own completion, and Triton reads its repositories once, it reads a view
of them in which all are complete and runs with --disable-auto-complete-config.
"""


def _parser() -> argparse.ArgumentParser:
    """Return the command's parser: argparse's, since typer takes 200 ms to import, for which the
    server would wait."""
    parser = argparse.ArgumentParser(
        "brisk serve",
        description=DESCRIPTION,
        epilog="Example: brisk serve --repository models",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--repository",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="Model repository; may be given several times.",
    )
    parser.add_argument(
        "--tritonserver",
        type=Path,
        metavar="PATH",
        help="A Triton to use instead of $TRITONSERVER or the embedded one: the executable or its "
        "installation directory.",
    )
    parser.add_argument(
        "--as-onnxruntime",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="Serve entries written for the ONNX Runtime backend with Brisk, too (the default).",
    )
    parser.add_argument(
        "--complete-entries",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="Complete entries before Triton starts (the default), which takes a stub for each. "
        "Repositories stay as they are. With --model-control-mode poll or explicit Triton "
        "completes them in any case.",
    )
    return parser


def serve(words: Sequence[str]) -> None:
    """Replace this process by the server. ``words``: the arguments after ``brisk serve``."""
    own, others = _parser().parse_known_args(words)
    from brisk.interpreter import checking_python
    from brisk.settings import absolute_paths, check_settings, unknown_variables
    from brisk.triton.launch import command_line, server_environment
    from brisk.triton.locate import locate_server
    from brisk.triton.options import check_ports, on_loopback, option, without_options
    from brisk.triton.regions import own_prefix, with_prefix
    from brisk.triton.server_preload import is_preloaded, preloading

    options: Sequence[str] = [
        *others,
        *(f"--model-repository={path.absolute()}" for path in own.repository),
    ]
    if option(options, "model-repository") is None and option(options, "model-store") is None:
        is_meant = others and (not others[0].startswith("-") or "--repo" in others[0])
        stray = f", not '{others[0]}'" if is_meant else ""
        raise InvalidConfigurationError(
            f"no model repository; give one with --repository DIR{stray}"
        )
    check_settings()
    for line in unknown_variables():
        print(f"brisk: {line}", file=sys.stderr)
    check_python = checking_python()  # which runs meanwhile
    _check_runtime_settings()
    _look_at_repositories(options)
    check_python()
    installation = locate_server(own.tritonserver)
    check_ports(on_loopback(options))
    environment = {**server_environment(installation), **_AWAY}
    environment.update(absolute_paths(environment))
    names: tuple[str, ...] = ("brisk", "onnxruntime") if own.as_onnxruntime else ("brisk",)
    chosen = option(options, "backend-directory")
    if chosen is None:
        _start_runtimes(options, names, environment)  # before all else: it takes longest
        directory = _assembled(installation, names, environment)
        options = [*options, f"--backend-directory={directory}"]
    else:
        from brisk.triton.backend_directory import names_of_ours

        directory = Path(chosen).absolute()  # stubs leave the working directory
        options = [
            *without_options(options, ("backend-directory",)),
            f"--backend-directory={directory}",
        ]
        names = names_of_ours(directory)
        if names and not _starts_stubs(directory, names, environment):
            raise InvalidConfigurationError(f"--backend-directory '{chosen}': {_NO_STUBS}")
    _tidy()
    environment = preloading(environment, directory / names[0]) if names else environment
    takes_any_name = is_preloaded(environment)
    if names and not _may_have_python_models(options, directory, names):
        options = _with_few_threads(options)
    if own.complete_entries:
        options, added = _completed(options, names, takes_any_name=takes_any_name)
        environment.update(added)
    if not takes_any_name:
        _tell_of_names(options)
    command = command_line(installation, with_prefix(options, own_prefix()))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, environment)


def _check_runtime_settings() -> None:
    """Raise the InvalidConfigurationError with which a runtime with this environment would end;
    the loads of all models would be refused."""
    from brisk.settings import runtime_settings

    if runtime_settings():  # else reading them, whose imports take milliseconds, finds nothing
        from brisk.runtime.settings import read_settings

        read_settings()
    if os.environ.get("BRISK_RUNTIME_DIR"):
        from brisk.protocol.runtime_paths import runtime_place

        runtime_place("cpu").check()


def _look_at_repositories(options: Sequence[str]) -> None:
    """Print which repositories and entries Triton would not load; Triton itself is silent.

    Raises InvalidConfigurationError if a repository is no directory, cannot be read or is given
    twice, or the server would never have a model: it reads its repositories once, and can serve no
    entry of them. The error then has the lines.
    """
    from brisk.paths import listed
    from brisk.protocol.entry_files import entry_problem, layout_problem
    from brisk.view.plan import local_repositories, reads_once

    repositories = local_repositories(options) or []
    for repository in repositories:
        if not repository.is_dir():
            raise InvalidConfigurationError(f"model repository '{repository}' is no directory")
        if repositories.count(repository) > 1:
            raise InvalidConfigurationError(f"model repository '{repository}' is given twice")
    lines, entries, served = [], 0, 0
    for repository in repositories:
        try:
            problem = layout_problem(repository)
        except OSError as error:  # Triton would serve it as an empty one
            raise InvalidConfigurationError(
                f"model repository '{repository}' cannot be read: {error.strerror}"
            ) from error
        if problem is not None:
            lines.append(f"model repository '{repository}': {problem}")
        for entry in sorted(path for path in listed(repository) if os.path.isdir(path)):
            entries += 1
            if (problem := entry_problem(entry)) is None:
                served += 1
            else:
                lines.append(f"'{entry}' is not served: {problem}")
    if lines and not served and reads_once(options):
        if not entries:
            lines[0] += (
                "; what is put there later is served with --model-control-mode explicit or poll"
            )
        raise InvalidConfigurationError("\n".join(lines))
    for line in lines:
        print(f"brisk: {line}", file=sys.stderr)


def _assembled(
    installation: ServerInstallation, names: Sequence[str], environment: Mapping[str, str]
) -> Path:
    """Assemble a backend directory in the cache directory, else in the runtime's; return its path.

    No other user can write there, who could otherwise make the server run any code. Raises
    InvalidConfigurationError if neither place is writable, or stubs can be started in neither by a
    server with ``environment``.
    """
    from brisk.settings import cache_directory, runtime_directory
    from brisk.triton.backend_directory import assemble, default_directory

    def assembled(place: Path) -> Path:
        assemble(place, installation, names=names, compiles=False)
        if not _starts_stubs(place, names, environment):
            raise OSError(_NO_STUBS)
        return place

    default = default_directory(installation, names)
    try:
        make_private(default)
        return assembled(default)
    except OSError as error:
        cause = error
    of_path = "backends are put elsewhere, all else is kept there"
    lost = of_path if str(cause) == _NO_STUBS else "nothing is kept for the next start"
    print(
        f"brisk: the cache directory '{cache_directory()}' cannot be used "
        f"({cause.strerror or cause}): {lost} (BRISK_CACHE_DIR)",
        file=sys.stderr,
    )
    place = runtime_directory() / "backends" / default.name
    try:
        make_private(runtime_directory())
        return assembled(place)
    except OSError as error:
        raise InvalidConfigurationError(
            f"backends can be put neither into '{default}' ({cause}) nor into '{place}' "
            f"({error}); expected one that this user can write to (BRISK_CACHE_DIR, "
            "BRISK_RUNTIME_DIR)"
        ) from error


def _starts_stubs(directory: Path, names: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a server with ``environment`` can start the stubs in a backend directory."""
    from brisk.triton.server_preload import can_start_stubs, preloading

    return can_start_stubs(directory, preloading(environment, directory / names[0]))


def _start_runtimes(
    options: Sequence[str], served: Sequence[str], environment: Mapping[str, str]
) -> None:
    """Start the runtimes (and the courier) that the first stub would start, concurrently with the
    server. They end when they are idle.

    Errors do not keep the server from starting: the stub will report them.
    """

    def start() -> None:  # its imports run in the other process
        from brisk.protocol.entry_files import REMOTE_FILE
        from brisk.view.plan import expected_devices, local_repositories

        repositories = local_repositories(options) or ()
        if any(True for path in repositories for _ in path.glob(f"*/*/{REMOTE_FILE}")):
            from brisk.copies.connection import start_early

            os.environ.update(environment)
            start_early()
        if devices := expected_devices(repositories, served):
            from brisk.protocol.runtime_paths import runtime_place
            from brisk.stub.runtime_client.runtime_process import start_if_absent

            os.environ.clear()
            os.environ.update(environment)
            for device in devices:
                start_if_absent(runtime_place(device))
        from brisk.triton.backend_directory import compile_files, package_folder

        compile_files(package_folder())

    _start_apart(start)


def _start_apart(work: Callable[[], None]) -> None:
    """Run ``work`` in a process that is no child of this one; return at once.

    This process becomes a server, which would not wait for our children.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    middle = os.fork()
    if not middle:
        try:
            if not os.fork():
                work()
        except Exception as error:  # noqa: BLE001  # no other code would report it
            print(f"brisk: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(0)
    os.waitpid(middle, 0)


def _may_have_python_models(options: Sequence[str], directory: Path, names: Sequence[str]) -> bool:
    """Whether the server may load a Python model that is not Brisk's; True where its repositories
    are not on this machine. ``names``: Brisk's in the backend ``directory``."""
    from brisk.triton.instance_threads import has_python_models
    from brisk.view.plan import local_repositories

    repositories = local_repositories(options)
    return repositories is None or has_python_models(repositories, directory, names)


def _with_few_threads(options: Sequence[str]) -> Sequence[str]:
    """Return ``with_few_threads`` of the options; print that Python models have no more threads
    where one may be added later."""
    from brisk.triton.instance_threads import (
        FEW_THREADS,
        THREADS,
        says_threads,
        with_few_threads,
    )
    from brisk.view.plan import reads_once

    if not (says_threads(options) or reads_once(options)):
        print(
            f"brisk: {FEW_THREADS} holds for Python models that are added later, too: give a "
            f"greater number if one of them asks more than {THREADS} other models at a time",
            file=sys.stderr,
        )
    return with_few_threads(options)


def _completed(
    options: Sequence[str], served: Sequence[str], *, takes_any_name: bool
) -> tuple[Sequence[str], Mapping[str, str]]:
    """Make a view of completed entries; return the server's options and additions to its
    environment. Without a view the options are unchanged.

    ``takes_any_name``: the server can start stubs for entries whose names a shell would change.
    """
    from brisk.protocol.entry_files import is_text
    from brisk.triton.server_preload import is_plain
    from brisk.view.plan import make_view

    def leaves_out(entry: Path) -> bool:
        return not (is_plain(entry) or (takes_any_name and is_text(entry.name)))

    try:
        view = make_view(options, served, leaves_out)
    except (OSError, InvalidConfigurationError) as error:
        print(f"brisk: Triton completes entries itself: {error}", file=sys.stderr)
        view = None
    if view is None:
        return options, {}
    for entry in view.left_out:
        if is_text(entry.name):  # else it has been named already
            print(f"brisk: '{entry}' is left out: {_NEEDS_COMPILER}", file=sys.stderr)
    return view.options, view.environment


def _tell_of_names(options: Sequence[str]) -> None:
    """Print the entries whose load would never end in a server without a view."""
    from brisk.triton.server_preload import unstartable
    from brisk.view.plan import local_repositories

    for entry in unstartable(local_repositories(options) or ()):
        print(f"brisk: do not load '{entry}', it never ends: {_NEEDS_COMPILER}", file=sys.stderr)


def _tidy() -> None:
    """Remove the shared memory of killed servers; errors are only printed."""
    from brisk.triton.regions import remove_left

    try:
        removed = remove_left()
    except OSError as error:
        print(f"brisk: what killed servers have left is not removed: {error}", file=sys.stderr)
        return
    if removed:
        size_mib = sum(region.size_bytes for region in removed) / 2**20
        print(
            f"brisk: removed {counted(len(removed), 'shared-memory region')} ({size_mib:.1f} MiB) "
            "of servers that were killed",
            file=sys.stderr,
        )
