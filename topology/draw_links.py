"""Which fast links a picture shows: hubs of switches, and bundles between devices."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import networkx as nx

from collectives.topology.graph import FAST, Link, LinkKind, NodeKind, PathClass, Topology
from collectives.topology.pairs import Pairs

MANY = 16
"""More devices than this are drawn as cards, where they are partitions of such."""


@dataclass(frozen=True)
class Bundle:
    """Links between two devices, or between a device and its hub.

    Attributes:
        a, b: names of what is drawn; of a hub its number as text.
        kind: NVLink or xGMI.
        count: links; None if unknown.
        generation: None if unknown.
        gbps: per direction; None if unknown.
        one_way: only one end tells it.
    """

    a: str
    b: str
    kind: LinkKind
    count: int | None
    generation: int | None = None
    gbps: float | None = None
    one_way: bool = False


@dataclass(frozen=True)
class Hub:
    """Switches that join the same devices.

    Attributes:
        members: names of what is drawn.
        links: of each member to the switches together.
        switches: how many; None where the source tells none, and only the sums of links mean that there are.
    """

    members: tuple[str, ...]
    links: tuple[Bundle, ...]
    switches: int | None


@dataclass(frozen=True)
class Fabric:
    """What fast links are drawn.

    Attributes:
        stands_for: of each device the name of what is drawn for it: itself, or its card.
        hubs: with their links.
        direct: between devices.
    """

    stands_for: dict[str, str]
    hubs: tuple[Hub, ...]
    direct: tuple[Bundle, ...]


def fabric(topology: Topology) -> Fabric:
    """The fast links of a machine as they are drawn."""
    stands_for = {gpu.name: gpu.name for gpu in topology.gpus}
    if len(topology.gpus) > MANY:
        stands_for = {gpu.name: f"card {gpu.parent}" if gpu.parent else gpu.name for gpu in topology.gpus}
    hubs = _switched(topology) or _inferred(topology)
    inside = [set(hub.members) for hub in hubs]
    direct: dict[tuple[str, str], list[Link]] = {}
    for link in topology.links:
        ends = [stands_for.get(link.source), stands_for.get(link.target)]
        if link.kind not in FAST or link.count == 0 or None in ends or ends[0] == ends[1]:
            continue
        if not any({link.source, link.target} <= members for members in inside):
            direct.setdefault((ends[0] or "", ends[1] or ""), []).append(link)
    bundles = []
    for a, b in direct:
        if (b, a) not in direct or a < b:
            both = direct[a, b], direct.get((b, a), [])
            bundles.append(
                _bundle(
                    a,
                    b,
                    both[0],
                    one_way=not both[1],
                    cards=stands_for[both[0][0].source] != both[0][0].source,
                )
            )
    return Fabric(stands_for, tuple(hubs), tuple(bundles))


def _bundle(a: str, b: str, links: list[Link], one_way: bool = False, cards: bool = False) -> Bundle:
    """Links side by side; between cards only that there are some: partitions share them."""
    first = links[0]
    if cards:
        return Bundle(a, b, first.kind, None, first.generation, None, one_way)
    counts, speeds = [link.count for link in links], [link.gbps for link in links]
    return Bundle(
        a,
        b,
        first.kind,
        None if None in counts else sum(count or 0 for count in counts),
        first.generation,
        None if None in speeds else sum(speed or 0.0 for speed in speeds),
        one_way,
    )


def _switched(topology: Topology) -> list[Hub]:
    joined = nx.Graph()
    for link in topology.links:
        kinds = topology.node(link.source).kind, topology.node(link.target).kind
        if link.kind in FAST and set(kinds) == {NodeKind.GPU, NodeKind.NVSWITCH}:
            joined.add_edge(link.source, link.target)
    hubs: list[Hub] = []
    for part in nx.connected_components(joined):
        members = tuple(gpu.name for gpu in topology.gpus if gpu.name in part)
        bundles = []
        for name in members:
            up = [
                link
                for link in topology.links_from(name)
                if link.kind in FAST and topology.node(link.target).kind == NodeKind.NVSWITCH
            ]
            if up:
                bundles.append(_bundle(name, str(len(hubs)), up))
        hubs.append(Hub(members, tuple(bundles), len(part) - len(members)))
    return hubs


def _inferred(topology: Topology) -> list[Hub]:
    """Islands in which every pair has all links of its devices: only a switch joins devices so."""
    nvlink = {link.source for link in topology.links if link.kind == LinkKind.NVLINK}
    if not nvlink or len(topology.gpus) > MANY:
        return []
    pairs = Pairs(topology)
    joined = nx.Graph()
    joined.add_edges_from(
        (i, j)
        for i, j in itertools.combinations(range(pairs.count), 2)
        if pairs.paths[i][j].kind == PathClass.LINK
    )
    hubs: list[Hub] = []
    for part in sorted(sorted(part) for part in nx.connected_components(joined)):
        ports = [pairs.ports[i] for i in part]
        if len(part) < 3 or not pairs.joined(part) or None in ports:
            continue
        names = [topology.gpus[i].name for i in part]
        bundles = [
            Bundle(name, str(len(hubs)), LinkKind.NVLINK, port[0], None, port[1])
            for name, port in zip(names, ports, strict=True)
            if port is not None
        ]
        hubs.append(Hub(tuple(names), tuple(bundles), None))
    return hubs
