"""Rings through all devices: the one with the widest bottleneck, and the best edge-disjoint set.

What is sought. A *ring* passes every device once; data go round it in one direction, and its pace is that of
its narrowest hop. The best ring has the widest narrowest hop; among those the fewest hops that are as narrow,
then the fewest of the next level, and so on, so that ways between islands, sockets and switches are gone as
seldom as possible. A *ring set* is what a ring algorithm runs on side by side: each ring takes an equal share
of the data and so an equal share of bandwidth, a link carries one ring in each direction, and a bundle of c
links c rings. A ring and its reverse are two rings. Rings over the host (PCIe, sockets) share each device's
one way to it, so that there is one of them only.

How it is found: ``ring_search.widest`` (levels from the top down, then branch and bound) and
``ring_packing.pack`` (cuts from above, a greedy choice from below, a complete search between). Both are exact
for 8 devices where :data:`BUDGET` suffices, which ``exact`` tells; beyond, what the budget allows is
returned. The total of the set is never less than what the best ring carries alone.

Ideas, as facts from the field: topology files of NCCL and RCCL are searched for channels by depth-first
search with a step budget; Walecki's and Tillson's decompositions of complete graphs; branch and bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from collectives.topology.graph import PathClass, Topology
from collectives.topology.pairs import Pairs
from collectives.topology.ring_packing import Lanes, pack
from collectives.topology.ring_search import Budget, Order, hops, widest

BUDGET = 100_000
"""Search steps of one call (devices put at the end of a path): about a second of one core."""


@dataclass(frozen=True)
class Ring:
    """One ring, alone on the machine.

    Attributes:
        order: device numbers as data pass them, from device 0; the last sends to the first.
        kind: the worst path class of a hop; SELF for one device, which needs none.
        links: fast links of the narrowest hop, 0 if a hop has none; None if unknown.
        gbps: usable GB/s of the narrowest hop; None if one is unknown.
    """

    order: Order
    kind: PathClass = PathClass.SELF
    links: int | None = 0
    gbps: float | None = None


@dataclass(frozen=True)
class RingSet:
    """The rings of a machine.

    Attributes:
        best: the ring with the widest bottleneck.
        rings: the set, to be run side by side; orders may come more than once, for links are bundled.
        share: GB/s of each ring of the set while all run; None if unknown.
        exact: whether it is proven that no ring is better than `best`, and no set of such shares larger.
        best_exact: the former alone.
        steps: of the search that were used.
    """

    best: Ring
    rings: tuple[Ring, ...]
    share: float | None
    exact: bool
    best_exact: bool
    steps: int

    @property
    def gbps(self) -> float | None:
        """GB/s that leave (and enter) each device while all rings run; None if unknown."""
        return None if self.share is None else self.share * len(self.rings)


def measure(pairs: Pairs, order: Sequence[int]) -> Ring:
    """What a ring in this order is worth."""
    found = [pairs.paths[i][j] for i, j in hops(order)]
    links = [p.links for p in found]
    speeds = [p.gbps for p in found]
    return Ring(
        tuple(order),
        max((p.kind for p in found), default=PathClass.SELF),
        0 if not found or 0 in links else None if None in links else min(n for n in links if n is not None),
        None if not found or None in speeds else min(s for s in speeds if s is not None),
    )


def best_rings(topology: Topology | Pairs, budget: int = BUDGET) -> RingSet:
    """The best ring and the best edge-disjoint set of a machine's devices.

    Args:
        topology: the machine, or its pairs where they are at hand.
        budget: search steps; the same number gives the same rings everywhere.

    Returns:
        For one device the ring of itself; without devices an empty one as the best, and an empty set.
    """
    pairs = topology if isinstance(topology, Pairs) else Pairs(topology)
    steps = Budget(budget)
    part = steps.part(0.4)
    order, best_exact = widest(pairs.levels, part)
    exact = best_exact
    steps.join(part)
    best = measure(pairs, order)
    rings, share = [order] if order else [], best.gbps
    for quantum in _quanta(pairs, best):
        found, proven = _pack(pairs, order, quantum, steps)
        exact = exact and proven
        if found and _more(quantum, len(found), share, len(rings)):
            rings, share = found, quantum
    return RingSet(
        best, tuple(measure(pairs, ring) for ring in sorted(rings)), share, exact, best_exact, steps.used
    )


def _more(share: float | None, count: int, than_share: float | None, than_count: int) -> bool:
    """Whether a set carries more than another, or as much in more rings; the new one if nobody can tell."""
    if share is None or than_share is None:
        return True
    new, old = share * count, than_share * than_count
    return new > old if not math.isclose(new, old) else count >= than_count


def _quanta(pairs: Pairs, best: Ring) -> Sequence[float | None]:
    """Shares for which sets are sought: speeds of single links, and the best ring's; None: a link's."""
    fast = [p for row in pairs.paths for p in row if p.kind == PathClass.LINK]
    if not fast:
        return []
    if any(p.gbps is None or not p.links for p in fast):
        return [None] if best.kind == PathClass.LINK else []
    speeds = {round(p.gbps / p.links, 9) for p in fast if p.gbps and p.links}
    if best.kind == PathClass.LINK and best.gbps:
        speeds.add(best.gbps)
    return sorted(speeds)[:4]


def _pack(pairs: Pairs, best: Order, quantum: float | None, steps: Budget) -> tuple[list[Order], bool]:
    """Rings that carry `quantum` GB/s (None: one link's worth) on fast links alone."""

    def lanes(links: int, gbps: float | None) -> int:
        if quantum is None or gbps is None:
            return links
        return min(links, math.floor(gbps / quantum * (1 + 1e-9)))

    everyone = range(pairs.count)
    own = [
        [0 if i == j else lanes(pairs.links(i, j), pairs.paths[i][j].gbps) for j in everyone]
        for i in everyone
    ]
    # Where only one end shares its links, the other end's hop is bound by that end's ports.
    shared = [
        [own[i][j] > 0 and (pairs.ports[i] is not None or pairs.ports[j] is not None) for j in everyone]
        for i in everyone
    ]
    ports = [
        0 if not any(shared[i]) else lanes(*port) if port else sum(own[i])
        for i, port in enumerate(pairs.ports)
    ]
    direct = [[0 if shared[i][j] else own[i][j] for j in everyone] for i in everyone]
    part = steps.part(0.7)
    found = pack(Lanes(direct, shared, ports), [best], part)
    steps.join(part)
    return found


def best_bottleneck_links(topology: Topology | Pairs, budget: int = BUDGET) -> int:
    """The largest number L such that a ring exists in which every hop has at least L fast links.

    Returns:
        0 if no ring of fast links passes all devices, or there are fewer than two. Pairs with an unknown
        number of links count as one link. Where the budget ends first (never to 8 devices), the largest L
        found.
    """
    pairs = topology if isinstance(topology, Pairs) else Pairs(topology)
    n = pairs.count
    if n < 2:
        return 0
    links = [[pairs.links(i, j) for j in range(n)] for i in range(n)]
    order, _ = widest(links, Budget(budget))
    return min(links[i][j] for i, j in hops(order))
