"""Topologies of NCCL and RCCL in XML, as ``NCCL_TOPO_DUMP_FILE`` writes and ``NCCL_TOPO_FILE`` reads them.

The file is a tree: NUMA nodes (``cpu``), PCIe switches and cards (``pci``), and in cards ``gpu`` or ``nic``
with ``net``; NVLink and xGMI hang on the GPU that they leave. Clouds publish files without ``gpu`` elements,
to which NCCL adds what it finds: their cards become nodes of kind ``PCI_DEVICE``, and nothing says which of
them is a GPU.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from collectives.topology import links as speeds
from collectives.topology import markup, pci_address
from collectives.topology.graph import (
    Host,
    Link,
    LinkKind,
    Node,
    NodeKind,
    Numa,
    PathClass,
    Topology,
)
from collectives.topology.markup import Element

VERSIONS = ("1", "2")
"""Of the format: NCCL writes 1, RCCL 2."""

SWITCH_CLASS, HOST_CLASS = "0x068000", "0x068001"
"""PCI classes by which the file tells what is at the far end of a link: an NVSwitch, an IBM CPU."""

BRIDGE_CLASS = "0x0604"

MAX_MBIT = 10_000_000
"""A NIC said to be faster than 10 Tbit/s was asked in another unit; some plugins answer in bit/s."""


def read(text: str | bytes, source: str = "NCCL topology") -> Topology:
    """A machine from the text of a file.

    GPUs are named by their ``dev``, NICs in the order of theirs.

    Raises:
        TopologyError: not well-formed; entities or document types in it; a graph file (what NCCL chose, not
            what the machine is); a version, a number or an address that is none; two of what must be one.
    """
    root = markup.parse(text, source)
    if root.tag == "graphs":
        raise root.fail(
            "this is an NCCL graph file (<graphs>: the rings and trees that a job chose), not a topology; "
            "give the file with <system> that NCCL_TOPO_DUMP_FILE names"
        )
    if root.tag != "system":
        raise root.fail(f"the root element is <{root.tag}>, where NCCL's <system> is expected")
    if root.need("version") not in VERSIONS:
        raise root.fail(f'version "{root.get("version")}" of the format, expected {" or ".join(VERSIONS)}')
    return _Reader(source).machine(root)


def gfx(gcn: str) -> str:
    """The architecture from RCCL's ``gcn``: ``gfx942`` itself, or major x 100 + minor x 10 + stepping."""
    name = gcn.partition(":")[0].removeprefix("gfx")
    return "gfx90a" if name == "910" else f"gfx{name}"


def cpu_name(cpu: Element) -> str | None:
    """What the file says of a CPU, in one line that the writer can take apart; None if it says nothing."""
    parts = [cpu.get("arch"), cpu.get("vendor")]
    for key, attribute in (("family", "familyid"), ("model", "modelid")):
        number = cpu.integer(attribute)
        parts += [None if number is None else f"{key} {number}"]
    return " ".join(part for part in parts if part) or None


class _Reader:
    """Collects the parts while it walks the tree."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.nodes: list[Node] = []
        self.gpus: list[tuple[Node, Element]] = []
        self.nics: list[tuple[int, Node, Link, int]] = []
        self.links: list[Link] = []
        self.remarks: list[str] = []
        self.buses: dict[str, int] = {}

    def machine(self, root: Element) -> Topology:
        numa = []
        for cpu in self.known(root, "cpu"):
            number = cpu.need_integer("numaid")
            name = f"numa{number}" if number >= 0 else "numa"  # -1: the system does not tell
            if any(node.name == name for node in self.nodes):
                raise cpu.fail(f"a second <cpu> with numaid={number}; expected one host, each NUMA node once")
            place = Node(name, NodeKind.NUMA, numa=number if number >= 0 else None)
            self.nodes.append(place)
            cores = self.mask(cpu)
            if number >= 0:
                numa.append(Numa(number, None, cores, cores))
            for child in self.known(cpu, "pci", "nic"):
                self.pci(child, place, place) if child.tag == "pci" else self.nic(child, None, None, place)
        self.sockets(root)
        classes = self.name_nics()
        self.gpus.sort(key=lambda entry: int(entry[0].name.removeprefix("gpu")))
        for (node, _), (after, element) in itertools.pairwise(self.gpus):
            if node.name == after.name:
                raise element.fail(f"a second <gpu> with dev={node.name.removeprefix('gpu')}")
        for gpu, element in self.gpus:
            self.fast_links(gpu, element)
        models = [cpu_name(cpu) for cpu in root.all("cpu")]
        host = Host(models[0] if models else None, tuple(numa))
        return Topology(
            [gpu for gpu, _ in self.gpus] + self.nodes, self.links, classes, self.source, self.remarks, host
        )

    def known(self, parent: Element, *tags: str) -> Iterator[Element]:
        """The children of those names; of others only a remark stays, as newer versions add some."""
        for child in parent.children:
            if child.tag in tags:
                yield child
            else:
                self.remarks.append(
                    f"line {child.line}: <{child.tag}> in <{parent.tag}> is not known, left out"
                )

    def both(self, a: str, b: str, link: Link) -> None:
        """Adds a link that goes both ways by its nature."""
        for ends in ((a, b), (b, a)):
            self.links.append(
                Link(*ends, link.kind, link.count, link.generation, link.width, link.gbps, link.weight)
            )

    def mask(self, cpu: Element) -> tuple[int, ...]:
        """The cores in ``affinity``: words of 32 bits in hexadecimal, the highest first."""
        text = (cpu.get("affinity") or "").replace(" ", "")
        if not re.fullmatch(r"[0-9a-fA-F,]{0,4096}", text):
            raise cpu.fail(f'affinity="{text}" is not a mask in hexadecimal')
        bits = 0
        for word in text.split(","):
            bits = bits << 32 | int(word or "0", 16)
        return tuple(core for core in range(bits.bit_length()) if bits >> core & 1)

    def sockets(self, root: Element) -> None:
        """NUMA nodes of one host reach each other; how fast depends on the CPU."""
        cpus = [
            (f"numa{n}" if (n := cpu.need_integer("numaid")) >= 0 else "numa", cpu) for cpu in root.all("cpu")
        ]
        for (a, cpu), (b, _) in itertools.combinations(cpus, 2):
            gbps = speeds.socket_gbps(cpu.get("vendor"), cpu.integer("familyid"), cpu.integer("modelid"))
            self.both(a, b, Link(a, b, LinkKind.SOCKET, None, gbps=gbps))

    def pci_link(self, pci: Element, name: str, above: Node) -> Link:
        speed = re.match(r"(\d+(?:\.\d+)?) ?GT/s", pci.get("link_speed") or "", re.ASCII)
        generation = speeds.pcie_generation(float(speed[1])) if speed else None
        width = pci.integer("link_width") or None
        if width is not None and not 1 <= width <= 64:
            raise pci.fail(f"link_width={width}, where 1 to 32 lanes are expected")
        gbps = speeds.pcie_gbps(generation, width)
        return Link(name, above.name, LinkKind.PCIE, 1, generation, width, gbps)

    def pci(self, pci: Element, above: Node, place: Node) -> None:
        bus = pci_address.normal(pci.need("busid"))
        if bus is None:
            raise pci.fail(f'busid="{pci.get("busid")}" is not a PCI address such as 0000:1b:00.0')
        inside = list(self.known(pci, "pci", "gpu", "nic"))
        bridge = any(child.tag == "pci" for child in inside) or (pci.get("class") or "").startswith(
            BRIDGE_CLASS
        )
        name = bus
        if bus in self.buses:
            if any(child.tag == "gpu" for child in inside):
                raise pci.fail(f"busid {bus} again; it stands on line {self.buses[bus]} already")
            name = f"{bus}#{len(self.nodes)}"  # some files give all parts of a switch one address
            self.remarks.append(
                f"line {pci.line}: {bus} again, after line {self.buses[bus]}; taken as a device of its own"
            )
        self.buses.setdefault(bus, pci.line)
        gpus = [child for child in inside if child.tag == "gpu"]
        for gpu in gpus:
            self.gpu(gpu, bus, pci, above, place, shared=len(gpus) > 1)
        for nic in (child for child in inside if child.tag == "nic"):
            self.nic(nic, bus, self.pci_link(pci, "", above), place)
        if inside and not bridge:
            return
        ids = [pci.get(name) for name in ("vendor", "device")]
        model = ":".join(part.removeprefix("0x") for part in ids if part) if all(ids) else None
        node = Node(
            name,
            NodeKind.PCI_SWITCH if bridge else NodeKind.PCI_DEVICE,
            bus,
            place.numa,
            model,
            label=None if bridge else pci.get("class"),
        )
        self.nodes.append(node)
        self.both(name, above.name, self.pci_link(pci, name, above))
        for child in inside:
            if child.tag == "pci":
                self.pci(child, node, place)

    def gpu(self, gpu: Element, bus: str, pci: Element, above: Node, place: Node, shared: bool) -> None:
        number = gpu.need_integer("dev")
        if number < 0:
            raise gpu.fail(f"dev={number}, where a device number is expected")
        gcn, sm = gpu.get("gcn"), gpu.integer("sm")
        arch = gfx(gcn) if gcn else None if sm is None else f"sm_{sm}"
        rank = gpu.integer("rank")
        name = f"gpu{number}"
        node = Node(name, NodeKind.GPU, bus, place.numa, arch=arch, parent=bus if shared else None, rank=rank)
        self.gpus.append((node, gpu))
        self.both(name, above.name, self.pci_link(pci, name, above))

    def nic(self, nic: Element, bus: str | None, link: Link | None, place: Node) -> None:
        for net in self.known(nic, "net"):
            speed = net.integer("speed")
            if speed is not None and speed > MAX_MBIT:
                self.remarks.append(
                    f"line {net.line}: a NIC of {speed} Mbit/s; its speed is taken as unknown"
                )
                speed = None
            gbps = speed / 8000 if speed and speed > 0 else None
            node = Node("", NodeKind.NIC, bus, place.numa, label=net.get("name"), gbps=gbps)
            link = link or Link("", place.name, LinkKind.PCIE, 1)
            self.nics.append((net.integer("dev") or 0, node, link, nic.line))

    def name_nics(self) -> dict[tuple[str, str], PathClass]:
        """Names NICs in the order of ``dev``. Ports of one card are as near as can be."""
        self.nics.sort(key=lambda entry: entry[0])
        ports: dict[int, list[str]] = {}
        for index, (_, node, link, card) in enumerate(self.nics):
            name = f"nic{index}"
            self.nodes.append(Node(name, node.kind, node.bus, node.numa, label=node.label, gbps=node.gbps))
            self.both(name, link.target, link)
            if node.bus is not None:
                ports.setdefault(card, []).append(name)
        pairs = (pair for names in ports.values() for pair in itertools.permutations(names, 2))
        return dict.fromkeys(pairs, PathClass.PIX)

    def fast_links(self, gpu: Node, element: Element) -> None:
        by_bus = {node.bus: node.name for node, _ in self.gpus}
        for link in self.known(element, "nvlink", "xgmi", "c2c"):
            count = link.need_integer("count")
            if count < 0:
                raise link.fail(f"{count} links")
            if link.tag == "c2c":
                mbytes = link.integer("bw")
                self.to_host(gpu, count, mbytes * count / 1000 if mbytes else None)
                continue
            kind = LinkKind(link.tag)
            each = (speeds.nvlink_gbps if kind == LinkKind.NVLINK else speeds.xgmi_gbps)(gpu.arch)
            gbps = None if each is None else each * count
            generation = speeds.nvlink_generation(gpu.arch) if kind == LinkKind.NVLINK else None
            made = Link(gpu.name, "", kind, count, generation, gbps=gbps)
            address, far = pci_address.normal(link.need("target")), (link.get("tclass") or "").lower()
            if far.startswith(SWITCH_CLASS):
                self.both(gpu.name, self.switch(address), made)
            elif far.startswith(HOST_CLASS):
                self.to_host(gpu, count, gbps)
            elif address == gpu.bus:
                self.remarks.append(
                    f"line {link.line}: {gpu.name} is said to be joined by {count} links to itself, left out"
                )
            elif address in by_bus:
                self.links.append(Link(gpu.name, by_bus[address], kind, count, generation, gbps=gbps))
            else:
                self.remarks.append(
                    f"line {link.line}: {count} links of {gpu.name} lead to {link.get('target')}, "
                    "which is not in the file, left out"
                )

    def switch(self, address: str | None) -> str:
        """The name of the NVSwitch at an address; those without one are one."""
        found = [node for node in self.nodes if node.kind == NodeKind.NVSWITCH]
        for node in found:
            if node.bus == address:
                return node.name
        node = Node(f"nvswitch{len(found)}", NodeKind.NVSWITCH, address)
        self.nodes.append(node)
        return node.name

    def to_host(self, gpu: Node, count: int, gbps: float | None) -> None:
        """A coherent link to the GPU's own NUMA node."""
        name = "numa" if gpu.numa is None else f"numa{gpu.numa}"
        self.both(gpu.name, name, Link(gpu.name, name, LinkKind.C2C, count, gbps=gbps))
