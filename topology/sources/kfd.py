"""The topology that Linux's AMD compute driver (KFD) shows in sysfs, as a folder or joined to one text.

``nodes/N/properties`` describes one CPU or GPU, ``nodes/N/io_links/K/properties`` one way to a neighbour and
``nodes/N/p2p_links/K/properties`` one that leads through other nodes. In the joined text each file follows a
line ``### /sys/class/kfd/kfd/topology/nodes/N/...``. A card that is split (CPX and so on) is several nodes:
they share ``unique_id``, and the last digit of their PCI address counts them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collectives.topology.graph import Link, LinkKind, Node, NodeKind, Topology, TopologyError
from collectives.topology.links import pcie_gbps
from collectives.topology.sources.amd_pairs import xgmi_link

ROOT = "/sys/class/kfd/kfd/topology"

_HEAD = re.compile(r"^### (.*)$")
_FILE = re.compile(r"(?:^|/)nodes/(\d{1,6})/(properties|name|gpu_id|(?:io|p2p)_links/(\d{1,6})/properties)$")
_PCIE, _XGMI = 2, 11  # of the driver's link types, the two between devices
_LANE_MB = {1: 250, 2: 500, 3: 1000, 4: 2000, 5: 4000, 6: 8000}  # what the driver reckons with, by generation


@dataclass(frozen=True)
class _Text:
    """A file: its place for errors, the line before its first, and what is in it."""

    source: str
    offset: int
    text: str


@dataclass(frozen=True)
class _Properties:
    """The numbers of one file."""

    values: Mapping[str, int]
    place: _Text

    def need(self, key: str) -> int:
        if key not in self.values:
            raise TopologyError(f"no {key}: truncated?", self.place.source, self.place.offset or None)
        return self.values[key]


@dataclass
class _Node:
    properties: _Properties
    links: list[_Properties]
    detours: list[_Properties]
    name: str = ""


def _properties(file: _Text) -> _Properties:
    values: dict[str, int] = {}
    for number, line in enumerate(file.text.splitlines(), file.offset + 1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or not re.fullmatch(r"-?[0-9]{1,20}", words[1]):
            raise TopologyError(f"{line.strip()[:60]!r}: expected a name and a number", file.source, number)
        if values.get(words[0], int(words[1])) != int(words[1]):
            raise TopologyError(f"{words[0]} is told twice, with different numbers", file.source, number)
        values[words[0]] = int(words[1])
    return _Properties(values, file)


def read(root: str | Path = ROOT, numa: Sequence[int] = ()) -> Topology:
    """The topology under a folder such as :data:`ROOT`.

    Nodes that the system keeps from this process (containers) are left out, with a remark.

    Args:
        root: the folder.
        numa: the numbers of the host's NUMA nodes with cores, which are the driver's CPUs in their order.
            Where there are not as many, the driver's CPUs count from 0.

    Raises:
        TopologyError: there is no such folder, it holds no nodes, or files that make no sense.
    """
    base = Path(root) / "nodes"
    if not base.is_dir():
        raise TopologyError("no folder 'nodes' in it: expected the KFD topology of amdgpu", str(root))
    files, hidden = {}, set()
    wanted = ("*/properties", "*/name", "*/io_links/*/properties", "*/p2p_links/*/properties")
    for path in sorted(path for pattern in wanted for path in base.glob(pattern)):
        key = f"nodes/{path.relative_to(base).as_posix()}"
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = ""
        if not text.strip() and path.name == "properties":
            hidden.add(key.split("/")[1])
        else:
            files[key] = _Text(str(path), 0, text)
    return _build(
        {k: v for k, v in files.items() if k.split("/")[1] not in hidden}, str(root), len(hidden), numa
    )


def read_text(text: str, source: str = "") -> Topology:
    """The topology in the files of such a folder joined to one text.

    Raises:
        TopologyError: text before the first ``###`` line, a file twice or of no KFD topology, or truncated.
    """
    files: dict[str, _Text] = {}
    key, start, body = "", 0, list[str]()

    def close() -> None:
        if key:
            files[key] = _Text(source, start, "\n".join(body))

    for number, line in enumerate(text.splitlines(), 1):
        head = _HEAD.match(line)
        if head:
            close()
            match = _FILE.search(head[1].strip())
            if not match:
                raise TopologyError(f"{head[1][:80]!r} is no file of a KFD topology", source, number)
            key, start, body = f"nodes/{match[1]}/{match[2]}", number, []
            if key in files:
                raise TopologyError(f"{key} is there twice", source, number)
        elif key:
            body.append(line)
        elif line.strip():
            raise TopologyError("expected a line '### /sys/class/kfd/kfd/topology/nodes/...'", source, number)
    close()
    return _build(files, source, 0, ())


def _collect(files: Mapping[str, _Text], source: str, hidden: int) -> dict[int, _Node]:
    nodes: dict[int, _Node] = {}
    for key, file in files.items():
        match = _FILE.match(key)
        if match and match[2] == "properties":
            nodes[int(match[1])] = _Node(_properties(file), [], [])
    if not nodes:
        raise TopologyError("no node: expected nodes/0/properties and so on", source)
    for key, file in files.items():
        match = _FILE.match(key)
        if not match or match[2] in ("properties", "gpu_id"):
            continue
        node = nodes.get(int(match[1]))
        if node is None:
            raise TopologyError(
                f"{key} without nodes/{match[1]}/properties", file.source, file.offset or None
            )
        if match[2] == "name":
            node.name = file.text.strip()
        else:
            (node.links if match[2].startswith("io") else node.detours).append(_properties(file))
    for number, node in nodes.items():
        declared = node.properties.values.get("io_links_count")
        if declared is not None and len(node.links) < declared and not hidden:
            place = node.properties.place
            raise TopologyError(
                f"node {number} has {len(node.links)} of its {declared} io_links: truncated?",
                place.source,
                place.offset or None,
            )
    return dict(sorted(nodes.items()))


def _address(node: _Node) -> str | None:
    location, domain = node.properties.values.get("location_id", 0), node.properties.values.get("domain", 0)
    if location <= 0 or domain < 0:
        return None
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7:x}"


def _arch(node: _Node) -> str | None:
    version = node.properties.values.get("gfx_target_version", 0)
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version > 0 else None


def _parents(gpus: Mapping[int, _Node]) -> dict[int, str]:
    """For each node that is a part of a card, the address of the card: its first function."""
    cards = defaultdict(list)
    for number, node in gpus.items():
        address = _address(node)
        if address:
            identity = node.properties.values.get("unique_id", 0)
            cards[address.rpartition(".")[0], identity].append((number, address))
    return {
        number: f"{slot}.0"
        for (slot, _), parts in cards.items()
        if len({address for _, address in parts}) > 1
        for number, _ in parts
    }


def _usable(megabytes: int) -> float | None:
    """Usable GB/s of a PCIe link that the driver gives so many MB/s: lanes times the generation's rate."""
    for width in (16, 8, 4, 2, 1):
        for generation, rate in _LANE_MB.items():
            if rate * width == megabytes:
                return pcie_gbps(generation, width)
    return None


def _build(files: Mapping[str, _Text], source: str, hidden: int, numbers: Sequence[int]) -> Topology:
    nodes = _collect(files, source, hidden)
    cpus = [n for n, node in nodes.items() if node.properties.need("cpu_cores_count") > 0]
    gpus = {n: node for n, node in nodes.items() if node.properties.need("simd_count") > 0}
    remarks = [f"{hidden} nodes are kept from this process"] if hidden else []
    parents, hives = _parents(gpus), _hives(gpus)
    if len(numbers) != len(cpus):
        numbers = range(len(cpus))
    numa = {n: Node(f"numa{i}", NodeKind.NUMA, numa=i) for i, n in zip(numbers, cpus, strict=True)}
    devices: dict[int, Node] = {}
    for index, (n, node) in enumerate(gpus.items()):
        near = _nearest(n, node, cpus)
        model = None if node.name in ("", "ip discovery") else node.name
        devices[n] = Node(
            f"gpu{index}",
            NodeKind.GPU,
            bus=_address(node),
            numa=None if near is None else numa[near].numa,
            model=model,
            arch=_arch(node),
            group=hives.get(node.properties.values.get("hive_id", 0)),
            parent=parents.get(n),
        )
    links: list[Link] = []
    for n, node in nodes.items():
        for link in [*node.links, *node.detours]:
            left, to = link.need("node_from"), link.need("node_to")
            if left != n:
                remarks.append(f"a link filed under node {n} says that it leaves node {left}: left out")
            elif to not in nodes:
                remarks.append(f"a link from node {n} leads to node {to}, which is not there: left out")
            else:
                found = _link(link, devices.get(n), devices.get(to), numa.get(n), numa.get(to), node.detours)
                if found:
                    links.append(found)
    return Topology([*devices.values(), *numa.values()], links, source=source, remarks=remarks)


def _hives(gpus: Mapping[int, _Node]) -> dict[int, str]:
    """Names for hives in the order of devices: their ids are as good as serial numbers."""
    ids = [node.properties.values.get("hive_id", 0) for node in gpus.values()]
    return {hive: f"hive{i}" for i, hive in enumerate(dict.fromkeys(hive for hive in ids if hive))}


def _nearest(number: int, node: _Node, cpus: Sequence[int]) -> int | None:
    if number in cpus:
        return number
    ways = [
        (link.need("weight"), link.need("node_to"))
        for link in node.links
        if link.need("node_from") == number and link.need("node_to") in cpus
    ]
    return min(ways)[1] if ways else None


def _link(
    link: _Properties,
    gpu: Node | None,
    other: Node | None,
    numa: Node | None,
    far: Node | None,
    detours: Sequence[_Properties],
) -> Link | None:
    """What the driver calls a link, in the graph's terms; None for what is no link of its own."""
    kind, weight = link.need("type"), link.need("weight")
    if weight < 0:
        raise TopologyError(
            f"weight {weight}: expected 0 or more", link.place.source, link.place.offset or None
        )
    least, most = link.values.get("min_bandwidth"), link.values.get("max_bandwidth")
    if gpu and other:
        if kind == _XGMI:
            return xgmi_link(gpu, other, weight, least, most)
        return Link(gpu.name, other.name, LinkKind.PCIE, None, weight=weight) if kind == _PCIE else None
    if link in detours:  # to a CPU that is another's: it is what the graph finds by itself
        return None
    if numa and far:
        return Link(numa.name, far.name, LinkKind.SOCKET, None, weight=weight)
    ends = (gpu or numa, other or far)
    if ends[0] is None or ends[1] is None:
        return None
    if kind == _XGMI:
        return Link(ends[0].name, ends[1].name, LinkKind.C2C, None, weight=weight)
    if kind == _PCIE:
        return Link(ends[0].name, ends[1].name, LinkKind.PCIE, gbps=_usable(most or 0), weight=weight)
    return None
