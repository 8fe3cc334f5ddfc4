"""Machines built from link counts, for the tests of rings, trees and orders, and reckoning by brute force."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from collectives.topology.graph import Link, LinkKind, Node, NodeKind, PathClass, Topology

Pair = tuple[int, int]

CUBE_MESH: dict[Pair, int] = dict.fromkeys(
    [(0, 3), (3, 2), (2, 1), (1, 5), (5, 6), (6, 7), (7, 4), (4, 0)], 2
)
CUBE_MESH |= dict.fromkeys([(0, 1), (1, 3), (3, 7), (7, 5), (5, 4), (4, 6), (6, 2), (2, 0)], 1)
CUBE_MESH = {(min(pair), max(pair)): count for pair, count in sorted(CUBE_MESH.items())}
"""NVLinks of eight V100: one ring of two on each hop, another of one; 0 to 3 and 4 to 7 are full meshes."""


def machine(
    count: int,
    links: Mapping[Pair, int | None],
    gbps: float | Callable[[Pair], float | None] | None = None,
    kind: LinkKind = LinkKind.NVLINK,
    arch: str | None = None,
    apart: Callable[[int, int], PathClass] | None = None,
) -> Topology:
    """Devices with links between pairs; `gbps` of one link, or by pair; `apart`: class of the others."""
    edges = []
    for pair, links_of_pair in links.items():
        speed = gbps(pair) if callable(gbps) else gbps and links_of_pair and gbps * links_of_pair
        for i, j in (pair, pair[::-1]):
            edges.append(Link(f"gpu{i}", f"gpu{j}", kind, links_of_pair, gbps=speed))
    pairs = itertools.combinations(range(count), 2)
    classes = {(f"gpu{i}", f"gpu{j}"): apart(i, j) for i, j in pairs} if apart else {}
    return Topology([Node(f"gpu{i}", NodeKind.GPU, arch=arch) for i in range(count)], edges, classes)


def full_mesh(count: int, links: int = 1, **how: object) -> Topology:
    return machine(count, dict.fromkeys(itertools.combinations(range(count), 2), links), **how)  # type: ignore[arg-type]


def switched(count: int, links: int, gbps: float) -> Topology:
    """Devices with so many links each to one NVSwitch, of so many GB/s each."""
    nodes = [Node(f"gpu{i}", NodeKind.GPU) for i in range(count)] + [Node("switch", NodeKind.NVSWITCH)]
    ends = [(f"gpu{i}", "switch") for i in range(count)]
    edges = [
        Link(a, b, LinkKind.NVLINK, links, gbps=links * gbps) for end in ends for a, b in (end, end[::-1])
    ]
    return Topology(nodes, edges)


def two_sockets(i: int, j: int) -> PathClass:
    """Four devices on each socket, two on each PCIe switch."""
    if i // 4 != j // 4:
        return PathClass.SYS
    return PathClass.PIX if i // 2 == j // 2 else PathClass.NODE


def hops(order: Iterable[int]) -> list[Pair]:
    ring = list(order)
    return list(zip(ring, ring[1:] + ring[:1], strict=True)) if len(ring) > 1 else []


def all_rings(count: int) -> list[tuple[int, ...]]:
    """Every directed ring through 0 to count - 1."""
    return [(0, *others) for others in itertools.permutations(range(1, count))]
