"""The PCI tree from Linux sysfs: where devices hang, how fast their slots are, which network cards there are.

The root of the file system is a parameter, so a recorded tree does as well. PCIe speeds are the largest that
both ends of a link can do, as idle devices slow their links down. Ports are merged to whole switches: of a
root port and the pairs of ports below it, each upstream port stands for its switch, the root port for the CPU.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from collectives.topology import links as speeds
from collectives.topology import pci_address
from collectives.topology.graph import Link, LinkKind, Node, NodeKind


@dataclass(frozen=True)
class Slot:
    """Where a device is.

    Attributes:
        bridges: PCI addresses of the ports above it, from the root port down.
        numa: its NUMA node; None if the system does not tell.
        kind: the PCI class, such as ``0x030200``; None if unknown.
    """

    bridges: tuple[str, ...] = ()
    numa: int | None = None
    kind: str | None = None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _device(bus: str, sys: str) -> Path:
    return Path(sys, "bus/pci/devices", bus)


def slot(bus: str, sys: str = "/sys") -> Slot:
    """Where the device of an address is; all unknown if there is none."""
    folder = _device(bus, sys)
    above = Path(os.path.realpath(folder)).parts[:-1]
    bridges = itertools.takewhile(lambda part: pci_address.normal(part) is not None, reversed(above))
    number = _read(folder / "numa_node") or ""
    numa = int(number) if re.fullmatch(r"\d{1,6}", number, re.ASCII) else None
    return Slot(tuple(reversed(list(bridges))), numa, _read(folder / "class"))


def _port(bus: str, sys: str) -> tuple[int | None, int | None]:
    speed = re.match(r"(\d+(?:\.\d+)?) GT/s", _read(_device(bus, sys) / "max_link_speed") or "", re.ASCII)
    width = _read(_device(bus, sys) / "max_link_width") or ""
    lanes = int(width) if re.fullmatch(r"\d{1,2}", width, re.ASCII) else 0
    return speeds.pcie_generation(float(speed[1])) if speed else None, lanes if 0 < lanes <= 32 else None


def link(bus: str, above: str | None = None, sys: str = "/sys") -> tuple[int | None, int | None]:
    """Generation and lanes that a device and the port above it can both do; None if neither tells."""
    ends = [_port(bus, sys)] + ([_port(above, sys)] if above else [])
    generations = [generation for generation, _ in ends if generation]
    widths = [width for _, width in ends if width]
    return min(generations, default=None), min(widths, default=None)


def tree(
    devices: Iterable[tuple[str, str]],
    sys: str = "/sys",
    told: Mapping[str, tuple[int | None, int | None]] | None = None,
) -> tuple[list[Node], list[Link]]:
    """Switches, NUMA nodes and PCIe links that join devices.

    Args:
        devices: PCI addresses, with the names of the nodes there; partitions of a card share its address.
        sys: the root of sysfs.
        told: generation and lanes of devices by address, where the caller knows better than sysfs.

    Returns:
        Nodes that are no devices, and links in both directions, those between NUMA nodes with their distance.
    """
    nodes: dict[str, Node] = {}
    links: dict[tuple[str, str], Link] = {}
    for bus, name in devices:
        where = slot(bus, sys)
        steps = [(name, bus, where.bridges[-1] if where.bridges else None)]
        for index in range(len(where.bridges) - 1, 0, -1):
            if index % 2:  # the port above an upstream port is of the next switch, or the root port
                port = where.bridges[index]
                steps.append((port, port, where.bridges[index - 1]))
                nodes.setdefault(port, Node(port, NodeKind.PCI_SWITCH, port, where.numa))
        ends = [step[0] for step in steps]
        if where.numa is not None:
            ends.append(f"numa{where.numa}")
            nodes.setdefault(ends[-1], Node(ends[-1], NodeKind.NUMA, numa=where.numa))
        for (below, address, port_above), above in zip(steps, ends[1:], strict=False):
            generation, width = (told or {}).get(address, (None, None))
            if not generation or not width:
                generation, width = link(address, port_above, sys)
            gbps = speeds.pcie_gbps(generation, width)
            for pair in ((below, above), (above, below)):
                links.setdefault(pair, Link(*pair, LinkKind.PCIE, 1, generation, width, gbps))
    numbers = sorted(
        node.numa for node in nodes.values() if node.kind == NodeKind.NUMA and node.numa is not None
    )
    sockets = [_socket(a, b, sys) for a, b in itertools.permutations(numbers, 2)]
    return list(nodes.values()), [*links.values(), *sockets]


def _socket(a: int, b: int, sys: str) -> Link:
    """The link between NUMA nodes, with the distance that the firmware tells."""
    folder = Path(sys, "devices/system/node")
    online = sorted(
        int(entry.name[4:])
        for entry in (folder.iterdir() if folder.is_dir() else ())
        if re.fullmatch(r"node\d{1,6}", entry.name, re.ASCII)
    )
    words = (_read(folder / f"node{a}" / "distance") or "").split()
    weight = None
    if b in online and len(words) == len(online) and words[online.index(b)].isdigit():
        weight = int(words[online.index(b)])
    return Link(f"numa{a}", f"numa{b}", LinkKind.SOCKET, None, weight=weight)


def _cards(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Name, PCI address and folder of what a class of devices has on PCI."""
    for entry in sorted(folder.iterdir(), key=lambda path: path.name) if folder.is_dir() else ():
        bus = pci_address.normal(Path(os.path.realpath(entry / "device")).name)
        if bus is not None and (entry / "device").exists():
            yield entry.name, bus, entry


def nics(sys: str = "/sys") -> list[Node]:
    """The network cards on PCI, RDMA devices before plain interfaces, each address once."""
    found: dict[str, Node] = {}
    for name, bus, folder in _cards(Path(sys, "class/infiniband")):
        rate = re.match(r"(\d+(?:\.\d+)?) Gb/sec", _read(folder / "ports/1/rate") or "", re.ASCII)
        found.setdefault(bus, _nic(len(found), bus, name, float(rate[1]) / 8 if rate else None, sys))
    for name, bus, folder in _cards(Path(sys, "class/net")):
        speed = _read(folder / "speed") or ""
        gbps = int(speed) / 8000 if re.fullmatch(r"[1-9]\d{0,6}", speed, re.ASCII) else None
        found.setdefault(bus, _nic(len(found), bus, name, gbps, sys))
    return list(found.values())


def _nic(index: int, bus: str, label: str, gbps: float | None, sys: str) -> Node:
    return Node(f"nic{index}", NodeKind.NIC, bus, slot(bus, sys).numa, label=label, gbps=gbps)
