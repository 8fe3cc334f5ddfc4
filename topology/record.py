"""A machine as JSON: everything that was read, to be read again where that machine is not.

What identifies one machine among others stays out: serial numbers, UUIDs, GUIDs, host names, paths. Hives and
fabric cliques, whose ids are as good as serial numbers, are counted. A recording says its version; one of
another is refused.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from collectives.topology.checked import Checked
from collectives.topology.graph import (
    Host,
    Link,
    LinkKind,
    Node,
    NodeKind,
    Numa,
    PathClass,
    Topology,
    TopologyError,
)

FORMAT = "collectives-topology"
VERSION = 1

_IDENTITY = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"  # UUIDs
    r"|(?:[0-9a-f]{4}:){3}[0-9a-f]{4}|(?:[0-9a-f]{2}:){5,7}[0-9a-f]{2}"  # GUIDs and MAC addresses
    r"|(?:0x)?[0-9a-f]{12,}",
    re.IGNORECASE,
)
_PLACE = re.compile(r"(?<![\w.])(?:/[\w.+@-]+){2,}/?")


def _neutral(text: str | None) -> str | None:
    return None if text is None else _PLACE.sub("(path)", _IDENTITY.sub("(id)", text))


def neutral(topology: Topology) -> Topology:
    """The same machine without what tells it from others of its kind."""
    names = dict.fromkeys(node.group for node in topology.nodes if node.group is not None)
    counted = {name for name in names if re.fullmatch(r"[a-z]+[0-9]{1,4}", name)}
    fresh = (f"group{i}" for i in itertools.count() if f"group{i}" not in counted)
    groups = {name: name if name in counted else next(fresh) for name in names}
    nodes = [
        replace(
            node,
            model=_neutral(node.model),
            label=_neutral(node.label),
            group=None if node.group is None else groups[node.group],
        )
        for node in topology.nodes
    ]
    remarks = [_neutral(remark) or "" for remark in topology.remarks]
    return Topology(
        nodes, topology.links, topology.classes, topology.source, remarks, topology.host, topology.peers
    )


def _told(item: object) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    found = {}
    for field in fields(item):  # type: ignore[arg-type]
        value = getattr(item, field.name)
        if field.default is MISSING or value != field.default:
            found[field.name] = value.value if isinstance(value, (NodeKind, LinkKind)) else value
    return found


def to_json(topology: Topology) -> dict[str, Any]:
    """A topology in values that :mod:`json` writes, neutral as said above; :func:`from_json` reads it."""
    plain = neutral(topology)
    data: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "nodes": [_told(node) for node in plain.nodes],
        "links": [_told(link) for link in plain.links],
        "classes": [[a, b, kind.name] for (a, b), kind in plain.classes.items()],
        "peers": [[a, b, may] for (a, b), may in plain.peers.items()],
        "remarks": list(plain.remarks),
    }
    if plain.host is not None:
        host = plain.host
        data["host"] = {
            "model": host.model,
            "quota": host.quota,
            "l3_groups": [[list(cores), nbytes] for cores, nbytes in host.l3_groups],
            "numa": [
                {
                    "number": node.number,
                    "package": node.package,
                    "cores": list(node.cores),
                    "all_cores": list(node.all_cores),
                    "distances": [[number, distance] for number, distance in node.distances.items()],
                }
                for node in host.numa
            ],
        }
    return data


def from_json(data: object, source: str = "") -> Topology:
    """The topology that :func:`to_json` has written.

    Raises:
        TopologyError: no recording, one of a newer version, or values that are not what they have to be.
    """
    read = Checked(source)
    top = read.table(data, "the recording")
    if top.get("format") != FORMAT:
        raise read.fault("format", repr(FORMAT))
    if read.whole(top.get("version"), "version") != VERSION:
        raise read.fault("version", f"{VERSION}, which is what this program reads")
    nodes = [_node(read, item, f"nodes[{i}]") for i, item in enumerate(read.items(top.get("nodes"), "nodes"))]
    links = [_link(read, item, f"links[{i}]") for i, item in enumerate(read.items(top.get("links"), "links"))]
    names = {node.name for node in nodes}
    classes: dict[tuple[str, str], PathClass] = {}
    for a, b, word in _pairs(read, top.get("classes", []), "classes", names):
        if word not in PathClass.__members__:
            raise read.fault("classes", f"a path class ({', '.join(PathClass.__members__)})")
        classes[a, b] = PathClass[word]
    peers = {
        (a, b): read.flag(may, "peers") for a, b, may in _pairs(read, top.get("peers", []), "peers", names)
    }
    remarks = [read.text(remark, "remarks") for remark in read.items(top.get("remarks", []), "remarks")]
    host = read.maybe(top.get("host"), "host", lambda value, _: _host(read, value))
    return Topology(nodes, links, classes, source, remarks, host, peers)


def _pairs(read: Checked, value: object, where: str, names: set[str]) -> list[tuple[str, str, Any]]:
    found = []
    for entry in read.items(value, where):
        entry = read.items(entry, where)
        if (
            len(entry) != 3
            or not {str(entry[0]), str(entry[1])} <= names
            or not isinstance(entry[2], (str, bool))
        ):
            raise read.fault(where, "two names of nodes and a value")
        found.append((str(entry[0]), str(entry[1]), entry[2]))
    return found


def _kind(read: Checked, kinds: Any) -> Callable[[object, str], Any]:
    def reader(value: object, where: str) -> Any:
        if value not in [kind.value for kind in kinds]:
            raise read.fault(where, f"one of {', '.join(kind.value for kind in kinds)}")
        return kinds(value)

    return reader


def _node(read: Checked, value: object, where: str) -> Node:
    words = ("name", "bus", "model", "arch", "label", "group", "parent")
    known = {
        **dict.fromkeys(words, read.text),
        "kind": _kind(read, NodeKind),
        "numa": read.size,
        "rank": read.size,
        "gbps": read.amount,
    }
    found = read.record(value, where, known)
    if found.get("name") is None or found.get("kind") is None:
        raise read.fault(where, "a name and a kind")
    return Node(**found)


def _link(read: Checked, value: object, where: str) -> Link:
    known = {
        "source": read.text,
        "target": read.text,
        "kind": _kind(read, LinkKind),
        **dict.fromkeys(("count", "generation", "width", "weight"), read.size),
        "gbps": read.amount,
    }
    found = read.record(value, where, known)
    if None in (found.get("source"), found.get("target"), found.get("kind")):
        raise read.fault(where, "a source, a target and a kind")
    return Link(**found)


def _host(read: Checked, value: object) -> Host:
    data = read.table(value, "host")
    numa = []
    for i, item in enumerate(read.items(data.get("numa", []), "host.numa")):
        where = f"host.numa[{i}]"
        node = read.table(item, where)
        distances = {}
        for pair in read.items(node.get("distances", []), f"{where}.distances"):
            numbers = read.cores(pair, f"{where}.distances")
            if len(numbers) != 2:
                raise read.fault(f"{where}.distances", "pairs of a node and a distance")
            distances[numbers[0]] = numbers[1]
        numa.append(
            Numa(
                read.size(node.get("number"), f"{where}.number"),
                read.maybe(node.get("package"), f"{where}.package", read.size),
                read.cores(node.get("cores", []), f"{where}.cores"),
                read.cores(node.get("all_cores", []), f"{where}.all_cores"),
                distances,
            )
        )
    groups = []
    for group in read.items(data.get("l3_groups", []), "host.l3_groups"):
        entry = read.items(group, "host.l3_groups")
        if len(entry) != 2:
            raise read.fault("host.l3_groups", "pairs of cores and bytes")
        groups.append(
            (read.cores(entry[0], "host.l3_groups"), read.maybe(entry[1], "host.l3_groups", read.size))
        )
    return Host(
        read.maybe(data.get("model"), "host.model", read.text),
        tuple(numa),
        tuple(groups),
        read.maybe(data.get("quota"), "host.quota", read.amount),
    )


def dumps(topology: Topology) -> str:
    """The text of a recording: a line for each node and link, so that two recordings can be compared."""
    data = to_json(topology)
    parts = []
    for key, value in data.items():
        if isinstance(value, list) and value:
            lines = ",\n".join("  " + json.dumps(item) for item in value)
            parts.append(f"{json.dumps(key)}: [\n{lines}\n]")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def record(path: str | Path, topology: Topology | None = None) -> Topology:
    """Writes a topology, or that of this machine, to a file; returns what was written.

    Raises:
        TopologyError: this machine cannot be read, or the file cannot be written.
    """
    if topology is None:
        from collectives.topology.sources.live import detect  # it imports what imports this

        topology = detect().topology
    try:
        Path(path).write_text(dumps(topology), encoding="utf-8")
    except OSError as error:
        raise TopologyError(f"it cannot be written: {error.strerror}", str(path)) from error
    return topology
