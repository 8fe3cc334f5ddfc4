"""Rank orders that follow the machine: what is near stays together, and far hops are as few as possible.

Contract: every function returns each device exactly once, depends on the topology alone and is the same on
all ranks. Groups are nested by path class: NUMA nodes hold host bridges, these hold switches, these hold
islands of fast links; in an order each group lies in one piece, so that k groups of one level are joined by k
- 1 hops (k in a ring), which is the least possible. An island that is no full mesh, such as the hybrid cube
mesh of eight V100 (each device has links to three in its half and one in the other), falls into the largest
equal full meshes: its two halves. Work: O(n²) per level; within a group the search of ``ring_search.widest``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import networkx as nx

from collectives.topology.graph import Node, PathClass, Topology
from collectives.topology.pairs import Pairs
from collectives.topology.paths import path
from collectives.topology.ring_search import Budget, Order, SpentError, hops, widest

BUDGET = 20_000
"""Search steps for each group."""

_APART = (PathClass.UNKNOWN, PathClass.SYS, PathClass.NODE, PathClass.PHB, PathClass.PXB, PathClass.PIX)
_ALL_WAYS = 5
"""Up to this size of group all ways to lay one beside another are tried: 120."""


def _pairs(topology: Topology | Pairs) -> Pairs:
    return topology if isinstance(topology, Pairs) else Pairs(topology)


def _parts(pairs: Pairs, members: Sequence[int], apart: PathClass) -> list[Order]:
    """The members in groups that ways better than `apart` connect."""
    graph = nx.Graph()
    graph.add_nodes_from(members)
    graph.add_edges_from(
        (i, j) for i, j in itertools.combinations(members, 2) if pairs.paths[i][j].kind < apart
    )
    return sorted(tuple(sorted(part)) for part in nx.connected_components(graph))


def _meshes(pairs: Pairs, island: Order) -> list[Order]:
    """An island as the fewest full meshes of one size, the strongest first; as it is if there are none."""

    def split(left: Order, size: int) -> list[Order] | None:
        if not left:
            return []
        budget.step()
        mates = itertools.combinations(left[1:], size - 1)
        full = [(left[0], *some) for some in mates if pairs.joined((left[0], *some))]
        full.sort(key=lambda group: (-sum(pairs.levels[i][j] for i in group for j in group), group))
        for group in full:
            others = split(tuple(v for v in left if v not in group), size)
            if others is not None:
                return [group, *others]
        return None

    if pairs.joined(island):
        return [island]
    budget = Budget(BUDGET)
    for size in range(min(len(island) // 2, 8), 1, -1):
        if len(island) % size == 0:
            try:
                found = split(island, size)
            except SpentError:
                break
            if found:
                return found
    return [island]


def _path(pairs: Pairs, group: Order) -> Order:
    """A group's devices in a row: its best ring, opened at its worst hop."""
    ring, _ = widest([[pairs.levels[i][j] for j in group] for i in group], Budget(BUDGET))
    return opened(pairs, [group[v] for v in ring])


def opened(topology: Topology | Pairs, ring: Sequence[int]) -> Order:
    """A ring as a row: turned so that its worst hop is the one from the last device to the first."""
    pairs = _pairs(topology)
    if len(ring) < 3:
        return tuple(ring)
    level = [pairs.levels[i][j] for i, j in hops(ring)]
    worst = max(k for k, value in enumerate(level) if value == min(level))
    return (*ring[worst + 1 :], *ring[: worst + 1])


def _join(pairs: Pairs, rows: Sequence[Order]) -> Order:
    """Rows in one, nearest next: each goes on, turned round if that is better, where the last one ended."""
    order, left = list(rows[0]), list(rows[1:])
    while left:
        ways = [
            (-pairs.levels[order[-1]][row[0]], k, row) for k, r in enumerate(left) for row in (r, r[::-1])
        ]
        _, k, row = min(ways, key=lambda way: way[:2])
        del left[k]
        order += row
    return tuple(order)


def rank_order(topology: Topology | Pairs) -> Order:
    """The devices in an order in which each group of each level lies in one piece, near ones together."""
    pairs = _pairs(topology)

    def arrange(members: Order, levels: Sequence[PathClass]) -> Order:
        for k, apart in enumerate(levels):
            parts = _parts(pairs, members, apart)
            if len(parts) > 1:
                return _join(pairs, [arrange(part, levels[k + 1 :]) for part in parts])
        return _join(pairs, [_path(pairs, mesh) for mesh in _meshes(pairs, members)])

    return arrange(tuple(range(pairs.count)), _APART) if pairs.count else ()


def groups(topology: Topology | Pairs) -> tuple[Order, ...]:
    """The groups for a collective in two levels: within groups, then among those at the same place in each.

    These are the islands, split into full meshes where they are none themselves; without fast links the
    devices of each NUMA node (or of what else is nearest of the levels that part them). In groups of equal
    size peers lie
    at the same place: those that have the best ways to each other, so that all places can work at once.
    """
    pairs = _pairs(topology)
    everyone = tuple(range(pairs.count))
    islands = _parts(pairs, everyone, PathClass.PIX) if everyone else []
    if any(len(island) > 1 for island in islands):
        found = [mesh for island in islands for mesh in _meshes(pairs, island)]
    else:
        levels = (_parts(pairs, everyone, apart) for apart in _APART)
        found = next((parts for parts in levels if len(parts) > 1), islands) if everyone else []
        if all(len(part) == 1 for part in found) and found:
            found = [everyone]  # all the same distance apart
    return tuple(_aligned(pairs, found))


def _aligned(pairs: Pairs, found: Sequence[Order]) -> Iterator[Order]:
    """The groups, those after the first turned so that they lie beside it place by place."""
    for group in found:
        first = found[0]
        if len(group) != len(first) or group == first:
            yield group
        elif len(group) <= _ALL_WAYS:
            yield max(
                itertools.permutations(group),
                key=lambda order: (_beside(pairs, first, order), [-v for v in order]),
            )
        else:
            rest, order = list(group), []
            for mate in first:
                order.append(max(rest, key=lambda v, mate=mate: (pairs.levels[mate][v], -v)))  # type: ignore[misc]
                rest.remove(order[-1])
            yield tuple(order)


def _beside(pairs: Pairs, first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """How near two rows are place by place: ascending levels, for the worst place decides."""
    return tuple(sorted(pairs.levels[i][j] for i, j in zip(first, second, strict=True)))


def toward(topology: Topology, ring: Sequence[int], nic: Node | str) -> Order:
    """A ring as a row that ends at the device nearest to a network card; the last such one in the row.

    Args:
        ring: device numbers.
        nic: a node of the topology.
    """
    gpus = topology.gpus
    near = [path(topology, gpus[v], nic).kind for v in ring]
    last = max(k for k, kind in enumerate(near) if kind == min(near))
    return (*ring[last + 1 :], *ring[: last + 1])


def across_nodes(nodes: Sequence[Sequence[int]], turn: int = 0) -> Order:
    """A ring over all ranks of several machines that passes each machine in one go.

    Args:
        nodes: for each machine its devices in the order of a ring (or row) of its own; ranks count through
            the machines in this order.
        turn: places by which each machine's ring is turned, so that rings run side by side enter and leave by
            other devices, and with them other network cards.

    Returns:
        Ranks; as many hops between machines as there are machines, none for one.
    """
    order: list[int] = []
    base = 0
    for node in nodes:
        at = turn % len(node) if node else 0
        order += (base + v for v in (*node[at:], *node[:at]))
        base += len(node)
    return tuple(order)
