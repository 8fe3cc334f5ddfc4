"""Where the parts of a machine stand in its picture: geometry alone, in units of about an inch.

Devices stand in one row or two, grouped by NUMA node (by island where no NUMA node is known), with the
network cards beside those that share a PCIe switch with them. Where fast links lead from row to row, devices
face each other and the hosts are outside; else hosts face each other, and what links there are bend outwards.

Contract: pure functions of a topology; boxes of one row do not overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from collectives.topology.draw_groups import DEVICE, GAP, PADDING, Group, groups, rows
from collectives.topology.draw_links import Fabric, fabric
from collectives.topology.graph import NodeKind, Topology

SWITCH = (0.9, 0.28)
"""Width, at least, and height of a PCIe switch."""

BAR = 0.42
"""Height of a NUMA node."""

_BETWEEN = 0.45
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
    parts = groups(topology, found.fabric)
    found.numbered = any(group.numa is not None for group in parts)
    lines = rows(parts, found.fabric, bool(topology.gpus))
    row_of = {name: k for k, row in enumerate(lines) for group in row for name in group.members}
    links = [(link.a, link.b) for link in found.fabric.direct]
    hubs = [hub.members for hub in found.fabric.hubs]
    crossing = any(row_of[a] != row_of[b] for a, b in links) or any(
        len({row_of[name] for name in members}) > 1 for members in hubs
    )
    found.facing = crossing or len(lines) == 1
    widths = [_row_width(row) for row in lines]
    inside = {name for members in hubs for name in members} | {name for link in links for name in link}
    found.depth = _depth(found.fabric, lines) if inside else 0.35
    middle = max(found.depth, 1.0) if found.facing else 0.75
    if hubs and crossing:
        middle = 1.45
    for k, row in enumerate(lines):
        face = -1 if (k == 0) == found.facing else 1  # the upper row looks down when devices face
        levels = max((group.levels for group in row), default=0)
        side = 1 if k == 0 else -1
        reach = levels * _LEVEL + _LEVEL + 0.1
        if found.facing:
            y, bar = side * (middle + DEVICE[1] / 2), side * (middle + DEVICE[1] / 2 + reach)
        else:
            y, bar = side * (middle + reach), side * middle
        _place(topology, found, row, -widths[k] / 2, y, bar, face)
    return found


def _depth(made: Fabric, lines: Sequence[Sequence[Group]]) -> float:
    """Room for the arcs within rows, by the farthest pair that a link joins."""
    place = {
        name: (k, i)
        for k, row in enumerate(lines)
        for i, name in enumerate(name for group in row for name in group.members)
    }
    spans = [
        abs(place[link.a][1] - place[link.b][1])
        for link in made.direct
        if place[link.a][0] == place[link.b][0]
    ]
    return 1.2 + 0.16 * max(spans, default=0)


def _row_width(row: Sequence[Group]) -> float:
    return sum(group.width for group in row) + _BETWEEN * (len(row) - 1)


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
            x += w + GAP
        number = group.numa
        above = None
        if number is not None:
            above = f"numa{number}"
            names.append(above)
            found.boxes[above] = Box(
                above, NodeKind.NUMA, left + width / 2, bar, width - 2 * PADDING, BAR, face
            )
        mine = _place_switches(found, group, y, host)
        for name in group.members:
            holders = group.around(frozenset((name,)))
            if holders or above:
                found.wires.append((name, mine[holders[0]] if holders else above or ""))
        for k, (_, members) in enumerate(group.switches):
            holders = group.around(members)
            if holders or above:
                found.wires.append((mine[k], mine[holders[0]] if holders else above or ""))
        outer = bar + host * BAR / 2
        if above is None:
            outer = (
                max((host * found.boxes[name].back for name in mine), default=host * y + DEVICE[1] / 2) * host
            )
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
        height = group.height(members)
        ends = [found.boxes[member].x for member in members]
        width = max(SWITCH[0], max(ends) - min(ends) + 0.3)  # so that what hangs on it hangs straight down
        at = y + host * (DEVICE[1] / 2 + (height - 0.45) * _LEVEL)
        centre = (min(ends) + max(ends)) / 2
        found.boxes[name] = Box(name, NodeKind.PCI_SWITCH, centre, at, width, SWITCH[1], -host)
        found.titles[name] = title
        names.append(name)
    return names
