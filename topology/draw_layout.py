"""Where the parts of a machine stand in its picture: geometry alone, in units of about an inch.

Devices stand in one row or two, grouped by NUMA node (by island where no NUMA node is known), with the network
cards beside those that share a PCIe switch with them. Where fast links lead from row to row, devices face each
other and the hosts are outside; else hosts face each other, and what links there are bend outwards.

Contract: pure functions of a topology; boxes of one row do not overlap.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import networkx as nx

from collectives.topology.draw_links import Fabric, fabric
from collectives.topology.graph import LinkKind, Node, NodeKind, PathClass, Topology
from collectives.topology.orders import groups as groups_of
from collectives.topology.paths import path

DEVICE, NIC, SWITCH = (1.0, 0.6), (0.74, 0.46), (0.9, 0.28)
BAR = 0.42
"""Height of a NUMA node."""

_GAP, _PADDING, _BETWEEN = 0.16, 0.22, 0.45
_LEVEL = 0.78


@dataclass(frozen=True)
class Box:
    """A box by its middle.

    Attributes:
        name: of the node, or of what stands for several.
        kind: of the node.
        x, y, width, height: where and how large.
        face: the way to the other devices: 1 up, -1 down.
    """

    name: str
    kind: NodeKind
    x: float
    y: float
    width: float
    height: float
    face: int = -1

    @property
    def front(self) -> float:
        """y of the side that faces other devices."""
        return self.y + self.face * self.height / 2

    @property
    def back(self) -> float:
        """y of the side that faces the host."""
        return self.y - self.face * self.height / 2


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
        return sum(self.size(name)[0] + _GAP for name in self.members) - _GAP if self.members else 2.2

    @property
    def width(self) -> float:
        """Width of the whole."""
        return max(self.inside, 2.2) + 2 * _PADDING


@dataclass
class Layout:
    """The picture.

    Attributes:
        fabric: the fast links that are drawn.
        boxes: by name; NUMA nodes as ``numa0``, PCIe switches as ``switch0``.
        frames: what surrounds each group, as boxes.
        rows: names of the NUMA nodes of each row, from left to right.
        wires: over PCIe: from, to.
        titles: of switches, by name.
        numbered: whether the NUMA node of some group is known.
        facing: whether devices, not hosts, face the other row.
        depth: how far fast links of one row reach from the devices.
    """

    fabric: Fabric
    boxes: dict[str, Box] = field(default_factory=dict)
    frames: list[Box] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    wires: list[tuple[str, str]] = field(default_factory=list)
    titles: dict[str, str] = field(default_factory=dict)
    numbered: bool = False
    facing: bool = True
    depth: float = 1.5


def layout(topology: Topology) -> Layout:
    """The picture of a machine."""
    found = Layout(fabric(topology))
    groups = _groups(topology, found.fabric)
    found.numbered = any(group.numa is not None for group in groups)
    rows = _rows(groups, found.fabric, bool(topology.gpus))
    row_of = {name: k for k, row in enumerate(rows) for group in row for name in group.members}
    links = [(link.a, link.b) for link in found.fabric.direct]
    hubs = [hub.members for hub in found.fabric.hubs]
    crossing = any(row_of[a] != row_of[b] for a, b in links) or any(
        len({row_of[name] for name in members}) > 1 for members in hubs
    )
    found.facing = crossing or len(rows) == 1
    widths = [_row_width(row) for row in rows]
    inside = {name for members in hubs for name in members} | {name for link in links for name in link}
    found.depth = _depth(found.fabric, rows) if inside else 0.35
    middle = max(found.depth, 1.0) if found.facing else 0.75
    if hubs and crossing:
        middle = 1.45
    for k, row in enumerate(rows):
        face = -1 if (k == 0) == found.facing else 1  # the upper row looks down when devices face
        levels = max((_levels(group) for group in row), default=0)
        side = 1 if k == 0 else -1
        reach = levels * _LEVEL + _LEVEL + 0.1
        if found.facing:
            y, bar = side * (middle + DEVICE[1] / 2), side * (middle + DEVICE[1] / 2 + reach)
        else:
            y, bar = side * (middle + reach), side * middle
        _place(topology, found, row, -widths[k] / 2, y, bar, face)
    return found


def _depth(made: Fabric, rows: Sequence[Sequence[Group]]) -> float:
    """Room for the arcs within rows, by the farthest pair that a link joins."""
    place = {
        name: (k, i)
        for k, row in enumerate(rows)
        for i, name in enumerate(name for group in row for name in group.members)
    }
    spans = [
        abs(place[link.a][1] - place[link.b][1]) for link in made.direct if place[link.a][0] == place[link.b][0]
    ]
    return 1.2 + 0.16 * max(spans, default=0)


def _drawn(topology: Topology, made: Fabric) -> list[str]:
    """Devices (cards where they are split and many) and network cards."""
    return [*dict.fromkeys(made.stands_for.values()), *(nic.name for nic in topology.nics)]


def _groups(topology: Topology, made: Fabric) -> list[Group]:
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
            made.stands_for[topology.gpus[v].name]: f"group {k}" for k, half in enumerate(halves) for v in half
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
        ends = [
            link.target for at in row for link in topology.links_from(at) if link.kind == LinkKind.PCIE
        ]
        steps += 1
        if any(topology.node(end).kind == NodeKind.NUMA for end in ends):
            return steps
        row = [
            end for end in ends if end not in seen and topology.node(end).kind == NodeKind.PCI_SWITCH
        ]
        seen.update(row)
    return 1 << 20


def _ordered(
    members: Sequence[str], switches: Sequence[tuple[str, frozenset[str]]]
) -> tuple[str, ...]:
    """Members so that those below one switch stand together, otherwise as they come."""
    index = {name: i for i, name in enumerate(members)}

    def key(name: str) -> tuple[int, ...]:
        around = [min(index[m] for m in inside) for _, inside in switches[::-1] if name in inside]
        return (*around, index[name]) if around else (index[name],)

    return tuple(sorted(members, key=key))


def _rows(groups: Sequence[Group], made: Fabric, devices: bool) -> list[list[Group]]:
    """One row, or two of about as many members."""
    if len(groups) == 1 and devices and groups[0].numa is None and len(groups[0].members) >= 6:
        only = groups[0]
        half = (len(only.members) + 1) // 2
        return [[_part(only, only.members[:half])], [_part(only, only.members[half:])]]
    home = {name: k for k, group in enumerate(groups) for name in group.members}
    apart = all(home[link.a] == home[link.b] for link in made.direct)
    if len(groups) < 2 or (apart and all(group.numa is None for group in groups)):
        return [list(groups)]
    total, upper, count = sum(len(g.members) for g in groups), [], 0
    rest = list(groups)
    while len(rest) > 1 and (not upper or count + len(rest[0].members) <= (total + 1) / 2):
        count += len(rest[0].members)
        upper.append(rest.pop(0))
    return [upper, rest]


def _part(group: Group, members: tuple[str, ...]) -> Group:
    kept = frozenset(members)
    switches = tuple((title, inside & kept) for title, inside in group.switches if len(inside & kept) > 1)
    return Group(group.numa, members, group.nics & kept, switches)


def _row_width(row: Sequence[Group]) -> float:
    return sum(group.width for group in row) + _BETWEEN * (len(row) - 1)


def _around(group: Group, members: frozenset[str]) -> list[int]:
    """The switches that hold all of these and more, the innermost first."""
    return [k for k, (_, inside) in enumerate(group.switches) if members < inside]


def _levels(group: Group) -> int:
    return max((len(_around(group, inside)) + 1 for _, inside in group.switches), default=0)


def _place(
    topology: Topology, found: Layout, row: Sequence[Group], left: float, y: float, bar: float, face: int
) -> None:
    """Puts a row of groups in the picture."""
    names: list[str] = []
    host = -face  # the way from the devices to their host
    for group in row:
        width = group.width
        x = left + (width - group.inside) / 2
        for name in group.members:
            w, h = group.size(name)
            kind = NodeKind.NIC if name in group.nics else NodeKind.GPU
            at = y + host * (DEVICE[1] - h) / 2
            found.boxes[name] = Box(name, kind, x + w / 2, at, w, h, face)
            x += w + _GAP
        number = group.numa
        above = None
        if number is not None:
            above = f"numa{number}"
            names.append(above)
            found.boxes[above] = Box(above, NodeKind.NUMA, left + width / 2, bar, width - 2 * _PADDING, BAR, face)
        mine = _place_switches(found, group, y, host)
        for name in group.members:
            holders = _around(group, frozenset((name,)))
            if holders or above:
                found.wires.append((name, mine[holders[0]] if holders else above or ""))
        for k, (_, members) in enumerate(group.switches):
            holders = _around(group, members)
            if holders or above:
                found.wires.append((mine[k], mine[holders[0]] if holders else above or ""))
        outer = bar + host * BAR / 2
        if above is None:
            outer = max((host * found.boxes[name].back for name in mine), default=host * y + DEVICE[1] / 2) * host
        low, high = sorted((outer + host * 0.14, y - host * (DEVICE[1] / 2 + 0.14)))
        title = "" if number is not None or not found.numbered else "NUMA unknown"
        found.frames.append(
            Box(title, NodeKind.NUMA, left + width / 2, (low + high) / 2, width, high - low, face)
        )
        left += width + _BETWEEN
    found.rows.append(names)


def _place_switches(found: Layout, group: Group, y: float, host: int) -> list[str]:
    names = []
    for title, members in group.switches:
        name = f"switch{len(found.titles)}"
        height = 1 + max((_height(group, inside) for _, inside in group.switches if inside < members), default=0)
        ends = [found.boxes[member].x for member in members]
        width = max(SWITCH[0], max(ends) - min(ends) + 0.3)  # so that what hangs on it hangs straight down
        at = y + host * (DEVICE[1] / 2 + (height - 0.45) * _LEVEL)
        centre = (min(ends) + max(ends)) / 2
        found.boxes[name] = Box(name, NodeKind.PCI_SWITCH, centre, at, width, SWITCH[1], -host)
        found.titles[name] = title
        names.append(name)
    return names


def _height(group: Group, members: frozenset[str]) -> int:
    """How many switches lie one in another from these members' down."""
    return 1 + max((_height(group, inside) for _, inside in group.switches if inside < members), default=0)

