"""Double binary trees for every number of ranks, over any order, and along groups."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from topology_shapes import CUBE_MESH, full_mesh, machine, two_sockets

from collectives.topology.orders import groups
from collectives.topology.trees import Tree, double_tree, trees_of


def check(trees: tuple[Tree, Tree], count: int) -> None:
    """Both are trees over all ranks, and no rank is inner in both."""
    for tree in trees:
        assert len(tree.parents) == count and tree.parents.count(None) == 1
        for rank in range(count):
            seen = [rank]
            while (parent := tree.parents[seen[-1]]) is not None:
                assert parent not in seen
                seen.append(parent)
            assert seen[-1] == tree.root and len(seen) - 1 <= tree.depth
        assert sorted(child for below in tree.children for child in below) == sorted(
            rank for rank in range(count) if rank != tree.root
        )
    assert not trees[0].inner & trees[1].inner


@pytest.mark.parametrize("count", range(1, 65))
def test_every_number_of_ranks(count: int) -> None:
    for order in (list(range(count)), random.Random(count).sample(range(count), count)):
        trees = double_tree(order)
        check(trees, count)
        for tree in trees:
            assert tree.depth <= math.ceil(math.log2(count)) + 1
            assert max(map(len, tree.children)) <= 2
        # All ranks work in one of the trees, but for one of an odd number.
        assert len(trees[0].inner | trees[1].inner) == (count if count % 2 == 0 else count - 1)


@pytest.mark.parametrize("count", range(2, 65))
def test_inner_ranks_are_shared_out(count: int) -> None:
    first, second = double_tree(range(count))
    assert len(first.inner) == len(second.inner) == count // 2
    assert first.root != second.root


def test_four_ranks_by_hand() -> None:
    """Places 1 to 4: 4 is the root, 2 its child, 1 and 3 are leaves; the second tree is the mirror."""
    first, second = double_tree([3, 1, 0, 2])
    assert first.parents == (1, 2, None, 1) and first.root == 2 and first.depth == 2
    assert second.parents == (3, 0, 0, None) and second.children == ((1, 2), (), (), (0,))


def test_five_ranks_by_hand() -> None:
    first, second = double_tree(range(5))
    assert first.parents == (1, 3, 1, None, 3)
    assert second.parents == (4, 2, 4, 2, None)  # over 1, 2, 3, 4, 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_groups_are_left_as_seldom_as_possible(sizes: list[int], chance: random.Random) -> None:
    count = sum(sizes)
    ranks = chance.sample(range(count), count)
    parts = [[ranks.pop() for _ in range(size)] for size in sizes]
    order = chance.sample(range(count), count)
    trees = double_tree(order, parts)
    check(trees, count)
    for tree in trees:
        assert tree.crossings(parts) == len(parts) - 1
        assert tree.depth <= int(math.log2(len(parts))) + int(math.log2(max(sizes)))
        assert max(map(len, tree.children)) <= 4


def test_trees_follow_the_islands() -> None:
    pairs = {(0, 5): 4, (1, 4): 4, (2, 7): 4, (3, 6): 4}
    for topology, crossings in [
        (machine(8, CUBE_MESH), 1),
        (machine(8, pairs, apart=two_sockets), 3),
        (machine(8, {}, apart=two_sockets), 1),
        (full_mesh(8), 0),
        (machine(1, {}), 0),
    ]:
        trees = trees_of(topology)
        check(trees, len(topology.gpus))
        assert [tree.crossings(groups(topology)) for tree in trees] == [crossings] * 2


def test_no_ranks() -> None:
    first, second = trees_of(machine(0, {}))
    assert first.parents == second.parents == () and first.depth == 0


@pytest.mark.parametrize("order", [[1], [0, 0], [0, 2], [-1, 0]])
def test_no_order(order: list[int]) -> None:
    with pytest.raises(ValueError, match="each rank from 0 once"):
        double_tree(order)


@pytest.mark.parametrize("parts", [[[0]], [[0, 1], [1]], [[0, 1, 2]], []])
def test_groups_of_other_ranks(parts: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="groups"):
        double_tree([0, 1], parts)
