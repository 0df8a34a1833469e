"""Plans for queries over several networks: which variant of each runs, within what time.

After GATI, sections 5.1 and 5.2. Standard library only; nobody here reads a clock.
"""

from brisk.planning.choosing import (
    POLICIES,
    Choice,
    Policy,
    exact,
    split_equally,
    split_in_proportion,
)
from brisk.planning.dag import Dag, Execution, Node, Variant
from brisk.planning.profile import LatencyProfile
from brisk.planning.query import Query, Replanning

__all__ = [
    "POLICIES",
    "Choice",
    "Dag",
    "Execution",
    "LatencyProfile",
    "Node",
    "Policy",
    "Query",
    "Replanning",
    "Variant",
    "exact",
    "split_equally",
    "split_in_proportion",
]
