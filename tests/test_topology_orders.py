"""Orders that follow the islands, on the shapes of known machines and on any."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from topology_shapes import CUBE_MESH, full_mesh, hops, machine, switched, two_sockets

from collectives.topology.graph import Link, LinkKind, Node, NodeKind, PathClass, Topology
from collectives.topology.orders import across_nodes, groups, opened, rank_order, toward
from collectives.topology.pairs import Pairs


def changes(order: tuple[int, ...], parts: tuple[tuple[int, ...], ...]) -> int:
    """How often a row goes from one part to another."""
    of = {v: k for k, part in enumerate(parts) for v in part}
    return sum(of[a] != of[b] for a, b in itertools.pairwise(order))


def test_hybrid_cube_mesh() -> None:
    """Two halves, each a full mesh; a row takes two links on every hop, the one between the halves too."""
    topology = machine(8, CUBE_MESH, gbps=20.0)
    halves = groups(topology)
    assert halves == ((0, 1, 2, 3), (4, 5, 6, 7))  # peers: 0 and 4, 1 and 5, 2 and 6, 3 and 7
    order = rank_order(topology)
    assert changes(order, halves) == 1
    pairs = Pairs(topology)
    assert all(pairs.links(i, j) == 2 for i, j in itertools.pairwise(order))


def test_renumbered_cube_mesh() -> None:
    number = [3, 7, 0, 4, 6, 1, 5, 2]  # what was 0 is now 3
    links = {tuple(sorted((number[i], number[j]))): count for (i, j), count in CUBE_MESH.items()}
    topology = machine(8, links)  # type: ignore[arg-type]
    first, second = groups(topology)
    assert set(first) == {number[i] for i in range(4)}
    peers = {frozenset((number[i], number[i + 4])) for i in range(4)}
    assert {frozenset(pair) for pair in zip(first, second, strict=True)} == peers


def test_pairs_over_pcie() -> None:
    links = {(0, 5): 4, (1, 4): 4, (2, 7): 4, (3, 6): 4}
    topology = machine(8, links, apart=lambda i, j: two_sockets(i % 4 * 2 + i // 4, j % 4 * 2 + j // 4))
    bridged = groups(topology)
    assert {frozenset(pair) for pair in bridged} == {frozenset(pair) for pair in links}
    assert changes(rank_order(topology), bridged) == 3


def test_two_islands_of_four() -> None:
    links = {(i, j): 1 for i, j in itertools.combinations(range(8), 2) if i % 2 == j % 2}
    topology = machine(8, links, apart=lambda i, j: PathClass.SYS)
    assert groups(topology) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert changes(rank_order(topology), groups(topology)) == 1


def test_sockets_without_links() -> None:
    shuffled = [0, 4, 1, 5, 2, 6, 3, 7]
    topology = machine(8, {}, apart=lambda i, j: two_sockets(shuffled[i], shuffled[j]))
    assert groups(topology) == ((0, 2, 4, 6), (1, 3, 5, 7))
    order = rank_order(topology)
    pairs = Pairs(topology)
    kinds = Counter(pairs.paths[i][j].kind for i, j in itertools.pairwise(order))
    assert kinds == {PathClass.SYS: 1, PathClass.NODE: 2, PathClass.PIX: 4}


def test_dual_dies() -> None:
    """Dies of one card have four links, cards are joined by one or two: each card is a group."""
    cards = {(0, 1): 4, (2, 3): 4, (4, 5): 4, (6, 7): 4}
    topology = machine(8, {**cards, (1, 2): 1, (3, 4): 2, (5, 6): 1, (0, 7): 2}, kind=LinkKind.XGMI)
    assert {frozenset(pair) for pair in groups(topology)} == {frozenset(pair) for pair in cards}
    pairs = Pairs(topology)
    order = rank_order(topology)
    assert changes(order, groups(topology)) == 3
    assert all(pairs.links(i, j) for i, j in itertools.pairwise(order))


@pytest.mark.parametrize("topology", [full_mesh(8), switched(8, 18, 20.6), machine(8, {}), machine(1, {})])
def test_nothing_to_follow(topology: Topology) -> None:
    everyone = tuple(range(len(topology.gpus)))
    assert rank_order(topology) == everyone and groups(topology) == (everyone,)


def test_no_devices() -> None:
    assert rank_order(machine(0, {})) == () and groups(machine(0, {})) == ()


def test_a_chain_is_followed() -> None:
    """An island that is no ring and no full mesh stays one row along its links."""
    chain = [0, 3, 1, 4, 2]
    topology = machine(5, {(min(p), max(p)): 1 for p in itertools.pairwise(chain)})
    assert groups(topology) == ((0, 1, 2, 3, 4),)
    order = rank_order(topology)
    assert order in (tuple(chain), tuple(chain[::-1]))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9), st.data())
def test_every_class_lies_in_one_piece(count: int, data: st.DataObject) -> None:
    """Classes of a tree, as machines are: sockets hold switches, these hold islands."""
    place = [
        data.draw(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 1))) for _ in range(count)
    ]

    def apart(i: int, j: int) -> PathClass:
        if place[i][0] != place[j][0]:
            return PathClass.SYS
        return PathClass.NODE if place[i][1] != place[j][1] else PathClass.PIX

    pairs = itertools.combinations(range(count), 2)
    topology = machine(count, {(i, j): 2 for i, j in pairs if place[i] == place[j]}, apart=apart)
    order = rank_order(topology)
    assert sorted(order) == list(range(count))
    assert sorted(v for group in groups(topology) for v in group) == list(range(count))
    for depth in (1, 2, 3):
        parts = {place[v][:depth] for v in order}
        assert (
            sum(place[a][:depth] != place[b][:depth] for a, b in itertools.pairwise(order)) == len(parts) - 1
        )


def test_opened_at_the_worst_hop() -> None:
    topology = machine(4, {(0, 1): 2, (1, 2): 1, (2, 3): 2, (0, 3): 2})
    assert opened(topology, (0, 1, 2, 3)) == (2, 3, 0, 1)
    assert opened(full_mesh(4), (0, 2, 1, 3)) == (0, 2, 1, 3)
    assert opened(full_mesh(2), (0, 1)) == (0, 1)


def test_across_nodes() -> None:
    assert across_nodes([(0, 2, 1), (1, 0)]) == (0, 2, 1, 4, 3)
    assert across_nodes([(0, 2, 1), (1, 0)], turn=1) == (2, 1, 0, 3, 4)
    assert across_nodes([]) == () and across_nodes([(), (0,)]) == (0,)
    for turn in range(8):
        order = across_nodes([tuple(range(8))] * 4, turn)
        assert sorted(order) == list(range(32))
        assert sum(a // 8 != b // 8 for a, b in hops(order)) == 4
        assert [a % 8 for a, b in hops(order) if a // 8 != b // 8] == [(turn - 1) % 8] * 4


def test_toward_a_network_card() -> None:
    nodes = [Node(f"gpu{i}", NodeKind.GPU, numa=i // 2) for i in range(4)]
    nodes += [Node("numa0", NodeKind.NUMA, numa=0), Node("nic0", NodeKind.NIC, numa=0)]
    edges = [Link(a, "numa0", LinkKind.PCIE) for a in ("gpu1", "nic0")]
    topology = Topology(nodes, [*edges, *(Link(e.target, e.source, e.kind) for e in edges)])
    assert toward(topology, (0, 1, 2, 3), "nic0") == (2, 3, 0, 1)
