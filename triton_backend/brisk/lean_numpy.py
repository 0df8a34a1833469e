"""The import of numpy without modules that only its users need, which take a third of its time.

These modules run at their first use. Unlike ``importlib.util.LazyLoader``, which before Python
3.12 shows a second thread a module that has not run, this is safe for several threads.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

ON_DEMAND = frozenset(
    {"numpy.ctypeslib", "numpy.fft", "numpy.ma", "numpy.polynomial", "numpy.random"}
)

_lock = threading.RLock()
_running: set[str] = set()


@contextlib.contextmanager
def on_demand() -> Iterator[None]:
    """Return a context in which modules of ON_DEMAND are imported without being run."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder:
    """Finds and makes the modules ON_DEMAND; all others are left to the finders after it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in ON_DEMAND:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader_state, spec.loader = spec.loader, self  # type: ignore[assignment]  # a loader by what it does
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None  # one as usual

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = _Deferred


class _Deferred(ModuleType):
    """A module that has not run; it has the attributes that the import system reads."""

    def __getattribute__(self, name: str) -> Any:
        if not (name.startswith("__") and name.endswith("__")):
            _run(self)
        return ModuleType.__getattribute__(self, name)


def _run(module: ModuleType) -> None:
    """Run the module once. Another thread waits for it; the thread that runs it sees what is
    defined so far."""
    name = module.__name__
    with _lock:
        if not isinstance(module, _Deferred) or name in _running:
            return
        spec = module.__spec__
        assert spec is not None
        _running.add(name)
        try:
            real = spec.loader_state
            real.exec_module(module)
            module.__loader__ = spec.loader = real
            ModuleType.__setattr__(module, "__class__", ModuleType)
        finally:
            _running.discard(name)
