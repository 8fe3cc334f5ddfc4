"""As many edge-disjoint rings as a machine has lanes for.

A *lane* is what one ring takes of a hop in one direction: a link, as a rule. Devices behind a switch (or that
share their links among all pairs for another reason) have *ports* besides: a ring takes one to leave such a
device and one to enter it. A ring and its reverse are two rings; links carry both directions at once, so the
reverse of a set is as good as the set.

Contract: no more rings use a hop than it has lanes, and no more leave or enter a device than it has ports.
Deterministic, by steps and not by time. Finding the largest number is hard in general (it is already so for
two rings); it is found by comparing what a search finds with what cuts allow:

* above: through every cut between some devices and the others each ring passes at least once;
* below: a greedy choice that spreads over the lanes, each ring with its reverse; in a full mesh the rings
  that Walecki gave for complete graphs in the 1880s (n - 1 directed ones, or n - 2 for even n);
* between: a complete search for one ring more, over sets in lexicographic order.

A full mesh of n devices decomposes into n - 1 directed rings except for n = 4 and n = 6 (Tillson 1980), where
the search proves that one less is the most.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collectives.topology.ring_search import Budget, Order, SpentError, cycles, hops

_ALTERNATIVES = 64
"""Rings that the greedy choice looks at for one that is not in the set yet."""


@dataclass(frozen=True)
class Lanes:
    """What there is to use.

    Attributes:
        direct: ``direct[i][j]`` lanes of i to j alone.
        shared: whether i reaches j by ports; no lanes of its own then.
        ports: of each device, shared among those hops.
    """

    direct: Sequence[Sequence[int]]
    shared: Sequence[Sequence[bool]]
    ports: Sequence[int]

    @property
    def count(self) -> int:
        """Devices."""
        return len(self.direct)

    @property
    def any_shared(self) -> bool:
        """Whether any hop goes by ports."""
        return any(map(any, self.shared))

    def limit(self) -> int:
        """Rings that no cut forbids: of all cuts for 10 devices or fewer, else of the single devices.

        Each ring passes a cut at least once in both directions, and a ring of three devices or more uses one
        direction at most between two devices. O(2ⁿ n²) and O(n²).
        """
        n = self.count
        cuts = [
            set(inside)
            for k in (range(1, n) if n <= 10 else [1])
            for inside in itertools.combinations(range(n), k)
        ]
        limit = min(self._through(inside, None) // 2 for inside in cuts)
        while n > 2 and any(self._through(inside, limit) < 2 * limit for inside in cuts):
            limit -= 1
        return limit

    def _through(self, inside: set[int], rings: int | None) -> int:
        """Passages in both directions that a cut allows; of so many rings between two devices at most."""
        outside = [j for j in range(self.count) if j not in inside]
        direct = (self.direct[i][j] + self.direct[j][i] for i in inside for j in outside)
        ends = [(i, j) for i in inside for j in outside if self.shared[i][j]]
        shared = min(sum(self.ports[v] for v in {end[side] for end in ends}) for side in (0, 1))
        return sum(n if rings is None else min(n, rings) for n in direct) + 2 * shared


class _Rest:
    """Lanes and ports that are left while rings are chosen."""

    def __init__(self, lanes: Lanes) -> None:
        self.direct = [list(row) for row in lanes.direct]
        self.shared = lanes.shared
        self.leaving, self.entering = list(lanes.ports), list(lanes.ports)
        self.used = [[0] * lanes.count for _ in lanes.direct]

    def _by_port(self, i: int, j: int) -> bool:
        return self.shared[i][j] and self.leaving[i] > 0 and self.entering[j] > 0

    def out(self) -> list[int]:
        """The hops that can still be used, as bits."""
        n = len(self.direct)
        return [
            sum(1 << j for j in range(n) if j != i and (self.direct[i][j] > 0 or self._by_port(i, j)))
            for i in range(n)
        ]

    def width(self) -> list[list[int]]:
        """What is left of each hop, where ports are shared less what this hop has had of them."""
        n = len(self.direct)
        return [
            [self.direct[i][j] or min(self.leaving[i], self.entering[j]) - self.used[i][j] for j in range(n)]
            for i in range(n)
        ]

    def fits(self, order: Order) -> bool:
        """Whether the ring can be taken; one of two devices or more."""
        return all(self.direct[i][j] > 0 or self._by_port(i, j) for i, j in hops(order))

    def take(self, order: Order) -> list[tuple[int, int]]:
        """Takes the ring's lanes; returns the hops that went by ports, for :meth:`give`."""
        ported = [(i, j) for i, j in hops(order) if not self.direct[i][j]]
        for i, j in hops(order):
            self.used[i][j] += 1
            if (i, j) in ported:
                self.leaving[i] -= 1
                self.entering[j] -= 1
            else:
                self.direct[i][j] -= 1
        return ported

    def give(self, order: Order, ported: list[tuple[int, int]]) -> None:
        """Undoes :meth:`take`."""
        for i, j in hops(order):
            self.used[i][j] -= 1
            if (i, j) in ported:
                self.leaving[i] += 1
                self.entering[j] += 1
            else:
                self.direct[i][j] += 1


def reverse(order: Order) -> Order:
    """The same ring the other way round, from the same first device."""
    return order[:1] + order[:0:-1]


def full_mesh_rings(n: int) -> list[Order]:
    """Edge-disjoint directed rings of a complete graph, each with its reverse: n - 1, or n - 2 for even n.

    One device stays in the middle and the others lie on a circle; a zigzag through the circle and the middle
    is a ring, and turning the circle gives the others. With even n one device more is put into each ring.
    """
    if n < 3:
        return [tuple(range(n))] if n == 2 else []
    circle = (n - 1) // 2 * 2  # devices 1 to `circle` lie on it
    half = circle // 2
    rings = []
    for turn in range(half):
        # t, t + 1, t - 1, t + 2, ...: the distance grows by one with each hop.
        zigzag = [1 + (turn + (k + 1) // 2 * (1 if k % 2 else -1)) % circle for k in range(circle)]
        if n % 2 == 0:
            # The last device goes between the two that lie opposite: no other turn has a hop at either of
            # them.
            zigzag.insert(half, n - 1)
        ring = (0, *zigzag)
        rings += [ring, reverse(ring)]
    return rings


def _greedy(lanes: Lanes, first: Sequence[Order], most: int, budget: Budget) -> list[Order]:
    """Rings one after another while they fit: `first`, then what `cycles` offers, with its reverse."""
    rest = _Rest(lanes)
    chosen: list[Order] = []

    def add(order: Order) -> None:
        while len(chosen) < most and rest.fits(order):
            rest.take(order)
            chosen.append(order)
            if lanes.any_shared:
                break  # what is shared can go by any order, so that every ring gets another one

    for order in first:
        add(order)
    while len(chosen) < most:
        seen = set(chosen)
        try:
            offered = list(itertools.islice(cycles(rest.out(), budget, rest.width()), _ALTERNATIVES))
        except SpentError:
            break
        if not offered:
            break
        order = next((ring for ring in offered if ring not in seen), offered[0])
        rest.take(order)
        chosen.append(order)
        back = reverse(order)
        if back != order and len(chosen) < most and rest.fits(back):
            rest.take(back)
            chosen.append(back)
    return chosen


def _one_more(lanes: Lanes, wanted: int, budget: Budget) -> list[Order] | None:
    """`wanted` rings if there are so many, else None: depth first over sets in ascending order of rings.

    The device with fewest lanes is made number 0 for the search, for it leaves least choice.
    SpentError if the budget ends before that is known.
    """
    names = sorted(range(lanes.count), key=lambda i: (sum(lanes.direct[i]) + lanes.ports[i], i))
    direct = [[lanes.direct[i][j] for j in names] for i in names]
    shared = [[lanes.shared[i][j] for j in names] for i in names]
    found = _search(Lanes(direct, shared, [lanes.ports[i] for i in names]), wanted, budget)
    return found and [_from_zero([names[v] for v in ring]) for ring in found]


def _from_zero(ring: Sequence[int]) -> Order:
    start = ring.index(0)
    return (*ring[start:], *ring[:start])


def _search(lanes: Lanes, wanted: int, budget: Budget) -> list[Order] | None:
    rest = _Rest(lanes)
    chosen: list[Order] = []
    taken: list[list[tuple[int, int]]] = []

    def further(floor: Order) -> Iterator[Order]:
        # Later rings do not leave device 0 for a lower one, so that it needs lanes enough from this one on.
        out = rest.out()
        if not any(lanes.shared[0]):
            seconds = [v for v in range(lanes.count) for _ in range(rest.direct[0][v])]
            spare = len(seconds) - (wanted - len(chosen))
            if spare < 0:
                return iter(())
            out[0] &= (2 << seconds[spare]) - 1
        return cycles(out, budget, rest.width(), floor)

    stack = [further(())]
    while stack:
        order = next(stack[-1], None)
        if order is None:
            stack.pop()
            if chosen:
                rest.give(chosen.pop(), taken.pop())
            continue
        chosen.append(order)
        if len(chosen) == wanted:
            return chosen
        taken.append(rest.take(order))
        stack.append(further(order))
    return None


def pack(lanes: Lanes, first: Sequence[Order], budget: Budget) -> tuple[list[Order], bool]:
    """The largest set of rings that was found, and whether it is proven that there is none larger.

    Args:
        lanes: of two devices or more.
        first: rings to begin with, as many of each as fit.
        budget: of steps. A quarter is for the greedy choice, half for the number that the cuts allow at most,
            the rest for one ring more than is known, again and again.
    """
    limit = lanes.limit()
    if not limit:
        return [], True
    starts = [list(first)]
    if lanes.count > 2 and not any(len(set(row)) > 2 for row in lanes.direct):
        starts.append([*first, *full_mesh_rings(lanes.count)])
        starts.append(full_mesh_rings(lanes.count))
    if lanes.any_shared:
        starts.append(list(first) * limit)
    best: list[Order] = []
    for start in starts:
        part = budget.part(0.25 / len(starts))
        found = _greedy(lanes, start, limit, part)
        budget.join(part)
        best = max(best, found, key=len)
    targets = [(limit, 0.5)]
    while len(best) < limit:
        wanted, share = targets.pop() if targets else (len(best) + 1, 0.5)
        part = budget.part(share)
        try:
            more = _one_more(lanes, wanted, part)
        except SpentError:
            budget.join(part)
            if wanted < limit or len(best) + 1 == limit:
                return best, False
            continue
        budget.join(part)
        if more:
            best = more
        else:
            limit = wanted - 1
            targets = [(limit, 0.5)] if wanted > len(best) + 1 else []
    return best, True
