"""Double binary trees: two trees over the same ranks in which no rank works twice.

Why two: in one binary tree half of the ranks are leaves, which send once and never add, while inner ranks
receive from two children. Two trees that carry half of the data each, every rank inner in at most one of
them, use all ranks' links evenly at the latency of a tree (Sanders, Speck and Träff 2009; the form with
mirror and shift is known from NCCL).

The first tree is the search tree over places 1 to n: a range's root is the place in it that is divisible by
the highest power of two. Odd places are then all leaves, and the depth is floor(log2 n). The second is the
same tree over the ranks in reverse (n even) or moved on by one (n odd): both turn even places into odd ones,
except that for odd n the shifted end falls on an odd place too, a leaf in both.

Contract: depth (hops from the farthest rank to the root) at most ceil(log2 n) + 1, two children at most;
trees that
follow groups: see :func:`double_tree`. O(n), pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from collectives.topology.graph import Topology
from collectives.topology.orders import groups as groups_of
from collectives.topology.pairs import Pairs


@dataclass(frozen=True)
class Tree:
    """A tree over the ranks 0 to n - 1.

    Attributes:
        parents: of each rank; None for the root.
    """

    parents: tuple[int | None, ...]

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Of each rank, ascending; empty for a leaf."""
        below: list[list[int]] = [[] for _ in self.parents]
        for rank, parent in enumerate(self.parents):
            if parent is not None:
                below[parent].append(rank)
        return tuple(map(tuple, below))

    @property
    def root(self) -> int:
        """The rank without a parent. ValueError for a tree of no ranks."""
        return self.parents.index(None)

    @cached_property
    def depth(self) -> int:
        """Hops from the farthest rank to the root."""
        depth, rank_row = -1, [r for r, parent in enumerate(self.parents) if parent is None]
        while rank_row:
            depth += 1
            rank_row = [child for rank in rank_row for child in self.children[rank]]
        return max(depth, 0)

    @property
    def inner(self) -> frozenset[int]:
        """The ranks that have children."""
        return frozenset(rank for rank, below in enumerate(self.children) if below)

    def crossings(self, groups: Sequence[Sequence[int]]) -> int:
        """Hops between ranks of different groups."""
        of = {rank: k for k, group in enumerate(groups) for rank in group}
        return sum(parent is not None and of[rank] != of[parent] for rank, parent in enumerate(self.parents))


def _search_tree(order: Sequence[int], parents: dict[int, int | None]) -> int:
    """Enters the search tree over `order` into `parents`; returns its root."""

    def enter(low: int, high: int, parent: int | None) -> int:
        # The place of the highest power of two in [low, high]: the common leading bits of low - 1 and high.
        shift = ((low - 1) ^ high).bit_length() - 1
        place = high >> shift << shift
        rank = order[place - 1]
        parents[rank] = parent
        if low < place:
            enter(low, place - 1, rank)
        if place < high:
            enter(place + 1, high, rank)
        return rank

    return enter(1, len(order), None)


def _two_orders(order: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """The order itself, and the one whose even places hold ranks that lie at odd places of it."""
    return order, order[::-1] if len(order) % 2 == 0 else (*order[1:], order[0])


def double_tree(order: Sequence[int], groups: Sequence[Sequence[int]] | None = None) -> tuple[Tree, Tree]:
    """Two binary trees over `order`, every rank inner in one of them at most.

    Args:
        order: the ranks 0 to n - 1, each once; neighbours in it are near in the trees.
        groups: parts of the ranks, each once in all (such as ``orders.groups``), to be followed: each group
            has double trees of its own, whose roots form double trees among them, so that a tree goes from
            one group to another only len(groups) - 1 times, which is the least possible. The order within a
            group is that of `order`. Depth is then that of a tree over the groups plus that of one over the
            largest group, each floor(log2), and a rank has up to four children.

    Raises:
        ValueError: the order is none, or the groups do not hold each of its ranks once.
    """
    if sorted(order) != list(range(len(order))):
        raise ValueError(f"an order holds each rank from 0 once, which {list(order)} does not")
    if groups is None:
        groups = [order] if order else []
    place = {rank: k for k, rank in enumerate(order)}
    if sorted(rank for group in groups for rank in group) != sorted(order):
        raise ValueError("the groups must hold each rank of the order once")
    rows = sorted(
        (sorted(group, key=place.__getitem__) for group in groups if group), key=lambda row: place[row[0]]
    )
    trees = []
    for which, row_order in enumerate(_two_orders(range(len(rows)))):
        parents: dict[int, int | None] = {}
        roots = [_search_tree(_two_orders(row)[which], parents) for row in rows]
        if rows:
            top: dict[int, int | None] = {}
            _search_tree(row_order, top)
            parents.update((roots[k], None if up is None else roots[up]) for k, up in top.items())
        trees.append(Tree(tuple(parents[rank] for rank in range(len(order)))))
    return trees[0], trees[1]


def trees_of(topology: Topology | Pairs) -> tuple[Tree, Tree]:
    """Double trees over the devices of a machine that follow its islands; ranks are device numbers."""
    pairs = topology if isinstance(topology, Pairs) else Pairs(topology)
    found = groups_of(pairs)
    return double_tree([rank for group in found for rank in group], found)
