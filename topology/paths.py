"""How two nodes of a machine reach each other, and what follows for all devices together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import networkx as nx

from collectives.topology.graph import FAST, Link, LinkKind, Node, NodeKind, Path, PathClass, Topology

_HOST = frozenset({LinkKind.PCIE, LinkKind.SOCKET, LinkKind.C2C})


def _bundle(links: Iterable[Link]) -> tuple[int | None, float | None]:
    """Links and usable GB/s of several bundles side by side; None where one of them is unknown."""
    count: int | None = 0
    gbps: float | None = 0.0
    for link in links:
        count = None if count is None or link.count is None else count + link.count
        gbps = None if gbps is None or link.gbps is None else gbps + link.gbps
    return count, gbps


def _least(*values: float | None) -> float | None:
    """The smallest, unknown if one of them is: a path is planned by its narrowest part."""
    return None if any(value is None for value in values) else min(v for v in values if v is not None)


def _one_way(topology: Topology, a: str, b: str) -> tuple[int | None, float | None]:
    """Fast links from `a` to `b`, direct ones and those through NVSwitches, and their GB/s."""
    direct = [link for link in topology.links_between(a, b) if link.kind in FAST]
    if direct:
        return _bundle(direct)
    up = [link for link in topology.links_from(a) if _is_switched(topology, link)]
    reached = {link.target for link in up}
    down = [link for switch in reached for link in topology.links_between(switch, b) if link.kind in FAST]
    if not up or not down:
        return 0, 0.0
    (up_count, up_gbps), (down_count, down_gbps) = _bundle(up), _bundle(down)
    count = _least(up_count, down_count)
    return None if count is None else int(count), _least(up_gbps, down_gbps)


def _is_switched(topology: Topology, link: Link) -> bool:
    return link.kind in FAST and topology.node(link.target).kind == NodeKind.NVSWITCH


def fast_links(topology: Topology, a: str, b: str) -> tuple[int | None, float | None]:
    """NVLink or xGMI links between two devices, and usable GB/s of the slower direction.

    Returns:
        (0, 0.0) where there are none. A link that only one of the two ends knows is none: nobody can count
        on it (``health`` reports it). None stands for what is unknown.
    """
    there, back = _one_way(topology, a, b), _one_way(topology, b, a)
    count, gbps = _least(there[0], back[0]), _least(there[1], back[1])
    if 0 in (there[0], back[0]):
        return 0, 0.0
    return None if count is None else int(count), gbps


def _is_no_step(topology: Topology, link: Link) -> bool:
    """Whether a host link is left out of paths: an NVSwitch's own port, or a system's word that two devices
    reach each other over PCIe, which is no wire between them."""
    ends = [topology.node(link.source).kind, topology.node(link.target).kind]
    return NodeKind.NVSWITCH in ends or ends == [NodeKind.GPU, NodeKind.GPU]


def host_graph(topology: Topology) -> nx.DiGraph:
    """The steps over PCIe and sockets that a path may take, by names of nodes."""
    return nx.DiGraph(
        (link.source, link.target)
        for link in topology.links
        if link.kind in _HOST and not _is_no_step(topology, link)
    )


def host_route(tree: nx.DiGraph, a: str, b: str) -> list[str] | None:
    """The nodes of the shortest way in a :func:`host_graph`; None if it has none."""
    if a not in tree or b not in tree or not nx.has_path(tree, a, b):
        return None
    return list(nx.shortest_path(tree, a, b))


def host_speed(topology: Topology, a: str, b: str) -> float | None:
    """Usable GB/s of a step of a host route; None if unknown."""
    return _bundle(link for link in topology.links_between(a, b) if link.kind in _HOST)[1]


def _host_path(topology: Topology, a: str, b: str) -> Path | None:
    """The shortest way over PCIe and sockets; None if the graph has none."""
    names = host_route(host_graph(topology), a, b)
    if names is None:
        return None
    kinds = [topology.node(name).kind for name in names[1:-1]]
    numa, bridges = kinds.count(NodeKind.NUMA), kinds.count(NodeKind.PCI_SWITCH)
    if numa:
        kind = PathClass.PHB if numa == 1 else PathClass.SYS
    else:
        kind = PathClass.PIX if bridges <= 1 else PathClass.PXB
    widest = [host_speed(topology, *step) for step in itertools.pairwise(names)]
    return Path(kind, 0, _least(*widest), len(widest))


def path(topology: Topology, a: Node | str, b: Node | str) -> Path:
    """How `a` reaches `b`: by fast links, else as the source has told, else as the PCIe tree says.

    Of nodes that no link joins it is known only whether they hang on one NUMA node; the worse of the classes
    that are possible is taken then.

    Raises:
        KeyError: there is no such node.
    """
    first, second = (topology.node(end) if isinstance(end, str) else end for end in (a, b))
    names = first.name, second.name
    if first.name == second.name:
        return Path(PathClass.SELF, 0, None, 0)
    count, gbps = fast_links(topology, *names)
    if count != 0:
        switched = not any(link.kind in FAST for link in topology.links_between(*names))
        return Path(PathClass.LINK, count, gbps, 2 if switched else 1)
    told = topology.classes.get(names, topology.classes.get(names[::-1]))
    found = _host_path(topology, *names)
    if told is not None:
        return Path(told, 0, found.gbps if found else None, found.hops if found else None)
    if found is not None:
        return found
    if first.numa is None or second.numa is None:
        return Path(PathClass.UNKNOWN, None)
    return Path(PathClass.NODE if first.numa == second.numa else PathClass.SYS)


def link_matrix(topology: Topology) -> list[list[int | None]]:
    """Fast links of every pair of devices; 0 where there are none, None where unknown."""
    gpus = topology.gpus
    return [[0 if a is b else fast_links(topology, a.name, b.name)[0] for b in gpus] for a in gpus]


def islands(topology: Topology) -> list[tuple[int, ...]]:
    """The devices in groups that fast links connect, each ascending; one that has none is alone."""
    matrix = link_matrix(topology)
    joined = nx.Graph()
    joined.add_nodes_from(range(len(matrix)))
    joined.add_edges_from(
        (i, j) for i, j in itertools.combinations(range(len(matrix)), 2) if matrix[i][j] != 0
    )
    return sorted(tuple(sorted(group)) for group in nx.connected_components(joined))


def fully_connected(topology: Topology) -> bool:
    """Whether every pair of two devices or more has fast links of its own."""
    matrix = link_matrix(topology)
    pairs = list(itertools.combinations(range(len(matrix)), 2))
    return bool(pairs) and all(matrix[i][j] != 0 for i, j in pairs)


def nearest(topology: Topology, gpu: Node | str, candidates: Sequence[Node]) -> tuple[Node, ...]:
    """Those candidates (such as ``topology.nics``) that are nearest to a device by path class."""
    classes = {node.name: path(topology, gpu, node).kind for node in candidates}
    best = min(classes.values(), default=None)
    return tuple(node for node in candidates if classes[node.name] == best)
