"""The settings that environment variables give to any of Brisk's processes.

``docs/configuration.md`` explains them. ``brisk.runtime.settings`` reads those of the runtime
alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from brisk.errors import InvalidConfigurationError

REALTIME_NICENESS = "BRISK_REALTIME_NICENESS"
DEFAULT_NICENESS = -15
"""The default niceness of real-time work: such a thread gets 97 percent of a processor that a
thread of niceness 0 wants, too."""
MOST_URGENT = -20

COURIER_SOCKET = "courier.sock"
"""The name of the courier's socket in the runtime directory (``brisk.sourcing``)."""

CUSTOM_OPERATORS = "BRISK_CUSTOM_OPS"
FORK_STUBS = "BRISK_FORK_STUBS"
STUB_COMPUTES = "BRISK_STUB_COMPUTES"
SIDE_BY_SIDE = "BRISK_SIDE_BY_SIDE"

CACHE_LIMIT = "BRISK_CACHE_MIB"
_MOST_DIGITS = 20
ACCURACY = "BRISK_ACCURACY"
LEAST_ACCURACY, MOST_ACCURACY = 0.5, 0.999999
"""The least and the greatest promise; one of all early answers could not be proved by samples."""

DEFAULT_SAMPLES_MIB = 256

PEERS, PEER_LISTEN, PEER_KEYS = "BRISK_PEERS", "BRISK_PEER_LISTEN", "BRISK_PEER_KEYS"
REMOTE_URLS = "BRISK_REMOTE_URLS"
_SCHEMES = ("https", "http", "s3", "file")

OF_THE_RUNTIME = (
    *("BRISK_THREADS", "BRISK_IDLE_EXIT_S", "BRISK_POLICY", "BRISK_BESTEFFORT_SHARE"),
    *("BRISK_NORMAL_SHARE", "BRISK_OUTSTANDING_LAYERS", "BRISK_GPU_MEMORY", "BRISK_MAX_WAITING"),
    *("BRISK_BACKGROUND_MIB", "BRISK_ARTEFACTS", "BRISK_SAMPLED_SHARE", "BRISK_SAMPLES_MIB"),
    *("BRISK_ADAPTATION_S", "BRISK_MAX_LOAD_S", "BRISK_CACHE_DIR", CACHE_LIMIT),
    *(REALTIME_NICENESS, CUSTOM_OPERATORS, STUB_COMPUTES, SIDE_BY_SIDE),
)
"""The variables that a runtime reads when it starts: all servers that share one set them alike."""

VARIABLES = frozenset(
    (
        *OF_THE_RUNTIME,
        *("BRISK_RUNTIME_DIR", "BRISK_PYTHON", "BRISK_METRICS_INTERVAL_S", FORK_STUBS),
        *(ACCURACY, PEERS, PEER_LISTEN, PEER_KEYS, REMOTE_URLS),
    )
)

_PATHS = (
    *("BRISK_RUNTIME_DIR", "BRISK_CACHE_DIR", "BRISK_PYTHON", PEER_KEYS),
    *("XDG_RUNTIME_DIR", "XDG_CACHE_HOME"),
)

DEFAULT_INTERVAL_S, LARGEST_INTERVAL_S = 5.0, 3600.0
"""The default and the longest time between two publications of metrics."""


def absolute_paths(
    environment: Mapping[str, str] = os.environ, folder: Path | None = None
) -> dict[str, str]:
    """Return the variables that are paths, absolute: Brisk's processes work in other directories.

    ``folder``: where relative ones begin, by default here. A ``BRISK_PYTHON`` that is no path is
    left out.
    """
    named = {name: environment.get(name, "") for name in _PATHS}
    if "/" not in named["BRISK_PYTHON"]:
        del named["BRISK_PYTHON"]
    return {name: str(Path(folder or "", path).absolute()) for name, path in named.items() if path}


def runtime_settings(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the runtime's variables that are set, each as ``NAME=value``."""
    given = {**environment, **absolute_paths(environment)}
    return tuple(f"{name}={given[name]}" for name in OF_THE_RUNTIME if given.get(name))


def unknown_variables(environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yield a line for each variable that looks like one of Brisk's but is none."""
    own = "BRISK_"
    names = {name for name in environment if name.startswith(own)} - VARIABLES
    for name in sorted(names):
        if not name.startswith(f"{own}TEST_"):
            import difflib

            (nearest,) = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.0)
            yield f"there is no setting {name}, did you mean {nearest}?"


def wrong_settings(environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yield a line for each variable with an invalid value, except those that the runtime alone
    reads (``brisk.runtime.settings``)."""
    readers: tuple[Callable[[Mapping[str, str]], object], ...] = (
        *(forks_stubs, metrics_interval_s, accuracy_ppm, loads_custom_operators, remote_urls),
        *(peer_keys, realtime_niceness, cache_limit_bytes, computes_in_stubs, runs_side_by_side),
    )
    for read in readers:
        try:
            read(environment)
        except InvalidConfigurationError as error:
            yield str(error)
    if (folder := environment.get(PEER_KEYS)) and not Path(folder).is_dir():
        yield f"{PEER_KEYS} must be a folder that 'brisk hosts init' has made, not '{folder}'"


def check_settings(environment: Mapping[str, str] = os.environ) -> None:
    """Raise InvalidConfigurationError with the first line of ``wrong_settings``, if any."""
    for wrong in wrong_settings(environment):
        raise InvalidConfigurationError(wrong)


def _switch(name: str, one: str, zero: str) -> Callable[..., bool]:
    """Return a function of an environment, by default this process's, that returns whether a
    setting is 1, the default, and raises InvalidConfigurationError if it is neither 0 nor 1.

    ``one``, ``zero``: the values' meanings.
    """

    def is_on(environment: Mapping[str, str] = os.environ) -> bool:
        text = environment.get(name, "") or "1"
        if text not in ("0", "1"):
            expected = f"1 ({one}) or 0 ({zero})"
            raise InvalidConfigurationError(f"{name} must be {expected}, not '{text}'")
        return text == "1"

    return is_on


forks_stubs = _switch(FORK_STUBS, "stubs are forked from one process", "Triton starts each anew")
loads_custom_operators = _switch(
    CUSTOM_OPERATORS,
    "libraries of custom operators that entries name are loaded",
    "such entries are refused",
)
computes_in_stubs = _switch(
    STUB_COMPUTES, "stubs compute hot small models themselves", "the worker computes all"
)
runs_side_by_side = _switch(
    SIDE_BY_SIDE, "runs go on side by side where requests crowd", "they take turns"
)


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return ``$BRISK_CACHE_DIR``, else ``$XDG_CACHE_HOME/brisk``, else ``~/.cache/brisk``."""
    if named := environment.get("BRISK_CACHE_DIR"):
        return Path(named).absolute()
    if base := environment.get("XDG_CACHE_HOME"):
        return Path(base).absolute() / "brisk"
    return Path(environment.get("HOME") or Path.home()) / ".cache" / "brisk"


def cache_limit_bytes(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the most that all artefacts may take (``$BRISK_CACHE_MIB``); None if it is not set.

    Raises InvalidConfigurationError if it is no whole number above 0.
    """
    text = environment.get(CACHE_LIMIT, "")
    if not text:
        return None
    if not (mib := _whole(text)):
        raise InvalidConfigurationError(
            f"{CACHE_LIMIT} must be a whole number of MiB above 0, not '{text:.40}'"
        )
    return mib << 20


def _whole(text: str) -> int:
    """Return the number that decimal digits write; 0 for any other text, and for more digits than
    a number of bytes has (of some thousand, Python reads none)."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if is_number else 0


def runtime_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return ``$BRISK_RUNTIME_DIR``, ``$XDG_RUNTIME_DIR/brisk`` or ``/tmp/brisk-<uid>``."""
    if chosen := environment.get("BRISK_RUNTIME_DIR"):
        return Path(chosen).absolute()
    if session := environment.get("XDG_RUNTIME_DIR"):
        return Path(session).absolute() / "brisk"
    return Path(f"/tmp/brisk-{os.geteuid()}")


def realtime_niceness(environment: Mapping[str, str] = os.environ) -> int:
    """Return the niceness of real-time work (``$BRISK_REALTIME_NICENESS``), -20 to 0.

    Raises InvalidConfigurationError if it is anything else.
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
    """Return the time between publications of metrics (``$BRISK_METRICS_INTERVAL_S``); 0: none.

    Raises InvalidConfigurationError if it is no number from 0 to LARGEST_INTERVAL_S.
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


def share_ppm(text: str) -> int:
    """Return a share in parts of a million: 980,000 for ``0.98``, 0 for ``off``.

    Raises ValueError, which says what is expected.
    """
    try:
        share = 0.0 if text == "off" else float(text)
    except ValueError:
        share = -1.0
    if text != "off" and not LEAST_ACCURACY <= share <= MOST_ACCURACY:
        raise ValueError(f"must be a share from {LEAST_ACCURACY} to {MOST_ACCURACY}, or off")
    return round(share * 1_000_000)


class Tolerance(NamedTuple):
    """The condition under which values that are no scores of classes count as the model's own,
    row by row."""

    measure: str
    """COSINE or ABSOLUTE."""
    limit: float
    """The least cosine similarity of a row to the model's, or the largest difference."""

    def __str__(self) -> str:
        """Return the text of which ``tolerance`` makes an equal one."""
        return f"{self.measure} {str(self.limit).removesuffix('.0')}"


COSINE, ABSOLUTE = "cosine", "absolute"


def tolerance(text: str) -> Tolerance:
    """Return the tolerance that a text like ``cosine 0.99`` or ``absolute 0.01`` describes.

    Raises ValueError, which says what is expected.
    """
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
    """Return the accuracy of entries that set none (``$BRISK_ACCURACY``), in parts of a million.

    Raises InvalidConfigurationError if it is no such share.
    """
    text = environment.get(ACCURACY, "") or "off"
    try:
        return share_ppm(text)
    except ValueError as error:
        raise InvalidConfigurationError(f"{ACCURACY} {error}, not '{text}'") from None


class HostAddress(NamedTuple):
    """The host and port of a service."""

    host: str
    """A name or an address, without brackets."""
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_here(self) -> bool:
        """Whether it is a loopback address, which other machines cannot reach."""
        import ipaddress  # late: only where peers are set

        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def peers(environment: Mapping[str, str] = os.environ) -> tuple[HostAddress, ...]:
    """Return the hosts that copies of models are fetched from in addition (``$BRISK_PEERS``).

    Raises InvalidConfigurationError if one of them is no host:port.
    """
    texts = environment.get(PEERS, "").split(",")
    return tuple(_address(PEERS, text.strip()) for text in texts if text.strip())


def peer_listen(environment: Mapping[str, str] = os.environ) -> HostAddress | None:
    """Return the address at which copies of models are served to other hosts
    (``$BRISK_PEER_LISTEN``); None: they are not served.

    Raises InvalidConfigurationError if it is no host:port.
    """
    text = environment.get(PEER_LISTEN, "").strip()
    return _address(PEER_LISTEN, text) if text else None


def peer_keys(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of this host's certificate (``$BRISK_PEER_KEYS``); None: it has none.

    Raises InvalidConfigurationError if it has none although it is to reach other hosts, or to be
    reached by them.
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
    """Return the prefixes of which URLs of models must have one (``$BRISK_REMOTE_URLS``); None: it
    is not set.

    Raises InvalidConfigurationError if one of them is no beginning of a URL.
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
    from urllib.parse import urlsplit  # late: only where prefixes are set

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
    number = _whole(port)
    if not _is_host(host) or not 0 < number < 65536:
        raise InvalidConfigurationError(
            f"{name} must be host:port, as 10.0.0.2:7700, not '{text:.300}'"
        )
    return HostAddress(host, number)


def _is_host(text: str) -> bool:
    """Whether it may be a host's name or address: one with an empty or endless part cannot even be
    looked up."""
    try:
        return bool(text.encode("idna")) and not set(text) & set("/@?#[] \t")
    except UnicodeError:
        return False
