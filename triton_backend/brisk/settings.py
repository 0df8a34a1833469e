"""What users set by environment variables, for any of Brisk's processes.

``docs/configuration.md`` explains them. Those of the runtime alone are in
``brisk.runtime.settings``.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from brisk.errors import InvalidConfigurationError

REALTIME_NICENESS = "BRISK_REALTIME_NICENESS"
DEFAULT_NICENESS = -15
"""A thread of this niceness gets 97 percent of a processor that one of niceness 0 wants, too."""
MOST_URGENT = -20

COURIER_SOCKET = "courier.sock"
"""The socket in the runtime directory, while a courier is there (``brisk.sourcing``)."""

CUSTOM_OPERATORS = "BRISK_CUSTOM_OPS"
FORK_STUBS = "BRISK_FORK_STUBS"
STUB_COMPUTES = "BRISK_STUB_COMPUTES"
SIDE_BY_SIDE = "BRISK_SIDE_BY_SIDE"

CACHE_LIMIT = "BRISK_CACHE_MIB"
ACCURACY = "BRISK_ACCURACY"
LEAST_ACCURACY = 0.5

DEFAULT_SAMPLES_MIB = 64

PEERS, PEER_LISTEN, PEER_KEYS = "BRISK_PEERS", "BRISK_PEER_LISTEN", "BRISK_PEER_KEYS"
REMOTE_URLS = "BRISK_REMOTE_URLS"
_SCHEMES = ("https", "http", "s3", "file")

OF_THE_RUNTIME = (
    *("BRISK_THREADS", "BRISK_IDLE_EXIT_S", "BRISK_POLICY", "BRISK_BESTEFFORT_SHARE"),
    *("BRISK_NORMAL_SHARE", "BRISK_OUTSTANDING_LAYERS", "BRISK_MAX_WAITING"),
    *("BRISK_BACKGROUND_MIB", "BRISK_ARTEFACTS", "BRISK_SAMPLED_SHARE", "BRISK_SAMPLES_MIB"),
    *("BRISK_ADAPTATION_S", "BRISK_MAX_LOAD_S", "BRISK_CACHE_DIR", CACHE_LIMIT),
    *(REALTIME_NICENESS, CUSTOM_OPERATORS, STUB_COMPUTES, SIDE_BY_SIDE),
)
"""Variables that a runtime reads when it starts: all servers that use one set them alike."""

VARIABLES = frozenset(
    (
        *OF_THE_RUNTIME,
        *("BRISK_RUNTIME_DIR", "BRISK_PYTHON", "BRISK_METRICS_INTERVAL_S", FORK_STUBS),
        *(ACCURACY, PEERS, PEER_LISTEN, PEER_KEYS, REMOTE_URLS),
    )
)

DEFAULT_INTERVAL_S, LARGEST_INTERVAL_S = 5.0, 3600.0
"""The default and the longest time between two publications of metrics."""


def runtime_settings(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """What is set of a runtime's variables, each as ``NAME=value``."""
    return tuple(f"{name}={environment[name]}" for name in OF_THE_RUNTIME if environment.get(name))


def unknown_variables(environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """A line for each variable that looks like one of Brisk's and is none."""
    own = "BRISK_"
    names = {name for name in environment if name.startswith(own)} - VARIABLES
    for name in sorted(names):
        if not name.startswith(f"{own}TEST_"):
            import difflib

            (nearest,) = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.0)
            yield f"there is no setting {name}, did you mean {nearest}?"


def wrong_settings(environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """A line for each variable with a wrong value that is read by others than the runtime alone,
    which names its own when it starts."""
    for read in (
        *(forks_stubs, metrics_interval_s, accuracy_ppm, loads_custom_operators, remote_urls),
        *(peer_keys, realtime_niceness, cache_limit_bytes, computes_in_stubs, runs_side_by_side),
    ):
        try:
            read(environment)
        except InvalidConfigurationError as error:
            yield str(error)
    if (folder := environment.get(PEER_KEYS)) and not Path(folder).is_dir():
        yield f"{PEER_KEYS} must be a folder that 'brisk hosts init' has made, not '{folder}'"


def check_settings(environment: Mapping[str, str] = os.environ) -> None:
    """Raises InvalidConfigurationError with the first of ``wrong_settings``."""
    for wrong in wrong_settings(environment):
        raise InvalidConfigurationError(wrong)


def forks_stubs(environment: Mapping[str, str] = os.environ) -> bool:
    """``$BRISK_FORK_STUBS``: whether stubs are forked from one process; they are, unless 0.

    Raises InvalidConfigurationError where it is neither 0 nor 1.
    """
    forked = "stubs are forked from one process"
    return _is_on(environment, FORK_STUBS, forked, "Triton starts each anew")


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """``$BRISK_CACHE_DIR``, else ``$XDG_CACHE_HOME/brisk``, else ``~/.cache/brisk``."""
    if named := environment.get("BRISK_CACHE_DIR"):
        return Path(named)
    if base := environment.get("XDG_CACHE_HOME"):
        return Path(base) / "brisk"
    return Path(environment.get("HOME") or Path.home()) / ".cache" / "brisk"


def cache_limit_bytes(environment: Mapping[str, str] = os.environ) -> int | None:
    """``$BRISK_CACHE_MIB``, which artefacts may take together; None where it is not set.

    Raises InvalidConfigurationError where it is no whole number above 0.
    """
    text = environment.get(CACHE_LIMIT, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise InvalidConfigurationError(
            f"{CACHE_LIMIT} must be a whole number of MiB above 0, not '{text}'"
        )
    return int(text) << 20


def runtime_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """``$BRISK_RUNTIME_DIR``, else ``$XDG_RUNTIME_DIR/brisk``, else ``/tmp/brisk-<uid>``."""
    if chosen := environment.get("BRISK_RUNTIME_DIR"):
        return Path(chosen).absolute()  # the runtime starts in another directory
    if session := environment.get("XDG_RUNTIME_DIR"):
        return Path(session) / "brisk"
    return Path(f"/tmp/brisk-{os.geteuid()}")


def runtime_python(environment: Mapping[str, str] = os.environ) -> str:
    """``$BRISK_PYTHON``, else the Python this process runs on, else ``python3``."""
    if chosen := environment.get("BRISK_PYTHON"):
        return chosen
    own = Path(sys.prefix) / "bin" / "python3"
    if own.exists():
        return str(own)
    import shutil  # which is long to import, for what is hardly ever needed

    return shutil.which("python3") or "python3"


ENVIRONMENT = threading.RLock()
"""A lock, held while this process's environment differs from what it is to hand on."""


def python_environment() -> dict[str, str]:
    """The environment of a process of the runtime's Python, which is to find this Brisk."""
    package_root = str(Path(__file__).resolve().parents[1])
    with ENVIRONMENT:
        search_path = os.environ.get("PYTHONPATH", "")
        return {
            **os.environ,
            "PYTHONPATH": package_root + (os.pathsep + search_path if search_path else ""),
        }


def realtime_niceness(environment: Mapping[str, str] = os.environ) -> int:
    """``$BRISK_REALTIME_NICENESS``, -20 to 0; 0: none is wanted.

    Raises InvalidConfigurationError where it is something else.
    """
    text = environment.get(REALTIME_NICENESS, "") or str(DEFAULT_NICENESS)
    try:
        niceness = int(text)
    except ValueError:
        niceness = 1
    if not MOST_URGENT <= niceness <= 0:
        raise InvalidConfigurationError(
            f"{REALTIME_NICENESS} must be a whole number from {MOST_URGENT} to 0, not '{text}'"
        )
    return niceness


def metrics_interval_s(environment: Mapping[str, str] = os.environ) -> float:
    """``$BRISK_METRICS_INTERVAL_S``, 0: no metrics are published.

    Raises InvalidConfigurationError where it is no number from 0 to LARGEST_INTERVAL_S.
    """
    text = environment.get("BRISK_METRICS_INTERVAL_S", "")
    try:
        value = float(text) if text else DEFAULT_INTERVAL_S
    except ValueError:
        value = -1.0
    if not 0 <= value <= LARGEST_INTERVAL_S:
        raise InvalidConfigurationError(
            f"BRISK_METRICS_INTERVAL_S must be a number of seconds from 0 (no metrics) to "
            f"{LARGEST_INTERVAL_S:.0f}, not '{text}'"
        )
    return value


def loads_custom_operators(environment: Mapping[str, str] = os.environ) -> bool:
    """``$BRISK_CUSTOM_OPS``: whether libraries that entries name are loaded; they are, unless 0.

    Raises InvalidConfigurationError where it is neither 0 nor 1.
    """
    loaded = "libraries of custom operators that entries name are loaded"
    return _is_on(environment, CUSTOM_OPERATORS, loaded, "such entries are refused")


def computes_in_stubs(environment: Mapping[str, str] = os.environ) -> bool:
    """``$BRISK_STUB_COMPUTES``: whether stubs compute hot small models; they do, unless 0.

    Raises InvalidConfigurationError where it is neither 0 nor 1.
    """
    computed = "stubs compute hot small models themselves"
    return _is_on(environment, STUB_COMPUTES, computed, "the worker computes all")


def runs_side_by_side(environment: Mapping[str, str] = os.environ) -> bool:
    """``$BRISK_SIDE_BY_SIDE``: whether runs go on side by side where requests crowd; they do,
    unless 0.

    Raises InvalidConfigurationError where it is neither 0 nor 1.
    """
    beside = "runs go on side by side where requests crowd"
    return _is_on(environment, SIDE_BY_SIDE, beside, "they take turns")


def share_ppm(text: str) -> int:
    """``0.98`` as 980,000; ``off`` as 0. Raises ValueError that says what it must be."""
    try:
        share = 0.0 if text == "off" else float(text)
    except ValueError:
        share = -1.0
    if text != "off" and not LEAST_ACCURACY <= share < 1:
        raise ValueError(f"must be a share from {LEAST_ACCURACY} to below 1, or off")
    return round(share * 1_000_000)


class Tolerance(NamedTuple):
    """Which values count as a model's own, row by row, where they are no scores of classes.

    ``COSINE``: a row's cosine similarity to the model's is ``limit`` at least. ``ABSOLUTE``: no
    value differs by more than ``limit``.
    """

    measure: str
    limit: float

    def __str__(self) -> str:
        return f"{self.measure} {self.limit:.9g}"


COSINE, ABSOLUTE = "cosine", "absolute"


def tolerance(text: str) -> Tolerance:
    """``cosine 0.99`` or ``absolute 0.01``. Raises ValueError that says what it must be."""
    measure, _, number = text.strip().partition(" ")
    try:
        limit = float(number)
    except ValueError:
        limit = -1.0
    if (measure == COSINE and 0 < limit < 1) or (measure == ABSOLUTE and 0 < limit < float("inf")):
        return Tolerance(measure, limit)
    raise ValueError(
        f"must be '{COSINE} S' with a similarity S between 0 and 1, or '{ABSOLUTE} D' with a "
        "difference D above 0"
    )


def accuracy_ppm(environment: Mapping[str, str] = os.environ) -> int:
    """``$BRISK_ACCURACY``, of entries that say nothing of it, in parts of a million; 0: off.

    Raises InvalidConfigurationError where it is no such share.
    """
    text = environment.get(ACCURACY, "") or "off"
    try:
        return share_ppm(text)
    except ValueError as error:
        raise InvalidConfigurationError(f"{ACCURACY} {error}, not '{text}'") from None


class HostAddress(NamedTuple):
    """``host``: a name or an address, without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_here(self) -> bool:
        """Whether it is this machine's own, which nobody else reaches."""
        import ipaddress  # by who has peers alone

        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def peers(environment: Mapping[str, str] = os.environ) -> tuple[HostAddress, ...]:
    """``$BRISK_PEERS``: hosts that copies of models are fetched from, too.

    Raises InvalidConfigurationError where one of them is no host:port.
    """
    texts = environment.get(PEERS, "").split(",")
    return tuple(_address(PEERS, text.strip()) for text in texts if text.strip())


def peer_listen(environment: Mapping[str, str] = os.environ) -> HostAddress | None:
    """``$BRISK_PEER_LISTEN``: where copies of models are served to other hosts; None: nowhere.

    Raises InvalidConfigurationError where it is no host:port.
    """
    text = environment.get(PEER_LISTEN, "").strip()
    return _address(PEER_LISTEN, text) if text else None


def peer_keys(environment: Mapping[str, str] = os.environ) -> Path | None:
    """``$BRISK_PEER_KEYS``: the folder of this host's certificate; None: there is none.

    Raises InvalidConfigurationError where there is none, and other hosts are to be reached or
    to reach this one.
    """
    if folder := environment.get(PEER_KEYS):
        return Path(folder).absolute()
    listen = peer_listen(environment)
    named = [(PEERS, each) for each in peers(environment)]
    for name, address in [*named, *([(PEER_LISTEN, listen)] if listen is not None else [])]:
        if not address.is_here:
            raise InvalidConfigurationError(
                f"{name} names {address}, and {PEER_KEYS} is not set: hosts talk to each other "
                "with certificates alone; 'brisk hosts init DIR NAME...' makes them"
            )
    return None


def remote_urls(environment: Mapping[str, str] = os.environ) -> tuple[str, ...] | None:
    """``$BRISK_REMOTE_URLS``: what URLs of models must begin with; None: it is not set.

    Raises InvalidConfigurationError where one of them is no beginning of a URL.
    """
    text = environment.get(REMOTE_URLS, "")
    prefixes = tuple(part.strip() for part in text.split(",") if part.strip())
    for prefix in prefixes or (text,) * bool(text):
        if not _begins_a_url(prefix):
            raise InvalidConfigurationError(
                f"{REMOTE_URLS} must be prefixes of URLs with commas between them, as "
                f"https://models.example/ or file:///srv/models, not '{prefix}'"
            )
    return prefixes or None


def _begins_a_url(text: str) -> bool:
    from urllib.parse import urlsplit  # by who sets that alone

    scheme, separator, rest = text.partition("://")
    try:
        urlsplit(text).port  # noqa: B018  # it is parsed now
    except ValueError:
        return False
    return scheme in _SCHEMES and bool(separator) and not set(rest) & set("?#@\\")


def _address(name: str, text: str) -> HostAddress:
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) < 65536
    if not host or not is_port or set(host) & set("/@?#[] \t"):
        raise InvalidConfigurationError(
            f"{name} must be host:port, as 10.0.0.2:7700, not '{text}'"
        )
    return HostAddress(host, int(port))


def _is_on(environment: Mapping[str, str], name: str, one: str, zero: str) -> bool:
    """A setting that is 1 unless it is set to 0; what either means, for the message."""
    text = environment.get(name, "") or "1"
    if text not in ("0", "1"):
        raise InvalidConfigurationError(f"{name} must be 1 ({one}) or 0 ({zero}), not '{text}'")
    return text == "1"
