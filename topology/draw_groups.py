"""Which parts of a machine stand together in its picture: groups, the switches in them, and rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx

from collectives.topology.draw_links import Fabric
from collectives.topology.graph import LinkKind, Node, NodeKind, PathClass, Topology
from collectives.topology.orders import groups as groups_of
from collectives.topology.paths import path

DEVICE, NIC = (1.0, 0.6), (0.74, 0.46)
"""Width and height."""

GAP, PADDING = 0.16, 0.22
"""Between members, and around them."""


@dataclass(frozen=True)
class Group:
    """Devices and network cards of one NUMA node, or of one island.

    Attributes:
        numa: the NUMA node; None if unknown.
        members: names in the order in which they stand.
        nics: those of them that are network cards.
        switches: PCIe switches with the members below each, the innermost first.
    """

    numa: int | None
    members: tuple[str, ...]
    nics: frozenset[str] = frozenset()
    switches: tuple[tuple[str, frozenset[str]], ...] = ()

    def size(self, name: str) -> tuple[float, float]:
        """Width and height of a member."""
        return NIC if name in self.nics else DEVICE

    @property
    def inside(self) -> float:
        """Width of the members side by side."""
        return sum(self.size(name)[0] + GAP for name in self.members) - GAP if self.members else 2.2

    @property
    def width(self) -> float:
        """Width of the whole."""
        return max(self.inside, 2.2) + 2 * PADDING

    def around(self, members: frozenset[str]) -> list[int]:
        """The switches that hold all of these and more, the innermost first."""
        return [k for k, (_, inside) in enumerate(self.switches) if members < inside]

    def height(self, members: frozenset[str]) -> int:
        """How many switches lie one in another from a switch with these members down."""
        below = [self.height(inside) for _, inside in self.switches if inside < members]
        return 1 + max(below, default=0)

    @property
    def levels(self) -> int:
        """The most switches between a member and the host."""
        return max((len(self.around(inside)) + 1 for _, inside in self.switches), default=0)


def _drawn(topology: Topology, made: Fabric) -> list[str]:
    """Devices (cards where they are split and many) and network cards."""
    return [*dict.fromkeys(made.stands_for.values()), *(nic.name for nic in topology.nics)]


def groups(topology: Topology, made: Fabric) -> list[Group]:
    """NUMA nodes in their order, then what hangs on none; or islands, where no NUMA node is known."""
    first: dict[str, Node] = {}
    for gpu in topology.gpus:
        first.setdefault(made.stands_for[gpu.name], gpu)
    first |= {nic.name: nic for nic in topology.nics}
    numbers = {node.numa for node in first.values()} - {None}
    host = [node.numa for node in topology.of_kind(NodeKind.NUMA) if node.numa is not None]
    if not topology.gpus:
        numbers |= set(host)
    where: dict[str, object] = {name: node.numa for name, node in first.items()}
    keys: list[object] = [*sorted(number for number in numbers if number is not None)]
    if not numbers:
        halves = groups_of(topology)
        where = {
            made.stands_for[topology.gpus[v].name]: f"group {k}"
            for k, half in enumerate(halves)
            for v in half
        }
        keys = list(dict.fromkeys(where.values()))
        for nic in topology.nics:
            near = min(topology.gpus, key=lambda gpu: path(topology, gpu, nic).kind, default=None)
            where[nic.name] = where[made.stands_for[near.name]] if near else None
    if any(key is None for key in where.values()):
        keys.append(None)
    found = []
    for key in keys:
        members = [name for name in _drawn(topology, made) if where.get(name) == key]
        switches = _switches(topology, [first[name] for name in members], members)
        nics = frozenset(name for name in members if first[name].kind == NodeKind.NIC)
        number = key if isinstance(key, int) else None
        found.append(Group(number, _ordered(members, switches), nics, switches))
    return found


def _switches(
    topology: Topology, nodes: Sequence[Node], names: Sequence[str]
) -> tuple[tuple[str, frozenset[str]], ...]:
    """PCIe switches with two members or more below, from the tree, or from what path classes imply."""
    below: dict[str, set[str]] = {}
    for node, name in zip(nodes, names, strict=True):
        for switch in _above(topology, node):
            below.setdefault(switch, set()).add(name)
    found: dict[frozenset[str], str] = {}
    for members in below.values():
        if len(members) > 1:
            found.setdefault(frozenset(members), "PCIe switch")
    if not below:
        for kind, title in ((PathClass.PIX, "PCIe (PIX)"), (PathClass.PXB, "PCIe (PXB)")):
            near = nx.Graph()
            near.add_edges_from(
                (names[i], names[j])
                for i, j in itertools.combinations(range(len(nodes)), 2)
                if PathClass.LINK < path(topology, nodes[i], nodes[j]).kind <= kind
            )
            for part in nx.connected_components(near):
                found.setdefault(frozenset(part), title)
    return tuple((title, members) for members, title in sorted(found.items(), key=lambda item: len(item[0])))


def _above(topology: Topology, node: Node) -> list[str]:
    """The PCIe switches above a node, the nearest first."""
    found: list[str] = []
    at = node.name
    while True:
        up = [
            link.target
            for link in topology.links_from(at)
            if link.kind == LinkKind.PCIE and topology.node(link.target).kind == NodeKind.PCI_SWITCH
        ]
        fresh = [name for name in up if name not in found and _is_up(topology, at, name)]
        if not fresh:
            return found
        at = fresh[0]
        found.append(at)


def _is_up(topology: Topology, at: str, name: str) -> bool:
    """Whether a switch is nearer to the host: the way to a NUMA node from it is shorter."""
    if topology.node(at).kind != NodeKind.PCI_SWITCH:
        return True
    return _steps_up(topology, name) < _steps_up(topology, at)


def _steps_up(topology: Topology, name: str) -> int:
    seen, row, steps = {name}, [name], 0
    while row:
        ends = [link.target for at in row for link in topology.links_from(at) if link.kind == LinkKind.PCIE]
        steps += 1
        if any(topology.node(end).kind == NodeKind.NUMA for end in ends):
            return steps
        row = [end for end in ends if end not in seen and topology.node(end).kind == NodeKind.PCI_SWITCH]
        seen.update(row)
    return 1 << 20


def _ordered(members: Sequence[str], switches: Sequence[tuple[str, frozenset[str]]]) -> tuple[str, ...]:
    """Members so that those below one switch stand together, otherwise as they come."""
    index = {name: i for i, name in enumerate(members)}

    def key(name: str) -> tuple[int, ...]:
        around = [min(index[m] for m in inside) for _, inside in switches[::-1] if name in inside]
        return (*around, index[name]) if around else (index[name],)

    return tuple(sorted(members, key=key))


def rows(groups: Sequence[Group], made: Fabric, devices: bool) -> list[list[Group]]:
    """One row, or two of about as many members."""
    if len(groups) == 1 and devices and groups[0].numa is None and len(groups[0].members) >= 6:
        only = groups[0]
        half = (len(only.members) + 1) // 2
        return [[_part(only, only.members[:half])], [_part(only, only.members[half:])]]
    home = {name: k for k, group in enumerate(groups) for name in group.members}
    apart = all(home[link.a] == home[link.b] for link in made.direct)
    if len(groups) < 2 or (apart and all(group.numa is None for group in groups)):
        return [list(groups)]
    total, count = sum(len(g.members) for g in groups), 0
    upper: list[Group] = []
    rest = list(groups)
    while len(rest) > 1 and (not upper or count + len(rest[0].members) <= (total + 1) / 2):
        count += len(rest[0].members)
        upper.append(rest.pop(0))
    return [upper, rest]


def _part(group: Group, members: tuple[str, ...]) -> Group:
    kept = frozenset(members)
    switches = tuple((title, inside & kept) for title, inside in group.switches if len(inside & kept) > 1)
    return Group(group.numa, members, group.nics & kept, switches)
