"""The CPUs of a Linux host from sysfs and procfs: packages, NUMA nodes, caches, and what may be used."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from collectives.topology import cpu
from collectives.topology.graph import Host, Link, LinkKind, Node, NodeKind, Numa, Topology, TopologyError


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _allowed(proc: str) -> tuple[int, ...] | None:
    """The cores of this process: of the running one, or of the one that was recorded; None if not told."""
    if proc == cpu.PROC:
        return cpu.allowed_cores()
    match = re.search(r"^Cpus_allowed_list:(.*)$", _text(Path(proc, "self/status")) or "", re.MULTILINE)
    return cpu.parse_list(match[1].strip()) or None if match else None


def _present(sys: str) -> tuple[int, ...]:
    """The cores that run, ascending."""
    base = Path(sys, "devices/system/cpu")
    online = cpu.parse_list(_text(base / "online"))
    return online or tuple(
        sorted(int(path.name[3:]) for path in base.glob("cpu[0-9]*") if path.name[3:].isdigit())
    )


def _package(core: int, sys: str) -> int | None:
    text = _text(Path(sys, f"devices/system/cpu/cpu{core}/topology/physical_package_id")) or ""
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else None  # -1 stands for unknown


def _nodes(sys: str) -> dict[int, tuple[tuple[int, ...], list[int]]]:
    """NUMA nodes by number: their cores, and the distances in the order of the nodes."""
    base = Path(sys, "devices/system/node")
    found = {}
    for path in base.glob("node[0-9]*"):
        if path.name[4:].isdigit():
            words = (_text(path / "distance") or "").split()
            distances = [int(word) for word in words if re.fullmatch(r"[0-9]{1,4}", word)]
            found[int(path.name[4:])] = (cpu.parse_list(_text(path / "cpulist")), distances)
    return dict(sorted(found.items()))


def _l3_groups(usable: Collection[int], sys: str) -> tuple[tuple[tuple[int, ...], int | None], ...]:
    groups: dict[tuple[int, ...], int | None] = {}
    seen: set[int] = set()
    for core in sorted(usable):
        if core in seen:
            continue
        holding = [cache for cache in cpu.caches(core, sys) if cache.kind != "Instruction"]
        if not holding:
            continue
        last = max(holding, key=lambda cache: cache.level)
        cores = tuple(sorted({core, *last.cores} & set(usable)))
        groups[cores] = last.nbytes
        seen.update(cores)
    return tuple(groups.items())


def read(sys: str = cpu.SYS, proc: str = cpu.PROC, allowed: Collection[int] | None = None) -> Topology:
    """The host's NUMA nodes, joined by socket links, and its :class:`Host`; no device.

    Args:
        sys, proc: where sysfs and procfs are.
        allowed: the cores that the process may use; None asks the system, or the record of it.

    Raises:
        TopologyError: no CPU can be found.
    """
    may = tuple(sorted(allowed)) if allowed is not None else _allowed(str(proc))
    present = _present(sys) or may or ()
    if not present:
        raise TopologyError("no CPUs: expected devices/system/cpu in it", sys)
    usable = set(present) if may is None else set(present) & set(may)
    told = _nodes(sys)
    if not any(cores for cores, _ in told.values()):
        told = {0: (present, [])}  # a kernel without NUMA
    order = list(told)
    numa = []
    for number, (cores, distances) in told.items():
        known = dict(zip(order, distances, strict=True)) if len(distances) == len(order) else {}
        running = tuple(core for core in cores if core in present)
        packages = {_package(core, sys) for core in running}
        numa.append(
            Numa(
                number,
                packages.pop() if len(packages) == 1 else None,
                tuple(core for core in running if core in usable),
                running,
                known,
            )
        )
    host = Host(cpu.model_name(proc), tuple(numa), _l3_groups(usable, sys), cpu.cpu_quota(proc, sys))
    return host_topology(host, str(sys))


def host_topology(host: Host, source: str = "") -> Topology:
    """A host as a graph: a node for each NUMA node, and a link from each to each other, with its distance."""
    nodes = [Node(f"numa{node.number}", NodeKind.NUMA, numa=node.number) for node in host.numa]
    links = [
        Link(f"numa{a.number}", f"numa{b.number}", LinkKind.SOCKET, None, weight=a.distances.get(b.number))
        for a in host.numa
        for b in host.numa
        if a.number != b.number
    ]
    return Topology(nodes, links, source=source, host=host)
