"""The machine that this runs on: the sources that apply, joined."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from collectives.topology import cpu
from collectives.topology.graph import LinkKind, Node, NodeKind, Topology, TopologyError
from collectives.topology.sources import amd_smi, kfd, linux


@dataclass(frozen=True)
class Detected:
    """A machine, and how it is known.

    Attributes:
        topology: devices and host.
        used: the sources that it is made of.
        refused: the other ones by name, with why they were of no use.
    """

    topology: Topology
    used: tuple[str, ...]
    refused: dict[str, str]


def join(devices: Topology, host: Topology) -> Topology:
    """Devices from one source on a host from another, which knows its NUMA nodes and their links better."""
    known = {node.name for node in host.nodes}
    numa = [*host.nodes, *(node for node in devices.of_kind(NodeKind.NUMA) if node.name not in known)]
    others = [node for node in devices.nodes if node.kind != NodeKind.NUMA]
    links = [
        link
        for link in devices.links
        if not (link.kind == LinkKind.SOCKET and {link.source, link.target} <= known)
    ]
    # A link between sockets that the devices' source gives a speed keeps it.
    speeds = {(link.source, link.target): link.gbps for link in devices.links if link.kind == LinkKind.SOCKET}
    sockets = [replace(link, gbps=link.gbps or speeds.get((link.source, link.target))) for link in host.links]
    return Topology(
        [*others, *numa],
        [*links, *sockets],
        devices.classes,
        devices.source,
        [*devices.remarks, *host.remarks],
        host.host,
        devices.peers,
    )


def detect(
    sys: str = cpu.SYS,
    proc: str = cpu.PROC,
    nvml: Any = None,
    amdsmi: Any = None,
    libraries: bool | None = None,
) -> Detected:
    """The machine, by every source that knows something of it. One without GPUs is its host alone.

    Devices are of one maker: where NVML knows some, AMD's are left out (an APU's graphics beside real GPUs).
    KFD goes before AMD SMI, whose product names complete it.

    Args:
        sys, proc: where sysfs and procfs are: the machine's own, or recorded trees.
        nvml, amdsmi: modules to use in place of ``pynvml`` and ``amdsmi``.
        libraries: whether to ask the makers' libraries; None asks them only beside the machine's own trees.

    Raises:
        TopologyError: not even a CPU can be found.
    """
    refused: dict[str, str] = {}
    used: list[str] = []
    own = (str(sys), str(proc)) == (cpu.SYS, cpu.PROC) if libraries is None else libraries

    def attempt(name: str, reader: Callable[[], Topology]) -> Topology | None:
        try:
            found = reader()
        except TopologyError as error:
            refused[name] = str(error)
            return None
        if not found.gpus:
            refused[name] = "it knows no GPU"
            return None
        used.append(name)
        return found

    host = linux.read(sys, proc)
    numbers = [node.number for node in host.host.numa if node.all_cores] if host.host else []
    devices = attempt("NVML", lambda: _nvml(nvml)) if own or nvml else None
    if devices is None:
        devices = attempt("KFD", lambda: kfd.read(f"{sys}/class/kfd/kfd/topology", numbers))
        if own or amdsmi:
            told = attempt("AMD SMI", lambda: amd_smi.read(amdsmi))
            devices = told if devices is None else _named(devices, told)
    used.append("Linux")
    found = join(devices, host) if devices else host
    whole = Topology(
        found.nodes, found.links, found.classes, " + ".join(used), found.remarks, found.host, found.peers
    )
    return Detected(whole, tuple(used), refused)


def _nvml(module: Any) -> Topology:
    try:
        source = importlib.import_module("collectives.topology.sources.nvml")
        found: Topology = source.read(module) if module is not None else source.read()
    except ImportError as error:
        raise TopologyError(f"it cannot be used: {error}", "NVML") from error
    return found


def _named(devices: Topology, told: Topology | None) -> Topology:
    """Devices with the product names that another source knows, by PCI address."""
    models = {node.bus: node.model for node in told.gpus if node.bus} if told else {}

    def named(node: Node) -> Node:
        model = models.get(node.bus) if node.bus else None
        return replace(node, model=model) if node.kind == NodeKind.GPU and model else node

    return Topology(
        [named(node) for node in devices.nodes],
        devices.links,
        devices.classes,
        devices.source,
        devices.remarks,
        devices.host,
        {**(told.peers if told and len(models) == len(devices.gpus) else {}), **devices.peers},
    )
