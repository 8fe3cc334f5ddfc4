"""A short name for the wiring of a machine, the same however its parts are numbered."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from collectives.topology.graph import Link, Node, NodeKind, Topology

_Edges = Mapping[str, Mapping[str, str]]


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _link_word(link: Link) -> str:
    return f"{link.kind.value} {link.count} {link.generation} {link.width} {link.weight}"


def _node_word(node: Node) -> str:
    if node.kind == NodeKind.GPU:
        return f"gpu {node.arch} {node.model}"
    return f"{node.kind.value} {node.gbps}" if node.kind == NodeKind.NIC else node.kind.value


def _labels(topology: Topology) -> dict[str, str]:
    """What each node is, without its number; what devices share (NUMA node, group, card) is one more."""
    labels = {node.name: _node_word(node) for node in topology.nodes}
    for node in topology.nodes:
        labels.update({f"{kind} of {value}": kind for kind, value in _sets(node)})
    if topology.host:
        for numa in topology.host.numa:
            labels[f"set of {numa.number}"] = f"set {len(numa.all_cores)}"
            labels[f"package of {numa.package}"] = "package"
    return labels


def _sets(node: Node) -> list[tuple[str, object]]:
    sets = (("set", node.numa), ("group", node.group), ("card", node.parent))
    return [(kind, value) for kind, value in sets if value is not None]


def _edges(topology: Topology) -> _Edges:
    """What joins each node to each neighbour, both ways at once: a one-way link shows at both ends."""
    words: dict[tuple[str, str], list[str]] = defaultdict(list)
    for link in topology.links:
        words[link.source, link.target].append(_link_word(link))
    for (a, b), path_class in topology.classes.items():
        words[a, b].append(path_class.name)
    for (a, b), may in topology.peers.items():
        words[a, b].append(f"peer {may}")
    for node in topology.nodes:
        for kind, value in _sets(node):
            words[node.name, f"{kind} of {value}"].append("in")
    if topology.host:
        for numa in topology.host.numa:
            words[f"set of {numa.number}", f"package of {numa.package}"].append("in")
    edges: dict[str, dict[str, str]] = defaultdict(dict)
    for a, b in list(words):
        there, back = sorted(words.get((a, b), [])), sorted(words.get((b, a), []))
        edges[a][b] = _digest((there, back))
        edges[b][a] = _digest((back, there))
    return edges


def _refine(colours: dict[str, str], edges: _Edges) -> dict[str, str]:
    """Colours that tell nodes apart by what is around them: each round adds the neighbours' colours, until a
    round tells no more apart. Colours are digests, so those of two machines compare."""
    kinds = len(set(colours.values()))
    while True:
        colours = {
            name: _digest(
                (
                    colour,
                    sorted(Counter((word, colours[to]) for to, word in edges.get(name, {}).items()).items()),
                )
            )
            for name, colour in colours.items()
        }
        if len(set(colours.values())) == kinds:
            return colours
        kinds = len(set(colours.values()))


def _summary(colours: Iterable[str]) -> str:
    return _digest(sorted(colours))


def fingerprint(topology: Topology) -> str:
    """16 hexadecimal digits for what the devices are and how they are joined.

    The order and the numbers of devices, NUMA nodes and NICs, PCI addresses, labels, speeds and what this
    process may use do not count. Refining colours cannot tell a ring of eight from two of four, where every
    device sees two neighbours; it is done again for every device, with that device marked, and then it can.
    """
    edges = _edges(topology)
    plain = _refine(_labels(topology), edges)
    marked = [
        _summary(_refine({**plain, gpu.name: f"here {plain[gpu.name]}"}, edges).values())
        for gpu in topology.gpus
    ]
    host = topology.host.model if topology.host else None
    return _digest((host, _summary(plain.values()), sorted(marked)))
