"""What the machine is made of, and what follows for collectives: rings, trees, orders, faults and plans.

Nothing here depends on the rest of the package. The names below are imported when they are first used, so
that ``import collectives`` and whoever needs only ``collectives.topology.cpu`` do not pay for networkx::

    from collectives.topology import best_rings, detect, load

    machine = load("topo.txt")  # or detect().topology: this one
    print(best_rings(machine).best)

Functions that share the name of their module stay there: ``collectives.topology.plan.plan``,
``record.record``, ``fingerprint.fingerprint``, ``draw.draw``. ``python -m collectives.topology`` is the same
for people (docs/topology.md).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collectives.topology.cost import Costs
    from collectives.topology.graph import (
        Host,
        Link,
        LinkKind,
        Node,
        NodeKind,
        Numa,
        Path,
        PathClass,
        Topology,
        TopologyError,
    )
    from collectives.topology.health import Finding, Severity, findings
    from collectives.topology.orders import across_nodes, groups, rank_order
    from collectives.topology.paths import fully_connected, islands, link_matrix, nearest, path
    from collectives.topology.plan_record import Candidate, Plan
    from collectives.topology.rings import Ring, RingSet, best_rings
    from collectives.topology.sources.files import load, parse
    from collectives.topology.sources.live import Detected, detect
    from collectives.topology.trees import Tree, double_tree

__all__ = [
    "Candidate",
    "Costs",
    "Detected",
    "Finding",
    "Host",
    "Link",
    "LinkKind",
    "Node",
    "NodeKind",
    "Numa",
    "Path",
    "PathClass",
    "Plan",
    "Ring",
    "RingSet",
    "Severity",
    "Topology",
    "TopologyError",
    "Tree",
    "across_nodes",
    "best_rings",
    "detect",
    "double_tree",
    "findings",
    "fully_connected",
    "groups",
    "islands",
    "link_matrix",
    "load",
    "nearest",
    "parse",
    "path",
    "rank_order",
]

_HOMES = {
    "cost": "Costs",
    "graph": "Host Link LinkKind Node NodeKind Numa Path PathClass Topology TopologyError",
    "health": "Finding Severity findings",
    "orders": "across_nodes groups rank_order",
    "paths": "fully_connected islands link_matrix nearest path",
    "plan_record": "Candidate Plan",
    "rings": "Ring RingSet best_rings",
    "sources.files": "load parse",
    "sources.live": "Detected detect",
    "trees": "Tree double_tree",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'collectives.topology' has no attribute {name!r}")
    value = getattr(import_module(f"collectives.topology.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
