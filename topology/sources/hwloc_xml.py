"""XML of hwloc (``lstopo machine.xml``), versions 1 to 3: NUMA nodes, caches, PCI tree, NVLink, xGMI.

GPUs are what a CUDA, NVML or ROCm SMI backend of hwloc has named, or else NVIDIA's display controllers and
AMD's accelerators by their PCI class. PCIe speeds are those of the moment when hwloc looked, and idle GPUs
slow their links down. Bridges are merged to whole switches: of a root port and the pairs of ports below it,
each upstream port stands for its switch, the root port for the CPU.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from collectives.topology import links as speeds
from collectives.topology import markup, pci_address
from collectives.topology.graph import Host, Link, LinkKind, Node, NodeKind, Numa, Topology
from collectives.topology.markup import Element
from collectives.topology.sources.hwloc_distances import Distances, bits, matrices

_IO = ("Bridge", "PCIDev", "OSDev")
_COMPUTE = ("cuda", "nvml", "rsmi")
_BACKENDS = re.compile(rf"({'|'.join(_COMPUTE)})(\d{{1,5}})", re.ASCII)


@dataclass
class _Card:
    """A PCI device: class and vendor by number, the bridges above it from the root down, its NUMA node."""

    element: Element
    bus: str
    kind: str
    vendor: str
    bridges: list[Element]
    numa: int | None


def read(text: str | bytes, source: str = "hwloc") -> Topology:
    """A machine from the text of a file.

    GPUs are numbered as CUDA does, else NVML or ROCm SMI, else by PCI address.

    Raises:
        TopologyError: not well-formed; entities declared; no hwloc topology; a number, a set or an address
            that is none; a matrix of distances that does not fit its objects.
    """
    root = markup.parse(text, source, doctype=True)
    if root.tag != "topology":
        raise root.fail(f"the root element is <{root.tag}>, where hwloc's <topology> is expected")
    version = root.get("version") or "1"
    if version.partition(".")[0] not in ("1", "2", "3"):
        raise root.fail(f'version "{version}" of the format, expected 1, 2 or 3')
    machine = next(
        (child for child in root.all("object") if child.get("type") in ("Machine", "System")), None
    )
    if machine is None:
        raise root.fail('no <object type="Machine"> in it')
    return _Reader(root, machine, source).topology()


def info(element: Element, name: str) -> str | None:
    """The value of an ``<info>`` of an object; None if there is none."""
    return next((child.get("value") for child in element.all("info") if child.get("name") == name), None)


def usable(raw: float | None) -> float | None:
    """Usable GB/s of a PCIe link, of the GB/s on its wires that hwloc tells; None if no PCIe has so many."""
    for (generation, rate), width in itertools.product(speeds.PCIE_RATES.items(), (1, 2, 4, 8, 16, 32)):
        wire = rate * width / 8 * (0.8 if generation < 3 else 128 / 130)
        if raw and abs(raw - wire) < 0.01 * wire:
            return speeds.pcie_gbps(generation, width)
    return None


class _Reader:
    def __init__(self, root: Element, machine: Element, source: str) -> None:
        self.root, self.machine, self.source = root, machine, source
        self.objects = [element for element in machine.walk() if element.tag == "object"]
        self.numa = [element for element in self.objects if element.get("type") == "NUMANode"]
        self.numbers = [element.need_integer("os_index") for element in self.numa]
        self.packages = [o for o in self.objects if o.get("type") in ("Package", "Socket")]
        self.matrices: list[Distances] = matrices(root)
        self.links: list[Link] = []

    def topology(self) -> Topology:
        cards: list[_Card] = []
        self.cards(self.machine, [], None, cards)
        gpus = self.gpus(cards)
        nodes = list(gpus.values())
        ends = {id(card.element): node.name for card, node in self.pairs(cards, gpus)}
        nics = [card for card in cards if card.kind.startswith("02") and card.bus not in gpus]
        for index, card in enumerate(nics):
            node = Node(f"nic{index}", NodeKind.NIC, card.bus, card.numa, label=self.nic_label(card.element))
            nodes.append(node)
            ends[id(card.element)] = node.name
        switches = [card for card in cards if card.element.get("subtype") == "NVSwitch"]
        nodes += [
            Node(f"nvswitch{index}", NodeKind.NVSWITCH, card.bus, card.numa)
            for index, card in enumerate(switches)
        ]
        nodes += [Node(f"numa{number}", NodeKind.NUMA, numa=number) for number in self.numbers]
        self.pci([card for card in cards if id(card.element) in ends], ends, nodes)
        ends |= {id(card.element): f"nvswitch{index}" for index, card in enumerate(switches)}
        self.sockets()
        self.fast_links(ends, {node.name: node.arch for node in nodes})
        return Topology(nodes, self.links, source=self.source, host=self.host())

    def cards(self, element: Element, bridges: list[Element], numa: int | None, found: list[_Card]) -> None:
        """Collects PCI devices below an object."""
        kind = element.get("type")
        if kind not in _IO:
            numa, bridges = self.numa_of(element, numa), []
        elif kind == "Bridge" and (element.get("bridge_type") or "").startswith("1-"):
            bridges = [*bridges, element]
        elif kind == "PCIDev":
            bus = pci_address.normal(element.need("pci_busid"))
            if bus is None:
                raise element.fail(f'pci_busid="{element.get("pci_busid")}" is not a PCI address')
            ids = re.match(r"([0-9a-f]{4}) \[([0-9a-f]{4}):[0-9a-f]{4}\]", element.get("pci_type") or "")
            found.append(_Card(element, bus, ids[1] if ids else "", ids[2] if ids else "", bridges, numa))
        for child in element.all("object"):
            self.cards(child, bridges, numa, found)

    def numa_of(self, element: Element, above: int | None) -> int | None:
        """The one NUMA node of an object that is no I/O; what is above it if it does not tell."""
        if element.get("type") == "NUMANode":
            return element.need_integer("os_index")
        nodeset = bits(element, "nodeset")
        if nodeset is None:
            return above if len(self.numbers) != 1 else self.numbers[0]
        inside = [number for number in self.numbers if nodeset >> number & 1]
        return inside[0] if len(inside) == 1 else None

    def backends(self, card: _Card) -> dict[str, tuple[int, Element]]:
        """What compute backends call a device: number and object by backend."""
        found: dict[str, tuple[int, Element]] = {}
        for device in card.element.all("object"):
            if name := _BACKENDS.fullmatch(device.get("name") or ""):
                found.setdefault(name[1], (int(name[2]), device))
        return found

    def gpus(self, cards: list[_Card]) -> dict[str, Node]:
        """The GPUs by PCI address, in the order of their numbers."""
        named = {card.bus: self.backends(card) for card in cards}
        found = [
            card
            for card in cards
            if named[card.bus]
            or (card.vendor == "10de" and card.kind.startswith("03"))
            or (card.vendor == "1002" and card.kind in ("0380", "1200"))
        ]
        found.sort(key=lambda card: card.bus)
        number = {card.bus: index for index, card in enumerate(found)}
        for backend in _COMPUTE:
            told = {card.bus: named[card.bus][backend][0] for card in found if backend in named[card.bus]}
            if len(told) == len(found) and len(set(told.values())) == len(found):
                number = told
                break
        nodes = {}
        for card in sorted(found, key=lambda card: number[card.bus]):
            models = (info(device, "GPUModel") for _, device in named[card.bus].values())
            model = next((model for model in models if model), info(card.element, "PCIDevice"))
            name = f"gpu{number[card.bus]}"
            nodes[card.bus] = Node(name, NodeKind.GPU, card.bus, card.numa, model, speeds.arch_of(model))
        return nodes

    def pairs(self, cards: list[_Card], gpus: dict[str, Node]) -> list[tuple[_Card, Node]]:
        return [(card, gpus[card.bus]) for card in cards if card.bus in gpus]

    def nic_label(self, element: Element) -> str | None:
        """A NIC's name as verbs know it, else as a network interface."""
        named = [d for d in element.all("object") if d.get("type") == "OSDev" and d.get("name")]
        new = (self.root.get("version") or "1").startswith("3")  # a number in 1 and 2, bits in 3
        verbs = [
            d
            for d in named
            if (int(d.integer("osdev_type") or 0) & 32 if new else d.get("osdev_type") == "3")
        ]
        return next((device.get("name") for device in verbs + named), None)

    def pci(self, cards: list[_Card], ends: dict[int, str], nodes: list[Node]) -> None:
        """Joins devices, the switches above them and NUMA nodes."""
        done: set[str] = set()
        for card in cards:
            steps = [ends[id(card.element)]]
            wires = [self.narrower(card.element, card.bridges[-1:])]
            for bridge in card.bridges[1::2][::-1]:
                bus = pci_address.normal(bridge.need("pci_busid"))
                if bus is None:
                    raise bridge.fail(f'pci_busid="{bridge.get("pci_busid")}" is not a PCI address')
                steps.append(bus)
                wires.append(self.narrower(bridge, []))
                if bus not in done and not any(node.name == bus for node in nodes):
                    nodes.append(Node(bus, NodeKind.PCI_SWITCH, bus, card.numa))
            if card.numa is not None:
                steps.append(f"numa{card.numa}")
            for (below, above), gbps in zip(itertools.pairwise(steps), wires, strict=False):
                if below not in done:
                    done.add(below)
                    self.links += [
                        Link(a, b, LinkKind.PCIE, 1, gbps=gbps) for a, b in ((below, above), (above, below))
                    ]

    def narrower(self, element: Element, others: list[Element]) -> float | None:
        """Usable GB/s of the narrowest of some ports."""
        found = []
        for port in (element, *others):
            text = port.get("pci_link_speed") or "0"
            if not re.fullmatch(r"\d{1,6}(\.\d{1,12})?", text, re.ASCII):
                raise port.fail(f'pci_link_speed="{text}" is not a number of GB/s')
            found.append(usable(float(text)))
        return min((gbps for gbps in found if gbps is not None), default=None)

    def latencies(self) -> dict[tuple[int, int], int]:
        """Relative distances of NUMA nodes, 10 being local, by their numbers."""
        for matrix in self.matrices:
            numbers = [
                dict(zip(map(id, self.numa), self.numbers, strict=True)).get(id(o)) for o in matrix.objects
            ]
            if matrix.latency and numbers and None not in numbers:
                cells = zip(itertools.product(numbers, repeat=2), matrix.values, strict=True)
                return {(a, b): value for (a, b), value in cells if a is not None and b is not None}
        return {}

    def sockets(self) -> None:
        package = self.packages[0] if self.packages else self.machine
        family, model = (info(package, f"CPU{name}Number") or "" for name in ("Family", "Model"))
        digits = [int(text) if re.fullmatch(r"\d{1,6}", text, re.ASCII) else None for text in (family, model)]
        gbps = speeds.socket_gbps(info(package, "CPUVendor"), *digits)
        told = self.latencies()
        for a, b in itertools.permutations(self.numbers, 2):
            ends = f"numa{a}", f"numa{b}"
            self.links.append(Link(*ends, LinkKind.SOCKET, None, gbps=gbps, weight=told.get((a, b))))

    def fast_links(self, ends: dict[int, str], archs: dict[str, str | None]) -> None:
        names = dict(ends)
        for element in self.objects:
            if id(element) in ends:
                names |= {id(device): ends[id(element)] for device in element.all("object")}
        for package in self.packages:
            if (numa := self.numa_of(package, None)) is not None:
                names[id(package)] = f"numa{numa}"
        for matrix in self.matrices:
            kind = {"NVLinkBandwidth": LinkKind.NVLINK, "XGMIBandwidth": LinkKind.XGMI}.get(matrix.name or "")
            if kind is None:
                continue
            for (a, b), mbytes in zip(
                itertools.product(matrix.objects, repeat=2), matrix.values, strict=True
            ):
                here, there = names.get(id(a)), names.get(id(b))
                if here and there and here != there and mbytes:
                    self.links.append(self.fast(here, there, kind, mbytes, archs))

    def fast(self, here: str, there: str, kind: LinkKind, mbytes: int, archs: dict[str, str | None]) -> Link:
        """A bundle of links of so many MB/s on the wire, by what hwloc counts for one."""
        arch = archs.get(here) or archs.get(there)
        if kind == LinkKind.NVLINK:
            one = {"sm_60": 20000, "sm_70": 25000, "sm_80": 25000, "sm_86": 25000, "sm_90": 25000}.get(
                arch or ""
            )
            each, generation = speeds.nvlink_gbps(arch), speeds.nvlink_generation(arch)
        else:
            one, each, generation = None, speeds.xgmi_gbps(arch), None
        count = mbytes // one if one and mbytes % one == 0 else None
        gbps = None if count is None or each is None else count * each
        if "numa" in (here[:4], there[:4]):
            kind = LinkKind.C2C
        return Link(here, there, kind, count, generation, gbps=gbps)

    def host(self) -> Host:
        allowed = bits(self.machine, "allowed_cpuset")
        told = self.latencies()

        def cores(mask: int | None, within: int | None = None) -> tuple[int, ...]:
            mask = (mask or 0) & (-1 if within is None else within)
            return tuple(core for core in range(mask.bit_length()) if mask >> core & 1)

        numa = []
        for element, number in zip(self.numa, self.numbers, strict=True):
            mask = bits(element, "cpuset") or 0
            near = [p for p in self.packages if (bits(p, "cpuset") or 0) & mask]
            package = near[0].integer("os_index") if len(near) == 1 else None
            distances = {b: value for (a, b), value in told.items() if a == number}
            every = cores(bits(element, "complete_cpuset") or mask)
            numa.append(Numa(number, package, cores(mask, allowed), every, distances))
        caches = [
            o
            for o in self.objects
            if o.get("type") == "L3Cache" or (o.get("type") == "Cache" and o.get("depth") == "3")
        ]
        groups = tuple((cores(bits(o, "cpuset"), allowed), o.integer("cache_size") or None) for o in caches)
        model = next((m for p in (*self.packages, self.machine) if (m := info(p, "CPUModel"))), None)
        return Host(model, tuple(numa), tuple(group for group in groups if group[0]))
