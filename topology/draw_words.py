"""What a picture says in words."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

from collectives.topology.graph import Link, LinkKind, NodeKind, PathClass, Topology
from collectives.topology.health import Severity, findings
from collectives.topology.paths import fully_connected, islands, path

NAMES = {
    LinkKind.NVLINK: "NVLink",
    LinkKind.XGMI: "xGMI",
    LinkKind.C2C: "device to host",
    LinkKind.PCIE: "PCIe",
    LinkKind.SOCKET: "between NUMA nodes",
}


def plural(count: int, word: str) -> str:
    """A number and what it counts."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def heading(topology: Topology) -> str:
    """What the devices are: 8 × NVIDIA H100 80GB HBM3."""
    kinds = Counter(gpu.model or (f"GPU {gpu.arch}" if gpu.arch else None) for gpu in topology.gpus)
    host = topology.host.model if topology.host else None
    words = [
        f"{times} × {kind}" if kind else f"{plural(times, 'GPU')} of unknown model"
        for kind, times in kinds.items()
    ]
    return ", ".join(words) or host or "no device"


def summary(topology: Topology) -> str:
    """How they are joined, in a line."""
    parts = []
    groups = [group for group in islands(topology) if len(group) > 1]
    fast = {link.kind for link in topology.links if link.kind in (LinkKind.NVLINK, LinkKind.XGMI)}
    words = " and ".join(NAMES[kind] for kind in (LinkKind.NVLINK, LinkKind.XGMI) if kind in fast)
    if fully_connected(topology):
        parts.append(f"every pair joined by {words}")
    elif len(groups) == 1 and len(groups[0]) == len(topology.gpus):
        parts.append(f"one island of {words}, not every pair joined")
    elif groups:
        parts.append(f"{plural(len(groups), 'island')} of {words}")
    elif any(
        path(topology, a, b).kind == PathClass.UNKNOWN for a, b in itertools.combinations(topology.gpus, 2)
    ):
        parts.append("how devices reach each other is not told")
    elif len(topology.gpus) > 1:
        parts.append("no NVLink or xGMI between devices")
    numa = {node.numa for node in topology.nodes if node.numa is not None}
    numa |= {node.number for node in topology.host.numa} if topology.host else set()
    if numa:
        parts.append(plural(len(numa), "NUMA node"))
    if topology.nics:
        parts.append(plural(len(topology.nics), "network card"))
    found = Counter(finding.severity for finding in findings(topology))
    parts += [
        plural(found[severity], severity.value)
        for severity in (Severity.ERROR, Severity.WARNING)
        if found[severity]
    ]
    return " · ".join(parts)


def speed(links: Iterable[Link]) -> str:
    """The speed that links have in common; empty without one."""
    speeds = {link.gbps for link in links}
    known = sorted(speed for speed in speeds if speed is not None)
    return f", {known[0]:g} GB/s" if len(speeds) == 1 and known else ""


def words(kind: LinkKind, count: int | None, generation: int | None, gbps: float | None) -> str:
    """A bundle of links for the legend."""
    name = NAMES[kind] + (f" {generation}" if generation else "")
    number = "number of links unknown" if count is None else plural(count, "link")
    return f"{name}, {number}" + (f", {gbps:.4g} GB/s each way" if gbps else "")


def pcie(topology: Topology) -> str:
    """What the wires over PCIe are, where those of devices and cards are of one or two kinds."""
    links = [
        link
        for node in (*topology.gpus, *topology.nics)
        for link in topology.links_from(node.name)
        if link.kind == LinkKind.PCIE and topology.node(link.target).kind != NodeKind.GPU
    ]
    words = {(link.generation, link.width): link.gbps for link in links}
    if not words or len(words) > 2 or any(None in kind for kind in words):
        return NAMES[LinkKind.PCIE]
    return " and ".join(
        f"PCIe {generation} ×{width}" + (f", {gbps:.3g} GB/s" if gbps else "")
        for (generation, width), gbps in sorted(words.items(), key=str)
    )
