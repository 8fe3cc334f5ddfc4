"""What every pair of devices offers to a ring, a tree or an order, and which pair is the better one.

Contract: a pure function of a :class:`~collectives.topology.graph.Topology`, so that all ranks that hold the
same description plan the same. Pairs are symmetric: what one direction has less of counts for both
(``paths.fast_links``). O(n²) path queries.

How pairs are ranked, best first:

1. by usable GB/s, where it is known of every pair; the better path class decides between equals;
2. else by path class (fast links, PIX, PXB, PHB, NODE, SYS, unknown). Within a class by GB/s where it is
   known of all pairs of that class, else by the number of links; an unknown number counts as one link, for a
   link that is there has at least that.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property

from collectives.topology.graph import FAST, LinkKind, NodeKind, Path, PathClass, Topology
from collectives.topology.links import nvlink_ports
from collectives.topology.paths import path

XGMI_PORTS = {"gfx90a": 8, "gfx942": 7}
"""xGMI links of one device at most (AMD's data sheets; four of a die of MI250X go to the other die)."""

MOST_PORTS = {LinkKind.NVLINK: 18, LinkKind.XGMI: 8}
"""The same where the architecture is unknown: the most that any device in the tables has."""


class Pairs:
    """The paths between all devices of a machine, by device number.

    Args:
        topology: the machine; its ``gpus`` are the devices.

    Attributes:
        count: devices.
        paths: ``paths[i][j]``; to itself of class SELF.
        levels: ``levels[i][j]``, 0 for the worst pair of this machine, equal numbers for equally good pairs;
            -1 on the diagonal. Symmetric.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        gpus = topology.gpus
        self.count = len(gpus)
        here = Path(PathClass.SELF, 0, None, 0)
        self.paths = [[here] * self.count for _ in gpus]
        for i, j in itertools.combinations(range(self.count), 2):
            self.paths[i][j] = self.paths[j][i] = path(topology, gpus[i], gpus[j])
        self.levels = self._levels()

    def _levels(self) -> list[list[int]]:
        all_paths = [self.paths[i][j] for i, j in itertools.combinations(range(self.count), 2)]
        by_speed = all(p.gbps is not None for p in all_paths)
        timed = {
            kind: all(p.gbps is not None for p in all_paths if p.kind == kind)
            for kind in {p.kind for p in all_paths}
        }

        def key(found: Path) -> tuple[float, float]:
            if by_speed:
                return found.gbps or 0.0, -found.kind
            within = found.gbps if timed[found.kind] else planned_links(found)
            return -found.kind, within or 0.0

        numbers = {k: level for level, k in enumerate(sorted({key(p) for p in all_paths}))}
        return [
            [-1 if i == j else numbers[key(p)] for j, p in enumerate(row)] for i, row in enumerate(self.paths)
        ]

    def links(self, i: int, j: int) -> int:
        """Fast links between two devices as they are planned with; 0 where none are known to be."""
        return planned_links(self.paths[i][j]) if i != j else 0

    @cached_property
    def ports(self) -> list[tuple[int, float | None] | None]:
        """Links and GB/s that a device shares among all its fast pairs; None where each pair has its own.

        A device behind NVSwitches shares its links to them. A source that knows no switches gives all links
        of the device to every pair; that is seen by their sum, which is more than such a device has, and then
        the best pair's links are all there is. Partitions of one card, which share its links, are seen so
        too.
        """
        return [self._port(i) for i in range(self.count)]

    def _port(self, i: int) -> tuple[int, float | None] | None:
        node = self.topology.gpus[i]
        fast = [link for link in self.topology.links_from(node.name) if link.kind in FAST]
        up = [ln for ln in fast if self.topology.node(ln.target).kind == NodeKind.NVSWITCH]
        if up:
            speeds = [link.gbps for link in up if link.gbps is not None]
            count = sum(1 if link.count is None else link.count for link in up)
            return count, sum(speeds) if len(speeds) == len(up) else None
        mine = [p for p in self.paths[i] if p.kind == PathClass.LINK]
        known = nvlink_ports(node.arch) or XGMI_PORTS.get(node.arch or "")
        most = known or max((MOST_PORTS.get(link.kind, 0) for link in fast), default=0)
        if sum(planned_links(p) for p in mine) <= most:
            return None
        best = max(mine, key=lambda p: (planned_links(p), p.gbps or 0.0))
        return planned_links(best), best.gbps

    def joined(self, members: Sequence[int]) -> bool:
        """Whether fast links join every pair of `members`."""
        return all(self.paths[i][j].kind == PathClass.LINK for i, j in itertools.combinations(members, 2))


def planned_links(found: Path) -> int:
    """Links to plan with: one where their number is unknown, none where the path is of another class."""
    if found.kind != PathClass.LINK:
        return 0
    return 1 if found.links is None else found.links
