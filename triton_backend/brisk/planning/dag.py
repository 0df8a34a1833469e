"""The shape of a query: nodes, what each waits for, and the networks that may do its work."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from brisk.errors import InvalidModelError


@dataclass(frozen=True, slots=True)
class NetworkVariant:
    """One network for a node's task. ``accuracy``: share of right answers, 0 to 1.

    ``full_ns``: what it takes without an early answer. ``usual_ns``: within which most of its
    runs answer, early ones included; None where that is the same.
    """

    name: str
    accuracy: float
    full_ns: int
    usual_ns: int | None = None

    @property
    def may_be_early(self) -> bool:
        """Whether most of its runs take less than a whole one."""
        return self.usual_ns is not None and self.usual_ns < self.full_ns


@dataclass(frozen=True, slots=True)
class QueryNode:
    """``after``: names of the nodes whose outputs it reads. ``variants``: at least one."""

    name: str
    variants: tuple[NetworkVariant, ...]
    after: tuple[str, ...] = ()

    @property
    def slowest_ns(self) -> int:
        """The maximum execution time among its variants: C_i of GATI's equation 4."""
        return max(variant.full_ns for variant in self.variants)

    def variant(self, name: str) -> NetworkVariant:
        return next(variant for variant in self.variants if variant.name == name)


class Execution(Enum):
    """Who computes the nodes of one query.

    PARALLEL: each node has a machine of its own, as in GATI; nodes of different branches run at
    the same time. SERIAL: one processor takes one node after the other, as Brisk's worker does;
    the critical path is the sum of all nodes.
    """

    PARALLEL = "parallel"
    SERIAL = "serial"


@dataclass(frozen=True, slots=True)
class Dag:
    """Nodes in an order in which they can run. Raises InvalidModelError where there is none."""

    nodes: tuple[QueryNode, ...]
    _by_name: Mapping[str, QueryNode] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names: dict[str, QueryNode] = {}
        for node in self.nodes:
            missing = [name for name in node.after if name not in names]
            if missing or node.name in names or not node.variants:
                raise InvalidModelError(
                    f"node '{node.name}' has no variant, is there twice, or comes before "
                    f"{missing or 'itself'}"
                )
            names[node.name] = node
        object.__setattr__(self, "_by_name", names)

    def node(self, name: str) -> QueryNode:
        return self._by_name[name]

    def without(self, names: Collection[str]) -> Dag:
        """What is left to run once ``names`` have run, or have at least begun."""
        return Dag(
            tuple(
                QueryNode(node.name, node.variants, tuple(n for n in node.after if n not in names))
                for node in self.nodes
                if node.name not in names
            )
        )

    def as_usual(self) -> Dag:
        """The same query, its variants taking what they usually do."""
        if not any(variant.may_be_early for node in self.nodes for variant in node.variants):
            return self
        return Dag(
            tuple(
                replace(node, variants=tuple(_as_usual(each) for each in node.variants))
                for node in self.nodes
            )
        )

    def is_in_time(
        self, name: str, variant: NetworkVariant, left_ns: int, execution: Execution
    ) -> bool:
        """Whether a whole run of ``variant`` leaves time for the fastest ones of all others."""
        weights = {node.name: min(each.full_ns for each in node.variants) for node in self.nodes}
        weights[name] = variant.full_ns
        return self.heaviest_paths(weights, execution)[name] <= left_ns

    def heaviest_paths(self, weights: Mapping[str, int], execution: Execution) -> dict[str, int]:
        """For each node the greatest sum of weights of a path through it, the node's included.

        A path leads from a node that waits for none to one that none waits for. A serial
        execution has one path, with all nodes.
        """
        if execution is Execution.SERIAL:
            return dict.fromkeys(weights, sum(weights.values()))
        upstream: dict[str, int] = {}
        for node in self.nodes:
            before = max((upstream[name] for name in node.after), default=0)
            upstream[node.name] = before + weights[node.name]
        downstream = dict.fromkeys(weights, 0)
        for node in reversed(self.nodes):
            behind = downstream[node.name] + weights[node.name]
            for name in node.after:
                downstream[name] = max(downstream[name], behind)
        return {name: upstream[name] + downstream[name] for name in upstream}


def _as_usual(variant: NetworkVariant) -> NetworkVariant:
    if variant.usual_ns is None or not variant.may_be_early:
        return variant
    return replace(variant, full_ns=variant.usual_ns, usual_ns=None)
