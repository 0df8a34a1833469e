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
from brisk.planning.dag import Dag, Execution, NetworkVariant, QueryNode
from brisk.planning.profile import LatencyProfile
from brisk.planning.query import Query, Replanning

__all__ = [
    "POLICIES",
    "Choice",
    "Dag",
    "Execution",
    "LatencyProfile",
    "NetworkVariant",
    "Policy",
    "Query",
    "QueryNode",
    "Replanning",
    "exact",
    "split_equally",
    "split_in_proportion",
]
