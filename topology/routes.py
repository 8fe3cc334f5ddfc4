"""What data that ranks send each other load: every link on the way, each of which has one speed for all.

Contract: flows, each of some bytes from one rank to another, all at once; the time is that of the busiest
link, and sharing a link is what slows: a device's ports to its NVSwitches, its PCIe slot, the uplink of a
PCIe switch, a host bridge, the way between sockets. Links between two devices alone are theirs. A pure
function of the topology.

Where the graph has a way over PCIe, its links count one by one. Where a source has only told path classes
(``nvidia-smi topo -m``), the tree that they imply counts: devices closer than PHB share the uplink of one
switch, those closer than NODE one host bridge's way to the others of its NUMA node, those closer than SYS one
way to another socket. Devices of which it is not known how they reach each other all share one way.
A speed that is not known is taken to be the lowest of its kind (``constants.json``: unknown), and said so.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from collectives.topology import links as speeds
from collectives.topology.graph import FAST, LinkKind, NodeKind, PathClass, Topology
from collectives.topology.pairs import Pairs, planned_links
from collectives.topology.paths import host_graph, host_route, host_speed

Flow = tuple[int, int, float]
"""From rank, to rank, bytes."""


@dataclass(frozen=True)
class Lane:
    """A link, or what devices share.

    Attributes:
        gbps: usable GB/s.
        fast: whether it is NVLink or xGMI, not PCIe or a socket's.
    """

    gbps: float
    fast: bool


def chosen(topology: Topology, devices: Sequence[int]) -> Topology:
    """The machine with those of its devices alone, in that order: rank r on ``gpus[r]``."""
    gpus = [topology.gpus[v] for v in devices]
    others = [node for node in topology.nodes if node.kind != NodeKind.GPU]
    kept = {node.name for node in (*gpus, *others)}
    return Topology(
        [*gpus, *others],
        [link for link in topology.links if link.source in kept and link.target in kept],
        {pair: told for pair, told in topology.classes.items() if kept.issuperset(pair)},
        topology.source,
        topology.remarks,
        topology.host,
        {pair: may for pair, may in topology.peers.items() if kept.issuperset(pair)},
    )


class Routes:
    """The ways between all ranks.

    Args:
        topology: of the ranks' devices alone (:func:`chosen`).
        unknown: GB/s to take for speeds that are not known: ``nvlink`` and ``xgmi`` of one link, ``pcie``,
            ``socket``.

    Attributes:
        pairs: the paths between the devices.
        lanes: by name.
        ways: ``ways[i][j]``, names of the lanes from rank i to rank j; empty on the diagonal.
    """

    def __init__(self, topology: Topology, unknown: Mapping[str, float]) -> None:
        self.topology, self._unknown = topology, unknown
        self.pairs = Pairs(topology)
        self.lanes: dict[str, Lane] = {}
        self._assumed: dict[float, list[str]] = defaultdict(list)
        self._tree = host_graph(topology)
        self._groups = {level: self._parts(level) for level in (PathClass.PHB, PathClass.NODE, PathClass.SYS)}
        everyone = range(self.pairs.count)
        self.ways = [[tuple(self._way(i, j)) if i != j else () for j in everyone] for i in everyone]

    def busiest(self, flows: Iterable[Flow], fast: float, host: float) -> float:
        """Microseconds until the busiest lane has carried its flows.

        Args:
            flows: all at once.
            fast, host: the parts of the usable speed that the algorithm reaches, on fast lanes and others.
        """
        load: dict[str, float] = defaultdict(float)
        for source, target, size in flows:
            for name in self.ways[source][target]:
                load[name] += size
        reached = {True: fast, False: host}
        return (
            max(
                (
                    size / (self.lanes[name].gbps * reached[self.lanes[name].fast])
                    for name, size in load.items()
                ),
                default=0.0,
            )
            * 1e-3
        )

    def ports(self) -> list[float] | None:
        """GB/s of each device to its NVSwitches; None unless all ranks' devices hang on such."""
        n = self.pairs.count
        if n < 2 or not self.pairs.joined(range(n)):
            return None
        for gpu in self.topology.gpus:
            ends = [link.target for link in self.topology.links_from(gpu.name) if link.kind in FAST]
            if not any(self.topology.node(end).kind == NodeKind.NVSWITCH for end in ends):
                return None
        return [self.lanes[f"{gpu.name} ports out"].gbps for gpu in self.topology.gpus]

    @property
    def remarks(self) -> list[str]:
        """What is not known and was taken to be slow, in words."""
        found = []
        for gbps, names in sorted(self._assumed.items()):
            some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            found.append(f"not known how fast: {some}; planned as {gbps:g} GB/s")
        return found

    def slowest_kind(self, pairs: Iterable[tuple[int, int]]) -> str:
        """``nvlink``, ``xgmi`` or ``pcie``: the slowest kind of link on the ways of some pairs of ranks."""
        kinds = {self._kind(i, j) for i, j in pairs}
        return next((kind for kind in ("pcie", "xgmi") if kind in kinds), "nvlink")

    def _kind(self, i: int, j: int) -> str:
        if self.pairs.paths[i][j].kind != PathClass.LINK:
            return "pcie"
        links = self.topology.links_from(self.topology.gpus[i].name)
        return "xgmi" if any(link.kind == LinkKind.XGMI for link in links) else "nvlink"

    def _lane(self, name: str, gbps: float | None, fast: bool, assumed: float) -> str:
        if name not in self.lanes:
            if not gbps:
                self._assumed[assumed].append(name)
            self.lanes[name] = Lane(gbps or assumed, fast)
        return name

    def _way(self, i: int, j: int) -> Iterator[str]:
        a, b = self.topology.gpus[i].name, self.topology.gpus[j].name
        found = self.pairs.paths[i][j]
        if found.kind == PathClass.LINK:
            each = self._one_link(i, j)
            if None in (self.pairs.ports[i], self.pairs.ports[j]):
                yield self._lane(f"{a} to {b}", found.gbps, True, each * max(planned_links(found), 1))
            for which, end, name in (("out", i, a), ("in", j, b)):
                port = self.pairs.ports[end]
                if port is not None:
                    yield self._lane(f"{name} ports {which}", port[1], True, each * max(port[0], 1))
            return
        route = host_route(self._tree, a, b)
        if route is None:
            yield from self._implied(i, j, found.kind)
            return
        for step in itertools.pairwise(route):
            between = self.topology.links_between(*step)
            kind = "socket" if any(link.kind == LinkKind.SOCKET for link in between) else "pcie"
            yield self._lane(
                f"{step[0]} to {step[1]}", host_speed(self.topology, *step), False, self._unknown[kind]
            )

    def _one_link(self, i: int, j: int) -> float:
        """GB/s of one fast link of unknown speed: of the devices' architectures, else the lowest of all."""
        kind = self._kind(i, j)
        of = speeds.xgmi_gbps if kind == "xgmi" else speeds.nvlink_gbps
        known = [of(self.topology.gpus[v].arch) for v in (i, j)]
        return min(speed or self._unknown[kind] for speed in known)

    def _parts(self, level: PathClass) -> list[str]:
        """For each device the name of its group: of those that ways better than `level` connect."""
        graph = nx.Graph()
        graph.add_nodes_from(range(self.pairs.count))
        for i, j in itertools.combinations(range(self.pairs.count), 2):
            if self.pairs.paths[i][j].kind < level:
                graph.add_edge(i, j)
        first = {v: min(part) for part in nx.connected_components(graph) for v in part}
        return [self.topology.gpus[first[v]].name for v in range(self.pairs.count)]

    def _implied(self, i: int, j: int, kind: PathClass) -> Iterator[str]:
        """The lanes of a way of which only the class is known."""
        pcie, socket = self._unknown["pcie"], self._unknown["socket"]
        if kind == PathClass.UNKNOWN:
            yield self._lane("the way between devices that nothing is known of", None, False, socket)
            return
        yield self._lane(f"{self.topology.gpus[i].name}'s slot out", None, False, pcie)
        yield self._lane(f"{self.topology.gpus[j].name}'s slot in", None, False, pcie)
        words = {PathClass.PHB: "switch", PathClass.NODE: "host bridge", PathClass.SYS: "socket"}
        for level, group in self._groups.items():
            if kind >= level and group[i] != group[j]:
                speed = socket if level == PathClass.SYS else pcie
                yield self._lane(f"{group[i]}'s {words[level]} out", None, False, speed)
                yield self._lane(f"{group[j]}'s {words[level]} in", None, False, speed)
