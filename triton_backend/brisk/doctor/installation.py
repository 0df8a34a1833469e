"""The checks of the installation: interpreter, runtime, cache, prepared forms, and the served
entries."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from brisk.doctor.deployment import (
    Deployment,
    Findings,
    advice,
    ask_python,
    good,
    lost_backends,
    of_process,
    problem,
    unknown,
)
from brisk.errors import (
    ArtefactError,
    BriskError,
    InvalidConfigurationError,
    UnavailableError,
    counted,
)
from brisk.fork_server.build import LAUNCHER, find_compiler
from brisk.ownership import check_makable
from brisk.paths import listed
from brisk.protocol.channel import greet
from brisk.protocol.entry_files import (
    CONFIG_FILE,
    MODEL_FILE,
    entry_problem,
    layout_problem,
    versions_in,
)
from brisk.protocol.runtime_paths import runtime_place
from brisk.settings import FORK_STUBS, cache_directory
from brisk.stub.config.completion import is_whole
from brisk.stub.config.entry import find_file
from brisk.stub.config.session_tuning import read_tuning
from brisk.triton.backend_directory import DEFAULT_NAMES, names_of_ours
from brisk.triton.options import option
from brisk.triton.server_preload import is_preloaded, unstartable
from brisk.tuning import SessionTuning
from brisk.view.entry_text import written_config

CONNECT_TIMEOUT_S = 5.0
DEFAULT_BACKENDS = "/opt/tritonserver/backends"
WANTED_CACHE_BYTES = 2**30
_IMPORTS = (
    "import onnxruntime, onnx, numpy; print(f'onnxruntime {onnxruntime.__version__}, "
    "onnx {onnx.__version__}, numpy {numpy.__version__}')"
)


def interpreter(deployment: Deployment) -> Findings:
    """Check the runtime's Python, which needs onnxruntime, onnx and numpy; Triton's own needs
    numpy only."""
    try:
        return good(f"{deployment.python}: {ask_python(deployment, _IMPORTS)}")
    except UnavailableError as error:
        return problem(
            f"{deployment.python}: {error}",
            "no model can be loaded",
            "BRISK_PYTHON=<a Python that has onnxruntime, onnx and numpy> for tritonserver",
        )


def runtime_directory(deployment: Deployment) -> Findings:
    """Check that a runtime can be where the settings put it: each model's load is refused else."""
    place = runtime_place(deployment.device, deployment.environment)
    if deployment.is_contained:
        return unknown(f"{place.base} is the container's, which is not looked into")
    place.check()
    return good(str(place.base))


def runtime(deployment: Deployment) -> Findings:
    """Check that the running runtime is of this installation's version: after an update the old
    one may still run."""
    place = runtime_place(deployment.device, deployment.environment)
    try:
        connection = place.connect(CONNECT_TIMEOUT_S)
    except OSError:
        return unknown(f"none runs at {place.directory}")
    try:
        with connection:
            answer = greet(connection)
        return good(f"Brisk {answer.version}, protocol {answer.protocol}, worker {answer.pid}")
    except (OSError, EOFError, BriskError) as error:
        is_silent = not isinstance(error, BriskError)
        return problem(
            f"the runtime at {place.directory} is silent: {error}" if is_silent else str(error),
            "models of the newer backend cannot be loaded until the older runtime ends",
            "stop all servers that use it; it ends by itself BRISK_IDLE_EXIT_S (10 s) later",
        )


def cache(deployment: Deployment) -> Findings:
    """Check the cache directory, which holds artefacts and the assembled backend directory."""
    directory = cache_directory(deployment.environment)
    if (refusal := _cache_refusal(deployment)) is not None:
        slower = "stubs start slower, too, unless their launcher was compiled ahead, as in wheels"
        if not refusal.strerror:  # it is another user's, or others can write there
            return advice(
                str(refusal),
                f"nothing in it is used: who may write there decides what code runs; {slower}",
                "BRISK_CACHE_DIR=<a directory of the server's user alone>",
            )
        return advice(
            f"{directory} cannot be used ({refusal.strerror})",
            "nothing is kept between starts: every start reads and prepares each model again; "
            f"{slower}",
            "BRISK_CACHE_DIR=<a writable directory>; in a container, a volume",
        )
    present = next(path for path in (directory, *directory.parents) if path.exists())
    status = os.statvfs(present)
    free = status.f_frsize * status.f_bavail
    state = f"{directory}, {free / 2**30:.1f} GiB free"
    if free >= WANTED_CACHE_BYTES:
        return good(state)
    return advice(
        state,
        "a model whose artefact finds no room starts as slowly as the first time",
        "make room: an artefact takes about as much as its model",
    )


def _cache_refusal(deployment: Deployment) -> OSError | None:
    """Return why nothing can be kept in the cache directory; None if it can be used."""
    try:
        check_makable(cache_directory(deployment.environment))
    except OSError as error:
        return error
    return None


def artefacts(deployment: Deployment) -> Findings:
    """Check that the server would find a fitting prepared form of each model, made by an earlier
    start on this machine."""
    if deployment.device != "cpu":
        return good("models on a GPU have none")
    from brisk.artefacts.room import refusal_of
    from brisk.exits.files.container import tapped_values
    from brisk.exits.files.versions import latest
    from brisk.segments.prepared.form import PreparedModel, find_prepared

    own = deployment.environment
    models = [each for each in _models(deployment) if _uses_prepared_form(each, deployment)]
    missing, findings = [], []
    for entry, file in models:
        try:
            taps = tapped_values(latest(file, own))
            form = find_prepared(file, taps, own)
            if form is None and taps:  # of an entry that does not take what was learned
                taps = ()
                form = find_prepared(file, taps, own)
            if form is None and (why := refusal_of(file, own)) is not None:
                findings += advice(
                    f"{file} has none here: {why}",
                    "each of its starts reads and cuts its file, and it is prepared in vain after "
                    "each",
                    "more in BRISK_CACHE_MIB, or fewer models in this cache",
                )
            elif form is None:
                missing.append(entry.name)
            else:
                PreparedModel(form, file, 1, taps, environment=own).check()
        except ArtefactError as error:
            findings += advice(
                f"not used: {file}: {error}",
                "the model starts as slowly as the first time",
                "mode or owner as the text says; else `brisk prepare` writes a new one, as does "
                "the runtime after the next start",
            )
    if missing:
        have = "has" if len(missing) == 1 else "have"
        findings += advice(
            f"{len(missing)} of {counted(len(models), 'model')} {have} none here "
            f"({', '.join(missing[:5])}{', …'[: 3 * (len(missing) > 5)]})",
            "their next start reads and cuts the model's file, and what runs fast is "
            "optimised anew after it (docs/how-it-works/cold-start.md has figures)",
            "`brisk prepare MODEL_DIR`, or nothing: the runtime writes them after a start",
        )
    if models and not findings:
        return good(f"of {counted(len(models), 'model')} each has one that fits")
    return findings


class _Model(NamedTuple):
    """A version of an entry that is an ONNX model."""

    entry: Path
    file: Path


def _models(deployment: Deployment) -> list[_Model]:
    """Return every version of every entry whose file is an ONNX model."""
    models = {
        file.resolve(): _Model(entry, file)  # the same repository may be named twice
        for repository in deployment.repositories
        for entry in sorted(listed(repository))
        for file in _onnx_files(entry)
    }
    return list(models.values())


def _onnx_files(entry: Path) -> Iterator[Path]:
    """Yield the ONNX model of each version of an entry. If a load would refuse to choose a file,
    it is the one of the usual name, whose check says why."""
    for version in versions_in(entry):
        try:
            file = find_file(entry, version, written_config(entry))
        except BriskError:
            usual = entry / str(version) / MODEL_FILE
            file = usual if os.path.exists(usual) else None
        if file is not None and file.suffix in (".onnx", ".ort"):
            yield file


def _tuning(model: _Model, deployment: Deployment) -> SessionTuning:
    """Return the tuning of a model's entry.

    Raises InvalidConfigurationError and InvalidModelError if its settings are wrong or
    unsupported.
    """
    entry, file = model
    return read_tuning(written_config(entry), entry, file, deployment.environment).tuning


def _uses_prepared_form(model: _Model, deployment: Deployment) -> bool:
    """Whether a prepared form can serve the entry; False if it cannot be read, which another check
    reports."""
    try:
        return _tuning(model, deployment).keeps_answers
    except BriskError:
        return False


def auto_complete(deployment: Deployment) -> Findings:
    """Check the auto-completion of configurations, for which Triton runs a second stub at every
    load.

    A Python-based backend's load took 1.4 s with it and 0.2 s without, measured with complete
    configurations. One second is a fixed wait in Triton, which a server started by ``brisk serve``
    avoids.
    """
    if deployment.server is None:
        return unknown("no running server was found")
    if is_preloaded(deployment.environment):
        return good("takes a stub for each load, and no second")
    value = option(deployment.command, "disable-auto-complete-config")
    if value is not None and value.lower() not in ("false", "0"):
        return good("switched off")
    incomplete = [
        entry.name
        for repository in deployment.repositories
        for entry in sorted(listed(repository))
        if _is_incomplete(entry)
    ]
    change = "start the server with --disable-auto-complete-config"
    if incomplete:
        names = ", ".join(incomplete[:5]) + (" …" if len(incomplete) > 5 else "")
        change = (
            f"write complete configurations with `brisk config MODEL_DIR` ({names}), then {change}"
            "; `brisk serve` does the same by itself, and changes no entry"
        )
    return advice(
        "on: every load asks a stub of its own to complete the configuration",
        "about 1.2 s of each model's load (1.4 s against 0.2 s)",
        change,
    )


def _is_incomplete(entry: Path) -> bool:
    """Whether an entry's configuration lacks inputs or outputs; False if there is none, or it
    cannot be read, which is told elsewhere."""
    try:
        return (entry / CONFIG_FILE).exists() and not is_whole(written_config(entry))
    except (OSError, BriskError):
        return False


def forked_stubs(deployment: Deployment) -> Findings:
    """Check whether stubs of later models are forked from a process with Python and Brisk loaded.

    Through Triton, `resnet50` was ready after 34 ms with forked stubs and after 144 to 151 ms
    without (`brisk bench cold --parts served`), and a load took a third of the processor time.
    """
    if deployment.server is None:
        return unknown("no running server was found")
    if lost_backends(deployment) is not None:
        return unknown("the server's backend directory is gone")
    cost = "some 0.1 s and 0.15 s of processor time of each model's load"
    if deployment.environment.get(FORK_STUBS) == "0":
        state = f"switched off: each stub starts Python ({FORK_STUBS}=0)"
        return advice(state, cost, f"remove {FORK_STUBS}")
    backends = Path(option(deployment.command, "backend-directory") or DEFAULT_BACKENDS)
    lacking = _without_launcher(of_process(deployment.server, backends))
    if lacking is None:
        return good("from the second model on")
    name = "" if lacking == "brisk" else f" --as {lacking}"
    again = f"`brisk install{name}` or `brisk serve` again"
    if find_compiler() is None:
        change = f"install a C++ compiler (Debian: g++), then {again}"
    elif _cache_refusal(deployment) is not None:
        change = (
            "see the finding 'cache': the launcher is compiled in the cache directory, which "
            f"cannot be used; then {again}"
        )
    else:
        change = f"{again}: a C++ compiler is here, which makes it"
    state = f"'{backends}/{lacking}' has no {LAUNCHER}: each stub starts Python"
    return advice(state, cost, change)


def _without_launcher(backends: Path) -> str | None:
    """Return the name of a backend of ours that has no launcher; None if there is none.

    Where none is recognised, as in a container whose links lead elsewhere from here, those of the
    usual names are looked at.
    """
    ours = names_of_ours(backends)
    lacking = [
        name for name in ours or DEFAULT_NAMES if not (backends / name / LAUNCHER).is_file()
    ]
    if not ours and len(lacking) < len(DEFAULT_NAMES):
        return None
    return next(iter(lacking), None)


def names(deployment: Deployment) -> Findings:
    """Check for entries whose paths would be changed by the shell that starts Triton's Python
    stubs.

    Triton quotes nothing; a load then waits for its stub forever.
    """
    if is_preloaded(deployment.environment):
        return good("any name can be served")
    findings: Findings = []
    for entry in unstartable(deployment.repositories):
        findings += problem(
            f"'{entry}' has characters that mean something to a shell",
            "a load of it never ends, and the server does not end either; `brisk serve` leaves it "
            "out, or says so where it cannot",
            "rename it, or serve with `brisk serve` where there is a C++ compiler (Debian: g++)",
        )
    return findings or good("all are taken by a shell as they are")


def entries(deployment: Deployment) -> Findings:
    """Check for repositories and entries from which Triton would load nothing."""
    if not deployment.repositories:
        return unknown("no model repository was given or found")
    findings, count = [], 0
    for repository in dict.fromkeys(deployment.repositories):
        if (lacking := layout_problem(repository)) is not None:
            change = "a directory for each model, as the text says"
            findings += problem(f"'{repository}': {lacking}", "nothing of it is served", change)
        for entry in sorted(path for path in listed(repository) if os.path.isdir(path)):
            count += 1
            if (lacking := entry_problem(entry)) is not None:
                cost = "it is not served, and the server ends, unless it has --exit-on-error=false"
                change = "put the file there, or take the directory out of the repository"
                findings += problem(f"'{entry}': {lacking}", cost, change)
    return findings or good(f"{counted(count, 'entry', 'entries')} with a version")


def operators(deployment: Deployment) -> Findings:
    """Check for models that ONNX Runtime refuses, by opening each on the processor as a load
    would."""
    models = _models(deployment)
    if not models:
        return unknown("no model repository was given or found")
    from brisk.segments.model.sources import checked_model

    findings = []
    for model in models:
        try:  # every session of the model, as a load would make
            checked_model(model.file, 1, tuning=_tuning(model, deployment))
        except BriskError as error:
            wrong = _of_file(model.file, error)
            is_setting = isinstance(error, InvalidConfigurationError)
            change = "mend the entry's config.pbtxt" if is_setting else "put a whole model there"
            findings += problem(wrong, "it is not served", change)
    return findings or good(f"ONNX Runtime takes all of {counted(len(models), 'model')}")


def _of_file(file: Path, error: BriskError) -> str:
    """Return the error's text, with the file before it unless the text begins with it."""
    text = str(error)
    return text if text.startswith(str(file)) else f"{file}: {text}"
