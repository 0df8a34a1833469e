"""Pipelines whose networks load: put together and tried when the last one is there."""

from __future__ import annotations

from dataclasses import dataclass

from brisk.errors import BriskError
from brisk.pipelines import PipelineDescription
from brisk.runtime.models.loader import Loader, LoadOutcome
from brisk.runtime.models.session import Session
from brisk.runtime.models.session_entry import SessionEntry
from brisk.runtime.pipelines.session import assemble
from brisk.runtime.pipelines.trial import Trials


@dataclass(frozen=True, slots=True)
class PipelineAssembly:
    """A pipeline that is waited for; ``name`` and ``version`` are its first asker's."""

    ticket: int
    entry: SessionEntry
    description: PipelineDescription
    name: str
    version: int
    started_ns: int


class Assemblies:
    """Used by the worker's main thread. ``loader`` is told of pipelines that fail."""

    def __init__(self, trials: Trials, loader: Loader) -> None:
        self._trials = trials
        self._loader = loader
        self._waiting: list[PipelineAssembly] = []

    def add(self, assembly: PipelineAssembly) -> None:
        self._waiting.append(assembly)
        self.advance()

    def advance(self) -> None:
        """Have the pipelines tried whose networks are all there; fail those that miss one."""
        for assembly in list(self._waiting):
            parts = assembly.entry.parts
            sessions = {
                path: part.session
                for path, part in parts.items()
                if isinstance(part.session, Session) and part.is_complete
            }
            if len(sessions) < len(parts) and not any(part.error for part in parts.values()):
                continue
            self._waiting.remove(assembly)
            try:
                _check_parts(assembly)
                labels = (assembly.name, str(assembly.version))
                session = assemble(assembly.description, sessions, labels, assembly.started_ns)
            except BriskError as error:
                self._loader.tell(LoadOutcome(assembly.ticket, None, error))
            else:
                self._trials.add(assembly.ticket, session)

    def drop(self, ticket: int) -> bool:
        """Nobody waits for this pipeline any more; False where its outcome is on its way."""
        for assembly in self._waiting:
            if assembly.ticket == ticket:
                self._waiting.remove(assembly)
                return True
        return self._trials.drop(ticket)


def _check_parts(assembly: PipelineAssembly) -> None:
    """Raise the error of the first network that was not loaded, with its name in the pipeline."""
    for words, path in assembly.description.networks:
        error = assembly.entry.parts[path].error
        if error is not None:
            raise type(error)(f"{words}: {error}")
