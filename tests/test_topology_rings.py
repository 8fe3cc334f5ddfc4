"""Rings: against brute force, on the shapes of known machines, and within the budget."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from topology_shapes import CUBE_MESH, all_rings, full_mesh, hops, machine, switched, two_sockets

from collectives.topology.graph import Link, LinkKind, Node, NodeKind, PathClass, Topology
from collectives.topology.orders import groups, rank_order
from collectives.topology.pairs import Pairs
from collectives.topology.ring_packing import full_mesh_rings
from collectives.topology.ring_search import Budget, cycles, widest
from collectives.topology.rings import BUDGET, RingSet, best_bottleneck_links, best_rings
from collectives.topology.sources.files import load
from collectives.topology.trees import trees_of

RECORDED = Path(__file__).parents[1].parent / "shared" / "topologies"
FACTS = json.loads((RECORDED / "facts.json").read_text()) if (RECORDED / "facts.json").is_file() else {}

quick = settings(max_examples=100, deadline=None)


@st.composite
def link_counts(draw: st.DrawFn, least: int = 2, most: int = 8, links: int = 2) -> tuple[int, dict]:
    count = draw(st.integers(least, most))
    pairs = list(itertools.combinations(range(count), 2))
    numbers = draw(st.lists(st.integers(0, links), min_size=len(pairs), max_size=len(pairs)))
    return count, {pair: number for pair, number in zip(pairs, numbers, strict=True) if number}


def symmetric(count: int, values: dict[tuple[int, int], int]) -> list[list[int]]:
    return [[values.get((min(i, j), max(i, j)), 0) for j in range(count)] for i in range(count)]


def check_disjoint(topology: Topology, found: RingSet) -> None:
    """Every ring passes all devices once, and no more rings use a direct pair than it has links."""
    count = len(topology.gpus)
    used: Counter[tuple[int, int]] = Counter()
    for ring in found.rings:
        assert sorted(ring.order) == list(range(count)) and ring.order[0] == 0
        used.update(hops(ring.order))
    pairs = Pairs(topology)
    if found.best.kind == PathClass.LINK:
        assert all(number <= pairs.links(i, j) for (i, j), number in used.items())
    else:
        assert len(found.rings) == min(count, 1)


@quick
@given(link_counts(least=4))
def test_no_ring_is_wider(machine_links: tuple[int, dict]) -> None:
    count, links = machine_links
    topology = machine(count, links, gbps=20.0)
    found = best_rings(topology, budget=20_000)
    table = symmetric(count, links)
    profiles = [sorted(table[i][j] for i, j in hops(order)) for order in all_rings(count)]
    assert sorted(table[i][j] for i, j in hops(found.best.order)) == max(profiles)
    assert found.best_exact
    assert best_bottleneck_links(topology) == max(profiles)[0]
    check_disjoint(topology, found)
    if max(profiles)[0]:
        assert found.best.links == max(profiles)[0] and found.best.gbps == 20.0 * found.best.links
        assert found.gbps is not None and found.gbps >= found.best.gbps


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 27), min_size=28, max_size=28))
def test_eight_devices_of_many_levels_are_exact_within_the_budget(levels: list[int]) -> None:
    values = dict(zip(itertools.combinations(range(8), 2), levels, strict=True))
    table = symmetric(8, values)
    budget = Budget(int(BUDGET * 0.4))
    order, proven = widest(table, budget)
    assert proven and budget.used <= budget.limit
    best = max(sorted(table[i][j] for i, j in hops(ring)) for ring in all_rings(8))
    assert sorted(table[i][j] for i, j in hops(order)) == best


def most_disjoint(count: int, table: list[list[int]], first: int = 0) -> int:
    """Edge-disjoint rings by trying all sets."""
    rings = all_rings(count)
    best = 0
    for k in range(first, len(rings)):
        if all(table[i][j] for i, j in hops(rings[k])):
            for i, j in hops(rings[k]):
                table[i][j] -= 1
            best = max(best, 1 + most_disjoint(count, table, k))
            for i, j in hops(rings[k]):
                table[i][j] += 1
    return best


@quick
@given(st.one_of(link_counts(3, 4, links=2), link_counts(5, 5, links=1)))
def test_no_set_is_larger(machine_links: tuple[int, dict]) -> None:
    count, links = machine_links
    topology = machine(count, links)
    found = best_rings(topology)
    largest = most_disjoint(count, symmetric(count, links))
    assert found.exact
    if largest:
        assert len(found.rings) == largest
        assert found.share is None  # nothing tells how fast a link is
    check_disjoint(topology, found)


@quick
@given(link_counts(2, 6), st.data())
def test_links_of_different_speed(machine_links: tuple[int, dict], data: st.DataObject) -> None:
    count, links = machine_links
    speeds = {pair: data.draw(st.sampled_from([12.5, 20.0, 40.0])) * number for pair, number in links.items()}
    topology = machine(count, links, gbps=speeds.__getitem__)
    found = best_rings(topology, budget=20_000)
    check_disjoint(topology, found)
    if found.best.kind == PathClass.LINK:
        table = [[speeds.get((min(i, j), max(i, j)), 0.0) for j in range(count)] for i in range(count)]
        alone = max(min(table[i][j] for i, j in hops(ring)) for ring in all_rings(count))
        if len(links) == count * (count - 1) // 2:  # every speed is known: they decide, else links do
            assert found.best.gbps == alone
        assert found.gbps is not None and found.best.gbps is not None
        assert found.gbps >= found.best.gbps * (1 - 1e-9)
        used = Counter(hop for ring in found.rings for hop in hops(ring.order))
        assert found.share is not None
        assert all(found.share * n <= table[i][j] * (1 + 1e-9) for (i, j), n in used.items())


def test_hybrid_cube_mesh() -> None:
    """One ring of two links on every hop, one of single links: six directed rings use all links."""
    found = best_rings(machine(8, CUBE_MESH, gbps=20.0, arch="sm_70"))
    table = symmetric(8, CUBE_MESH)
    assert max(min(table[i][j] for i, j in hops(ring)) for ring in all_rings(8)) == 2
    assert found.best.links == 2 and found.best.gbps == 40.0
    assert {sum(row) for row in table} == {6}  # each ring leaves each device once: there cannot be seven
    assert len(found.rings) == 6 and found.gbps == 120.0 and found.exact
    used = Counter(hop for ring in found.rings for hop in hops(ring.order))
    assert all(used[i, j] == table[i][j] for i in range(8) for j in range(8))
    assert best_bottleneck_links(machine(8, CUBE_MESH)) == 2


@pytest.mark.parametrize(
    ("count", "rings"), [(2, 1), (3, 2), (4, 2), (5, 4), (6, 4), (7, 6), (8, 7), (9, 8), (12, 11), (16, 15)]
)
def test_full_meshes(count: int, rings: int) -> None:
    """One link for each pair decomposes into rings unless there are four or six devices (Tillson 1980)."""
    found = best_rings(full_mesh(count, gbps=48.0))
    assert (len(found.rings), found.exact, found.share) == (rings, True, 48.0)
    assert found.steps <= BUDGET
    check_disjoint(full_mesh(count), found)


def test_eight_mi300x() -> None:
    found = best_rings(full_mesh(8, kind=LinkKind.XGMI, gbps=48.0, arch="gfx942"))
    assert len({ring.order for ring in found.rings}) == 7 and found.gbps == 336.0
    assert found.best.links == 1 and found.exact


@pytest.mark.parametrize(("count", "distinct"), [(2, 1), (3, 2), (4, 6), (8, 18), (16, 18)])
def test_behind_a_switch_every_ring_has_another_order(count: int, distinct: int) -> None:
    found = best_rings(switched(count, 18, 20.6))
    assert len(found.rings) == 18 and found.gbps == pytest.approx(370.8) and found.exact
    assert len({ring.order for ring in found.rings}) == distinct
    assert found.best.links == 18 and found.best.gbps == pytest.approx(370.8)


@pytest.mark.parametrize(
    ("count", "links", "arch"), [(16, 6, None), (4, 6, "sm_70"), (8, 12, None), (4, 18, None)]
)
def test_a_switch_that_the_source_does_not_name(count: int, links: int, arch: str | None) -> None:
    """More links than a device has, counted over its pairs, are the same links each time."""
    found = best_rings(full_mesh(count, links, gbps=20.0, arch=arch))
    assert len(found.rings) == links and found.gbps == 20.0 * links


def test_four_a100_that_are_joined_directly() -> None:
    found = best_rings(full_mesh(4, 4, gbps=20.0, arch="sm_80"))
    assert (found.best.links, len(found.rings), found.exact) == (4, 12, True)


def test_partitions_share_the_links_of_their_card() -> None:
    found = best_rings(full_mesh(64, 1, kind=LinkKind.XGMI))
    assert len(found.rings) == 1 and found.best.links == 1


def test_pairs_over_pcie_leave_an_island_once_each() -> None:
    pairs = {(0, 5): 4, (1, 4): 4, (2, 7): 4, (3, 6): 4}
    topology = machine(8, pairs, gbps=14.0, apart=two_sockets)
    found = best_rings(topology)
    kinds = Counter(Pairs(topology).paths[i][j].kind for i, j in hops(found.best.order))
    assert kinds[PathClass.LINK] == 4 and found.best.kind <= PathClass.NODE
    assert (len(found.rings), found.best.links, found.gbps, found.best_exact) == (1, 0, None, True)
    assert best_bottleneck_links(topology) == 0


def test_pcie_only_crosses_the_sockets_twice() -> None:
    shuffled = [0, 4, 1, 5, 2, 6, 3, 7]
    topology = machine(8, {}, apart=lambda i, j: two_sockets(shuffled[i], shuffled[j]))
    found = best_rings(topology)
    kinds = Counter(Pairs(topology).paths[i][j].kind for i, j in hops(found.best.order))
    assert kinds == {PathClass.SYS: 2, PathClass.NODE: 2, PathClass.PIX: 4}
    assert found.exact and len(found.rings) == 1


def test_few_devices_and_no_links() -> None:
    none, one, two = (best_rings(machine(count, {})) for count in (0, 1, 2))
    assert (none.best.order, one.best.order, two.best.order) == ((), (0,), (0, 1))
    assert none.rings == () and one.rings == (one.best,)
    assert (one.best.kind, one.gbps, one.exact) == (PathClass.SELF, None, True)
    assert (two.best.kind, two.best.links, two.gbps) == (PathClass.UNKNOWN, None, None)
    assert [best_bottleneck_links(machine(count, {})) for count in (0, 1, 2, 8)] == [0, 0, 0, 0]
    bridged = best_rings(machine(2, {(0, 1): 4}, gbps=14.0))
    assert (len(bridged.rings), bridged.gbps, bridged.best.links) == (4, 56.0, 4)


def test_unknown_links_are_planned_as_one() -> None:
    square = {(0, 1): 2, (1, 2): 2, (2, 3): 2, (0, 3): None, (0, 2): 1, (1, 3): 1}
    topology = machine(4, square)
    assert best_bottleneck_links(topology) == 1
    found = best_rings(topology)
    assert found.best_exact and found.share is None
    check_disjoint(topology, found)
    worst = min(Pairs(topology).levels[i][j] for i, j in hops(found.best.order))
    assert worst == Pairs(topology).levels[0][2] == Pairs(topology).levels[0][3]


def test_a_link_that_one_end_does_not_know_is_none() -> None:
    nodes = [Node(f"gpu{i}", NodeKind.GPU) for i in range(2)]
    assert best_bottleneck_links(Topology(nodes, [Link("gpu0", "gpu1", LinkKind.NVLINK, 4)])) == 0


@settings(max_examples=15, deadline=None)
@given(link_counts(9, 16))
def test_sixteen_devices_stay_within_the_budget(machine_links: tuple[int, dict]) -> None:
    count, links = machine_links
    topology = machine(count, links, gbps=20.0)
    begin = time.process_time()
    found = best_rings(topology, budget=20_000)
    assert found.steps <= 20_000 and time.process_time() - begin < 30
    check_disjoint(topology, found)
    if found.gbps is not None:
        assert found.best.gbps is not None and found.gbps >= found.best.gbps * (1 - 1e-9)
    assert best_rings(topology, budget=20_000) == found


def test_a_torus_of_sixteen() -> None:
    """Four times four: every device has four neighbours, and four directed rings take all links."""
    links = {}
    for row, column in itertools.product(range(4), repeat=2):
        for other in (4 * row + (column + 1) % 4, 4 * ((row + 1) % 4) + column):
            links[min(4 * row + column, other), max(4 * row + column, other)] = 1
    found = best_rings(machine(16, links, gbps=36.0))
    assert found.best.links == 1 and found.best_exact and found.steps <= BUDGET
    assert len(found.rings) == 4 and found.gbps == 144.0


def test_no_steps_still_give_a_ring() -> None:
    topology = machine(8, CUBE_MESH, gbps=20.0)
    found = best_rings(topology, budget=0)
    assert sorted(found.best.order) == list(range(8)) and not found.exact and found.steps == 0


@pytest.mark.parametrize("count", range(2, 34))
def test_rings_of_full_meshes(count: int) -> None:
    rings = full_mesh_rings(count)
    assert len(rings) == (1 if count == 2 else count - 1 if count % 2 else count - 2)
    assert all(sorted(ring) == list(range(count)) for ring in rings)
    used = Counter(hop for ring in rings for hop in hops(ring))
    assert max(used.values()) == 1


@quick
@given(link_counts(2, 6, links=1))
def test_cycles_are_all_rings(machine_links: tuple[int, dict]) -> None:
    count, links = machine_links
    table = symmetric(count, links)
    out = [sum(1 << j for j in range(count) if table[i][j]) for i in range(count)]
    expected = {ring for ring in all_rings(count) if all(table[i][j] for i, j in hops(ring))}
    found = list(cycles(out, Budget(10_000), table))
    assert len(found) == len(set(found)) and set(found) == expected
    for floor in itertools.islice(sorted(expected), 3):
        assert set(cycles(out, Budget(10_000), table, floor)) == {ring for ring in expected if ring >= floor}


@pytest.mark.skipif(not FACTS, reason="the recorded machines are not here")
@pytest.mark.parametrize("name", [name for name, facts in FACTS.items() if "error" not in facts])
def test_recorded_machines(name: str) -> None:
    topology = load(RECORDED / name)
    pairs = Pairs(topology)
    expected = FACTS[name].get("ring_bottleneck_links")
    if expected is not None:
        assert best_bottleneck_links(pairs) == expected
    found = best_rings(pairs)
    check_disjoint(topology, found)
    assert found.steps <= BUDGET and (found.best_exact or pairs.count > 8)
    assert found.best.kind != PathClass.LINK or found.best.links == best_bottleneck_links(pairs)
    devices = list(range(pairs.count))
    assert sorted(rank_order(pairs)) == sorted(v for group in groups(pairs) for v in group) == devices
    first, second = trees_of(pairs)
    assert not first.inner & second.inner


@pytest.mark.skipif(not FACTS, reason="the recorded machines are not here")
@pytest.mark.parametrize(
    ("name", "rings", "gbps"),
    [
        ("nvidia/topo_v100_sxm2_8gpu_cube_numa.txt", 6, None),
        ("nvidia/topo_dgx2_16xv100.txt", 6, None),
        ("nvidia/topo_h200_4numa.txt", 18, None),
        ("nvidia/topo_a100_custom_4gpu_nv4.txt", 12, None),
        ("amd/rccl_topo_8p_940.xml", 7, 336.0),
        ("amd/rccl_topo_8p6l.xml", 6, 144.0),
        ("amd/rccl_topo_8p_pcie.xml", 1, 12.0),
    ],
)
def test_rings_of_recorded_machines(name: str, rings: int, gbps: float | None) -> None:
    found = best_rings(load(RECORDED / name))
    assert (len(found.rings), found.gbps, found.exact) == (rings, gbps, True)
