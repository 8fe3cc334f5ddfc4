"""Fingerprints: the same under any numbering, different for any wiring."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import topology_machines as machines
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.topology.fingerprint import fingerprint
from collectives.topology.graph import Host, Link, LinkKind, Node, NodeKind, Numa, PathClass, Topology
from collectives.topology.sources import kfd


def wired(graph: nx.Graph, count: int = 1) -> Topology:
    """Devices joined as a graph's nodes are."""
    nodes = [Node(f"gpu{i}", NodeKind.GPU, arch="sm_70") for i in range(len(graph))]
    links = [
        Link(f"gpu{a}", f"gpu{b}", LinkKind.NVLINK, count)
        for i, j in graph.edges
        for a, b in ((i, j), (j, i))
    ]
    return Topology(nodes, links)


def renumbered(topology: Topology, order: list[int], numa: dict[int, int]) -> Topology:
    """The same machine with all it has called otherwise, and its lists in other orders."""
    names = {gpu.name: f"gpu{order[i]}" for i, gpu in enumerate(topology.gpus)}
    names |= {f"numa{old}": f"numa{new}" for old, new in numa.items()}
    nodes = [
        replace(
            node,
            name=names.get(node.name, node.name),
            numa=None if node.numa is None else numa[node.numa],
            bus=node.bus and f"{len(node.bus):04x}:{order[-1]:02x}:{i:02x}.0",
            group=node.group and f"other {node.group}",
            parent=node.parent and f"other {node.parent}",
        )
        for i, node in enumerate(topology.nodes)
    ]
    links = [replace(link, source=names[link.source], target=names[link.target]) for link in topology.links]
    classes = {(names[a], names[b]): kind for (a, b), kind in topology.classes.items()}
    return Topology(sorted(nodes, key=lambda node: node.name), links[::-1], classes, "elsewhere")


MACHINES = {
    name: kfd.read_text(machines.joined(files))
    for name, files in {
        "mi300x": machines.mi300x_8(),
        "mi210": machines.mi210_4(),
        "mi250x": machines.mi250x_4(),
        "partitioned": machines.partitioned(),
        "less": machines.partitioned(missing=1),
        "pcie": machines.pcie_4(),
        "one": machines.kfd([0], {}),
        "none": machines.kfd([], {}),
    }.items()
}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(MACHINES)), st.randoms(use_true_random=False))
def test_stable_under_renumbering(name: str, random: object) -> None:
    topology = MACHINES[name]
    order = list(range(len(topology.gpus))) or [0]
    random.shuffle(order)  # type: ignore[attr-defined]
    for numa in ({0: 0, 1: 1}, {0: 5, 1: 2}):
        assert fingerprint(renumbered(topology, order, numa)) == fingerprint(topology)


def test_machines_differ() -> None:
    assert len({fingerprint(topology) for topology in MACHINES.values()}) == len(MACHINES)


def test_wirings_that_colours_alone_cannot_tell_apart() -> None:
    ring, rings = nx.cycle_graph(8), nx.disjoint_union(nx.cycle_graph(4), nx.cycle_graph(4))
    cube, other = nx.hypercube_graph(3), nx.circular_ladder_graph(4)
    cube = nx.convert_node_labels_to_integers(cube)
    moebius = nx.circulant_graph(8, [1, 4])
    values = [fingerprint(wired(graph)) for graph in (ring, rings, cube, moebius)]
    assert len(set(values)) == 4
    assert fingerprint(wired(other)) == values[2]  # the cube, drawn otherwise


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**15 - 1), st.integers(0, 2**15 - 1))
def test_as_isomorphism_says(first: int, second: int) -> None:
    pairs = [(a, b) for a in range(6) for b in range(a)]
    graphs = []
    for bits in (first, second):
        graph = nx.empty_graph(6)
        graph.add_edges_from(pair for i, pair in enumerate(pairs) if bits >> i & 1)
        graphs.append(graph)
    same = fingerprint(wired(graphs[0])) == fingerprint(wired(graphs[1]))
    assert same == nx.is_isomorphic(*graphs)


def test_what_counts_and_what_does_not() -> None:
    base = wired(nx.cycle_graph(4))
    plain = fingerprint(base)
    assert fingerprint(wired(nx.cycle_graph(4), count=2)) != plain
    faster = Topology(
        base.nodes, [replace(link, gbps=20.0) for link in base.links], source="x", remarks=["odd"]
    )
    assert fingerprint(faster) == plain
    one_way = Topology(base.nodes, base.links[1:])
    assert fingerprint(one_way) != plain
    assert fingerprint(Topology(base.nodes, base.links[:-1])) == fingerprint(one_way)
    assert fingerprint(Topology([replace(node, arch="sm_80") for node in base.nodes], base.links)) != plain
    assert fingerprint(Topology(base.nodes, base.links, {("gpu0", "gpu2"): PathClass.SYS})) != plain
    placed = [replace(node, numa=i // 2) for i, node in enumerate(base.nodes)]
    crossed = [replace(node, numa=i % 2) for i, node in enumerate(base.nodes)]
    assert (
        len({plain, fingerprint(Topology(placed, base.links)), fingerprint(Topology(crossed, base.links))})
        == 3
    )


def test_hosts() -> None:
    def host(model: str, nodes: int, cores: int, usable: int) -> str:
        numa = tuple(Numa(i, 0, tuple(range(usable)), tuple(range(cores))) for i in range(nodes))
        return fingerprint(
            Topology([Node(f"numa{i}", NodeKind.NUMA, numa=i) for i in range(nodes)], host=Host(model, numa))
        )

    assert host("a", 1, 8, 8) == host("a", 1, 8, 2)
    assert len({host("a", 1, 8, 8), host("b", 1, 8, 8), host("a", 2, 8, 8), host("a", 1, 4, 4)}) == 4
