"""Searches for rings in matrices of numbers; what the numbers mean is the caller's matter.

Contract: deterministic, no clock and no randomness. Work is counted in *steps* (one device put at the end of
a path) against a :class:`Budget`, so that every rank stops at the same place; what is found at that place is
a valid answer, and the second result tells whether it is proven to be the best. A ring is a tuple of device
numbers that starts with 0; its hops are those between neighbours and the one from the last to the first.

Finding a ring through all devices is finding a Hamiltonian cycle: exponential in the worst case, so the
searches are depth first with pruning. They are complete for 8 devices within the default budget of
``rings.best_rings``: there are 5040 directed rings at most.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import networkx as nx

Order = tuple[int, ...]
Matrix = Sequence[Sequence[int]]


class SpentError(Exception):
    """The budget is used up."""


class Budget:
    """Counts steps.

    Args:
        limit: steps allowed.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    def step(self) -> None:
        """Takes one step. SpentError if none is left."""
        if self.used >= self.limit:
            raise SpentError
        self.used += 1

    def part(self, share: float) -> Budget:
        """A budget of its own with a share of what is left; :meth:`join` gives back what it did not use."""
        return Budget(int((self.limit - self.used) * share))

    def join(self, part: Budget) -> None:
        """Books what a part has used."""
        self.used += part.used


def hops(order: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The hops of a ring; none for fewer than two devices."""
    if len(order) > 1:
        yield from zip(order, itertools.chain(order[1:], order[:1]), strict=True)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _reaches(out: Sequence[int], start: int, among: int) -> bool:
    """Whether all of `among` can be reached from `start` by ways through `among`."""
    found, edge = 0, out[start] & among
    while edge:
        found |= edge
        following = 0
        for v in _bits(edge):
            following |= out[v]
        edge = following & among & ~found
    return found == among


def cycles(out: Sequence[int], budget: Budget, wide: Matrix, floor: Order = ()) -> Iterator[Order]:
    """All directed rings through all devices, promising ones first.

    Goes on with the hop that has most width left, then to the device that has fewest ways out (it would be
    cut off first), then to the lowest number. A path is given up when a device not yet in it cannot be
    reached any more, or device 0 cannot be reached from it.

    Args:
        out: for each device the set of devices that it may send to, as bits. Two devices at least.
        budget: of steps; SpentError when it is used up.
        wide: what is left on each hop.
        floor: only rings that are not lexicographically before this one.
    """
    n = len(out)
    everyone = (1 << n) - 1
    into = [sum(1 << i for i in range(n) if out[i] >> j & 1) for j in range(n)]

    def choices(at: int, free: int) -> Iterator[int]:
        if free and not (into[0] & free and _reaches(out, at, free)):
            return iter(())
        for v in _bits(free):  # somebody must be able to go on from v, and to have come to it
            if not out[v] & (free | 1) or not into[v] & (free | 1 << at):
                return iter(())
        return iter(
            sorted(_bits(out[at] & free), key=lambda v: (-wide[at][v], (out[v] & free).bit_count(), v))
        )

    order = [0]
    free = everyone & ~1
    stack = [choices(0, free)]
    while stack:
        v = next(stack[-1], None)
        if v is None:
            stack.pop()
            free |= 1 << order.pop()
            continue
        order.append(v)
        if floor and tuple(order) < floor[: len(order)]:
            order.pop()
            continue
        budget.step()
        free &= ~(1 << v)
        if free:
            stack.append(choices(v, free))
            continue
        if out[v] & 1:
            yield tuple(order)
        order.pop()
        free |= 1 << v


def _cannot_close(n: int, allowed: set[tuple[int, int]]) -> bool:
    """Whether a symmetric graph has no ring for a plain reason: a device whose loss would part the others."""
    graph = nx.Graph(allowed)
    return graph.number_of_nodes() < n or not nx.is_biconnected(graph)


def widest(levels: Matrix, budget: Budget) -> tuple[Order, bool]:
    """The ring whose worst hop is best; among those the one with fewest such hops, then the second worst.

    First the highest level is sought from which on a ring exists, from the top down: a level is refuted by
    structure or by exhaustion. Then branch and bound over the sum of costs (n + 1) ** (top - level), whose
    order is the lexicographic one on (hops of level 0, hops of level 1, ...). It ends early at a bound that
    islands
    give: where the hops above a level leave c > 1 parts, at least c hops are of that level or worse.

    Args:
        levels: symmetric; higher is better.
        budget: of steps; used up to its end at most.

    Returns:
        The ring (turned so that its second device is lower than its last), and whether it is proven.
    """
    n = len(levels)
    if n < 4:
        return tuple(range(n)), True
    pairs = list(itertools.combinations(range(n), 2))
    present = sorted({levels[i][j] for i, j in pairs}, reverse=True)
    best, proven = tuple(range(n)), True
    for level in present:
        allowed = {(i, j) for i, j in pairs if levels[i][j] >= level}
        if _cannot_close(n, allowed):
            continue
        out = [sum(1 << j for j in range(n) if j != i and levels[i][j] >= level) for i in range(n)]
        part = budget.part(0.25)
        try:
            found = next(cycles(out, part, levels), None)
        except SpentError:
            found, proven = None, False
        budget.join(part)
        if found:
            best = found
            break
    cost = [[(n + 1) ** (present[0] - levels[i][j]) if i != j else 0 for j in range(n)] for i in range(n)]
    best, finished = _cheapest(cost, best, _least_cost(levels, present), budget)
    return min(best, best[:1] + best[:0:-1]), proven and finished


def _least_cost(levels: Matrix, present: Sequence[int]) -> int:
    """What no ring can cost less than, by the parts into which the levels above each one fall."""
    n = len(levels)
    total = worse = 0
    for level in reversed(present):
        above = nx.Graph()
        above.add_nodes_from(range(n))
        above.add_edges_from((i, j) for i in range(n) for j in range(i) if levels[i][j] > level)
        parts = nx.number_connected_components(above)
        at_least = n if level == present[0] else parts if parts > 1 else 0
        total += (at_least - worse) * (n + 1) ** (present[0] - level)
        worse = at_least
    return total


def _cheapest(cost: Matrix, best: Order, bound: int, budget: Budget) -> tuple[Order, bool]:
    """The ring of least cost, sought from a known one on; and whether the search came to its end.

    What is left of a path costs at least the cheapest hop into each device not yet in it, and into the first.
    """
    n = len(cost)
    least = [min(cost[i][j] for j in range(n) if j != i) for i in range(n)]
    best_cost = sum(cost[i][j] for i, j in hops(best))
    nearest = [[j for _, j in sorted((cost[i][j], j) for j in range(n) if j != i)] for i in range(n)]
    order, inside = [0], [True] + [False] * (n - 1)
    spent, rest = [0], sum(least)
    stack = [iter(nearest[0])]
    try:
        while stack and best_cost > bound:
            v = next((u for u in stack[-1] if not inside[u]), None)
            so_far = spent[-1] + (cost[order[-1]][v] if v is not None else 0)
            if v is None:
                stack.pop()
                left = order.pop()
                inside[left] = False
                spent.pop()
                rest += least[left]
                continue
            if so_far + rest - least[v] >= best_cost:
                continue
            budget.step()
            if len(order) == n - 1:
                if so_far + cost[v][0] < best_cost:
                    best, best_cost = (*order, v), so_far + cost[v][0]
                continue
            order.append(v)
            inside[v] = True
            spent.append(so_far)
            rest -= least[v]
            stack.append(iter(nearest[v]))
    except SpentError:
        return best, False
    return best, True
