"""One query on its way through its nodes, after GATI's Pseudocode 1."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from brisk.planning.choosing import Choice, Policy
from brisk.planning.dag import Dag, Execution


class Replanning(Enum):
    """STATIC: the plan made at the start is kept. INCREMENTAL: it is made anew for what is left
    whenever a node begins, with the time that earlier nodes left over or took too much."""

    STATIC = "static"
    INCREMENTAL = "incremental"


class Query:
    """Times are of one clock, in ns; ``due_ns`` is the end of the objective. Not thread-safe.

    Pseudocode 1 adds what a finished node saved to the budgets of the nodes behind it, by the
    policy's own shares. For both splits that equals splitting the time that is left over the
    nodes that are left, which is what is done here; it holds for other policies too, and where
    time was lost instead of saved.

    Beyond GATI, an incremental plan reckons with what variants usually take, early answers
    included, as long as a whole run of the one that begins leaves the others time enough for
    their fastest: what an early answer spares is then known before, not only behind it. A static
    plan, which cannot be mended, reckons with whole runs.
    """

    def __init__(
        self,
        dag: Dag,
        objective_ns: int,
        started_ns: int,
        policy: Policy,
        replanning: Replanning = Replanning.INCREMENTAL,
        execution: Execution = Execution.SERIAL,
    ) -> None:
        self._left = dag
        self.due_ns = started_ns + objective_ns
        self._policy = policy
        self._replanning = replanning
        self._execution = execution
        self._plan = policy(dag, objective_ns, execution)
        self._begun: dict[str, tuple[Choice, int]] = {}

    @property
    def plan(self) -> Mapping[str, Choice]:
        """The latest choice for every node; final for those that have begun."""
        return self._plan

    def begin(self, name: str, now_ns: int) -> Choice:
        """The choice for a node that runs now. Precondition: the nodes before it have run."""
        if self._replanning is Replanning.INCREMENTAL:
            self._plan = {**self._plan, **self._plan_anew(name, self.due_ns - now_ns)}
        choice = self._plan[name]
        self._begun[name] = (choice, now_ns)
        self._left = self._left.without({name})
        return choice

    def _plan_anew(self, name: str, left_ns: int) -> Mapping[str, Choice]:
        """For all that is left, with node ``name`` about to begin."""
        usual = self._left.as_usual()
        if usual is not self._left:
            plan = self._policy(usual, left_ns, self._execution)
            chosen = self._left.node(name).variant(plan[name].variant.name)
            if not chosen.may_be_early or self._left.is_in_time(
                name, chosen, left_ns, self._execution
            ):
                return {**plan, name: Choice(chosen, plan[name].budget_ns)}
        return self._policy(self._left, left_ns, self._execution)

    def finish(self, name: str, now_ns: int) -> int:
        """The node's saved latency: its budget less what it took; negative where it took more."""
        choice, begun_ns = self._begun[name]
        return choice.budget_ns - (now_ns - begun_ns)
