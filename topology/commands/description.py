"""What there is to say of a machine, as plain data: what `show` prints, and the JSON for programs."""

from __future__ import annotations

from typing import Any

from collectives.topology.fingerprint import fingerprint
from collectives.topology.graph import LinkKind, Node, Path, PathClass, Topology
from collectives.topology.health import findings
from collectives.topology.pairs import Pairs
from collectives.topology.paths import fully_connected, islands, nearest, path
from collectives.topology.rings import Ring, RingSet, best_rings

VERSION = 1
_MANY = 16
"""From more devices on the set of rings is counted, not listed."""


def cell(topology: Topology, a: Node, b: Node, way: Path) -> str:
    """A pair in the words of ``nvidia-smi topo -m``: NV12, XG1 (xGMI), PIX ... SYS; ? for unknown."""
    if way.kind == PathClass.SELF:
        return "X"
    if way.kind == PathClass.UNKNOWN:
        return "?"
    if way.kind != PathClass.LINK:
        return way.kind.name
    xgmi = any(link.kind == LinkKind.XGMI for link in topology.links_from(a.name))
    return f"{'XG' if xgmi else 'NV'}{'?' if way.links is None else way.links}"


def matrix(topology: Topology, pairs: Pairs) -> tuple[list[str], list[list[str]]]:
    """Names of devices and NICs, and the cell of every pair of them."""
    nodes = [*topology.gpus, *topology.nics]
    ways = [[path(topology, a, b) for b in topology.nics] for a in nodes]
    count, rows = pairs.count, []
    for i, a in enumerate(nodes):
        row = pairs.paths[i] if i < count else [ways[k][i - count] for k in range(count)]
        rows.append([cell(topology, a, b, way) for b, way in zip(nodes, [*row, *ways[i]], strict=True)])
    return [node.name for node in nodes], rows


def _ring(ring: Ring) -> dict[str, Any]:
    return {
        "order": list(ring.order),
        "class": ring.kind.name,
        "links": ring.links,
        "gbps": ring.gbps,
    }


def _rings(found: RingSet) -> dict[str, Any]:
    return {
        "best": _ring(found.best),
        "count": len(found.rings),
        "orders": [list(ring.order) for ring in found.rings] if len(found.best.order) <= _MANY else None,
        "gbps": found.gbps,
        "exact": found.exact,
    }


def _nearest(topology: Topology, gpu: Node) -> dict[str, Any]:
    """The network cards that are nearest to a device, and how near."""
    cards = nearest(topology, gpu, topology.nics)
    return {
        "nearest_nics": [nic.name for nic in cards],
        "nearest_class": path(topology, gpu, cards[0]).kind.name if cards else None,
    }


def _host(topology: Topology) -> dict[str, Any] | None:
    host = topology.host
    if host is None:
        return None
    return {
        "model": host.model,
        "cores": list(host.cores),
        "quota": host.quota,
        "last_level_caches": [{"cores": list(cores), "bytes": nbytes} for cores, nbytes in host.l3_groups],
        "numa": [
            {
                "number": node.number,
                "package": node.package,
                "cores": list(node.cores),
                "all_cores": list(node.all_cores),
                "distances": {str(number): distance for number, distance in node.distances.items()},
            }
            for node in host.numa
        ],
    }


def describe(topology: Topology) -> dict[str, Any]:
    """Everything that `show` prints; None stands for what is unknown."""
    pairs = Pairs(topology)
    names, rows = matrix(topology, pairs)
    gpus = [
        {
            "name": gpu.name,
            "model": gpu.model,
            "arch": gpu.arch,
            "bus": gpu.bus,
            "numa": gpu.numa,
            "group": gpu.group,
            "card": gpu.parent,
            **_nearest(topology, gpu),
        }
        for gpu in topology.gpus
    ]
    nics = [
        {"name": nic.name, "label": nic.label, "bus": nic.bus, "numa": nic.numa, "gbps": nic.gbps}
        for nic in topology.nics
    ]
    return {
        "version": VERSION,
        "source": topology.source,
        "fingerprint": fingerprint(topology),
        "host": _host(topology),
        "devices": gpus,
        "nics": nics,
        "matrix": {"names": names, "cells": rows},
        "islands": [list(island) for island in islands(topology)],
        "fully_connected": fully_connected(topology),
        "rings": _rings(best_rings(pairs)) if topology.gpus else None,
        "findings": [
            {
                "severity": found.severity.value,
                "kind": found.kind,
                "words": found.words,
                "nodes": list(found.nodes),
            }
            for found in findings(topology)
        ],
    }
