"""A topology as NCCL's or RCCL's XML, for ``NCCL_TOPO_FILE``.

Only what is known is written: NCCL asks the machine on which it runs for every attribute that is missing.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from collectives.topology import links as speeds
from collectives.topology import pci_address
from collectives.topology.graph import Host, Link, LinkKind, Node, NodeKind, Topology, TopologyError
from collectives.topology.sources.nccl_xml import SWITCH_CLASS

NVIDIA_GPU, AMD_GPU = "0x030200", "0x038000"
BRIDGE_CLASS, NIC_CLASS = "0x060400", "0x020700"
UNKNOWN_SWITCH = "fffffff:ffff:ff"
"""What NCCL itself writes where the driver does not tell which switch is at the far end."""

_CARDS = (NodeKind.GPU, NodeKind.NIC, NodeKind.PCI_DEVICE)


def write(topology: Topology) -> str:
    """The text of a file that :func:`nccl_xml.read` reads back as the same machine.

    Version 2 (RCCL's) where a device is AMD's, else 1. Path classes which somebody told, peer access and
    remarks have no place in the format. Devices that hang on no NUMA node stand under one of number -1.

    Raises:
        TopologyError: a GPU or a card without a PCI address, by which NCCL names them; a link to a device
            without one.
    """
    return _Writer(topology).text()


def _amd(node: Node) -> bool:
    return (node.arch or "").startswith("gfx")


def _class(gpu: Node) -> str:
    return AMD_GPU if _amd(gpu) else NVIDIA_GPU


def _mask(cores: tuple[int, ...]) -> str:
    """Cores as words of 32 bits in hexadecimal, the highest first."""
    bits = sum(1 << core for core in cores)
    words = max(1, -(-bits.bit_length() // 32))
    return ",".join(f"{bits >> 32 * word & 0xFFFFFFFF:08x}" for word in reversed(range(words)))


class _Writer:
    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.placed: set[str] = set()
        amd = any(_amd(gpu) for gpu in topology.gpus)
        self.root = ET.Element("system", version="2" if amd else "1")
        self.net = 0

    def text(self) -> str:
        places: dict[int, ET.Element] = {}
        for place in self.topology.of_kind(NodeKind.NUMA):
            cpu = places[-1 if place.numa is None else place.numa] = self.cpu(place.numa)
            self.below(place.name, cpu)
        for node in self.topology.nodes:
            if node.kind in _CARDS and node.name not in self.placed:
                number = -1 if node.numa is None else node.numa
                if number not in places:
                    places[number] = self.cpu(node.numa)
                self.card([node], None, places[number])
        ET.indent(self.root)
        return ET.tostring(self.root, encoding="unicode") + "\n"

    def cpu(self, number: int | None) -> ET.Element:
        host = self.topology.host or Host()
        cpu = ET.SubElement(self.root, "cpu", numaid=str(-1 if number is None else number))
        cores = next((node.all_cores or node.cores for node in host.numa if node.number == number), ())
        if cores:
            cpu.set("affinity", _mask(cores))
        for name, pattern in (
            ("arch", r"\b(x86_64|arm64|ppc64)\b"),
            ("vendor", r"\b(GenuineIntel|AuthenticAMD)\b"),
            ("familyid", r"\bfamily (\d+)"),
            ("modelid", r"\bmodel (\d+)"),
        ):
            if found := re.search(pattern, host.model or ""):
                cpu.set(name, found[1])
        return cpu

    def below(self, above: str, parent: ET.Element) -> None:
        """Writes what hangs on a node by PCIe and was not written yet, ports of one card together."""
        cards: dict[str, list[tuple[Node, Link]]] = {}
        for node in self.topology.nodes:
            link = next(
                (x for x in self.topology.links_between(node.name, above) if x.kind == LinkKind.PCIE), None
            )
            if link is None or node.name in self.placed or node.kind == NodeKind.NUMA:
                continue
            if node.kind == NodeKind.PCI_SWITCH:
                self.placed.add(node.name)
                pci = self.pci(node, link, BRIDGE_CLASS, parent)
                self.below(node.name, pci)
            elif node.kind in _CARDS:
                cards.setdefault(node.bus or node.name, []).append((node, link))
        for entries in cards.values():
            self.card([node for node, _ in entries], entries[0][1], parent)

    def pci(self, node: Node, link: Link | None, kind: str | None, parent: ET.Element) -> ET.Element:
        address = pci_address.normal(node.bus)
        if address is None:
            raise TopologyError(
                f"{node.name} has no PCI address, by which NCCL names devices; read the machine from a "
                "source that tells it (NVML, hwloc)",
                self.topology.source,
            )
        pci = ET.SubElement(parent, "pci", busid=address)
        if kind:
            pci.set("class", kind)
        if node.model and re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{4}", node.model):
            pci.set("vendor", f"0x{node.model[:4]}")
            pci.set("device", f"0x{node.model[5:]}")
        if link and link.generation in speeds.PCIE_RATES:
            pci.set("link_speed", f"{speeds.PCIE_RATES[link.generation]} GT/s PCIe")
        if link and link.width:
            pci.set("link_width", str(link.width))
        return pci

    def card(self, nodes: list[Node], link: Link | None, parent: ET.Element) -> None:
        """Writes the devices of one card: partitions of a GPU, ports of a NIC, or one of unknown kind."""
        self.placed.update(node.name for node in nodes)
        first = nodes[0]
        if first.kind == NodeKind.NIC and first.bus is None:
            pci = parent
        else:
            kinds = {NodeKind.GPU: _class(first), NodeKind.NIC: NIC_CLASS}
            pci = self.pci(first, link, kinds.get(first.kind, first.label), parent)
        nics = [node for node in nodes if node.kind == NodeKind.NIC]
        for gpu in (node for node in nodes if node.kind == NodeKind.GPU):
            self.gpu(gpu, pci)
        nic = ET.SubElement(pci, "nic") if nics else None
        for port in nics:
            assert nic is not None
            net = ET.SubElement(nic, "net", name=port.label or port.name, dev=self.number(port))
            if port.gbps is not None:
                net.set("speed", str(round(port.gbps * 8000)))

    def number(self, node: Node) -> str:
        """The device's number among its like."""
        return str(self.topology.of_kind(node.kind).index(node))

    def gpu(self, gpu: Node, pci: ET.Element) -> None:
        digits = re.fullmatch(r"gpu(\d+)", gpu.name)
        element = ET.SubElement(pci, "gpu", dev=digits[1] if digits else self.number(gpu))
        if (gpu.arch or "").startswith("sm_"):
            element.set("sm", (gpu.arch or "").removeprefix("sm_"))
        elif gpu.arch:
            element.set("gcn", gpu.arch)
        if gpu.rank is not None:
            element.set("rank", str(gpu.rank))
        for link in self.topology.links_from(gpu.name):
            if link.kind in (LinkKind.NVLINK, LinkKind.XGMI, LinkKind.C2C):
                self.fast(link, element)

    def fast(self, link: Link, element: ET.Element) -> None:
        target = self.topology.node(link.target)
        if link.count is None:
            return  # NCCL asks the driver
        count = str(link.count)
        if link.kind == LinkKind.C2C:
            mbytes = round(link.gbps * 1000 / link.count) if link.gbps and link.count else 0
            ET.SubElement(element, "c2c", count=count, bw=str(mbytes))
            return
        switch = target.kind == NodeKind.NVSWITCH
        if not switch and target.bus is None:
            raise TopologyError(f"{target.name} has no PCI address", self.topology.source)
        far = {"target": target.bus or UNKNOWN_SWITCH, "count": count}
        ET.SubElement(element, link.kind.value, far, tclass=SWITCH_CLASS if switch else _class(target))
