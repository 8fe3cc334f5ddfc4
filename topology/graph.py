"""A machine as a graph: devices, switches, NUMA nodes and NICs, and what joins them.

Every source (``collectives.topology.sources``) returns a :class:`Topology`; whatever asks, asks only this.
Two kinds of knowledge go in, as sources have one or the other: links (edges of the graph: NVLink, xGMI, the
PCIe tree, sockets) and path classes that somebody else has worked out for pairs (``nvidia-smi topo -m``).
What a source does not know is None and stays unknown: nothing here guesses.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import networkx as nx


class TopologyError(ValueError):
    """A description that cannot be used; the text says where, and what was expected.

    Attributes:
        source: the file, command or folder.
        line: in it, from 1; None where lines mean nothing.
    """

    def __init__(self, message: str, source: str = "", line: int | None = None) -> None:
        place = ":".join(str(part) for part in (source, line) if part not in ("", None))
        super().__init__(f"{place}: {message}" if place else message)
        self.source, self.line = source, line


class NodeKind(str, enum.Enum):
    """What a node of the graph is."""

    GPU = "gpu"
    NVSWITCH = "nvswitch"
    PCI_SWITCH = "pci_switch"  # a whole PCIe switch, by the address of its upstream port
    PCI_DEVICE = "pci_device"  # a card of which the source does not say what it is
    NUMA = "numa"  # a NUMA node's cores, memory and host bridges
    NIC = "nic"


class LinkKind(str, enum.Enum):
    """What a link is made of."""

    NVLINK = "nvlink"
    XGMI = "xgmi"
    C2C = "c2c"  # a coherent link between a GPU and its CPU
    PCIE = "pcie"
    SOCKET = "socket"  # between NUMA nodes


FAST = frozenset({LinkKind.NVLINK, LinkKind.XGMI})
"""Links over which devices reach each other's memory without the host."""


class PathClass(enum.IntEnum):
    """How two nodes reach each other, best first; the words are those of ``nvidia-smi topo -m``."""

    SELF = 0
    LINK = 1  # NVLink or xGMI, directly or through an NVSwitch
    PIX = 2  # at most one PCIe bridge
    PXB = 3  # several PCIe bridges, no host bridge
    PHB = 4  # a PCIe host bridge, within one NUMA node
    NODE = 5  # the interconnect between host bridges of one NUMA node
    SYS = 6  # the interconnect between NUMA nodes
    UNKNOWN = 7


@dataclass(frozen=True)
class Node:
    """One node.

    Attributes:
        name: unique in its topology: ``gpu0``, ``nic1``, ``numa0``, a PCI address for a bridge.
        kind: what it is.
        bus: PCI address as ``0000:1b:00.0``; None if unknown.
        numa: the NUMA node it hangs on (a NUMA node: its own number); None if unknown.
        model: the product's name; None if unknown.
        arch: ``sm_90`` or ``gfx942``; None if unknown.
        label: what the system calls it, such as ``mlx5_0``.
        group: what the device shares with others: NVLink fabric clique, xGMI hive; None if unknown.
        parent: ``bus`` of the physical card or die package that it is a partition of; None if it is whole.
        rank: the rank that the recorded job gave the device; None if the source tells none.
        gbps: of a NIC, GB/s of its port per direction, not less what protocols cost; None if unknown.
    """

    name: str
    kind: NodeKind
    bus: str | None = None
    numa: int | None = None
    model: str | None = None
    arch: str | None = None
    label: str | None = None
    group: str | None = None
    parent: str | None = None
    rank: int | None = None
    gbps: float | None = None


@dataclass(frozen=True)
class Link:
    """One direction of a link, or of a bundle of equal ones.

    Attributes:
        source, target: names of nodes.
        kind: what it is made of.
        count: links in the bundle, PCIe lanes apart; None if unknown; 0 if the system lists the pair, but
            what they send each other goes through other devices (xGMI), or the links are down.
        generation: of NVLink or PCIe; None if unknown.
        width: PCIe lanes; None if unknown.
        gbps: usable GB/s (1e9 bytes) of the whole bundle in this direction; None if unknown.
        weight: the system's own measure of distance (KFD: xGMI 13 to 41, PCIe 20 a step; ACPI: 10 is local);
            None if it tells none.
    """

    source: str
    target: str
    kind: LinkKind
    count: int | None = 1
    generation: int | None = None
    width: int | None = None
    gbps: float | None = None
    weight: int | None = None


@dataclass(frozen=True)
class Path:
    """How one node reaches another.

    Attributes:
        kind: the class.
        links: direct links, the smaller number of the two ends through a switch; 0 without, None if unknown.
        gbps: usable GB/s of the narrowest part; None if unknown.
        hops: links on the way; None where only the class is known.
    """

    kind: PathClass
    links: int | None = 0
    gbps: float | None = None
    hops: int | None = None


@dataclass(frozen=True)
class Numa:
    """A NUMA node of the host.

    Attributes:
        number: as the system counts.
        package: the socket; None if unknown.
        cores: usable by this process, ascending.
        all_cores: whether usable or not.
        distances: to every NUMA node by number, 10 to itself (ACPI SLIT).
    """

    number: int
    package: int | None = None
    cores: tuple[int, ...] = ()
    all_cores: tuple[int, ...] = ()
    distances: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Host:
    """The CPUs.

    Attributes:
        model: as the maker writes it; None if unknown.
        numa: every NUMA node.
        l3_groups: usable cores that share a last-level cache, with its bytes (None if unknown).
        quota: cores' worth of time that control groups allow; None if unlimited.
    """

    model: str | None = None
    numa: tuple[Numa, ...] = ()
    l3_groups: tuple[tuple[tuple[int, ...], int | None], ...] = ()
    quota: float | None = None

    @property
    def cores(self) -> tuple[int, ...]:
        """The usable cores, ascending."""
        return tuple(sorted(core for node in self.numa for core in node.cores))


class Topology:
    """A machine.

    Args:
        nodes: all of them; GPUs in the order of their device numbers.
        links: each direction by itself; both directions of a pair that the source calls one link.
        classes: path classes that the source has told, by pair of names; they go before what the graph says.
        source: the file, command or folder that was read.
        remarks: what the source found odd, in words.
        host: the CPUs, where the source knows them.
        peers: by pair of names, whether the first device may reach the second's memory; only pairs of which
            the source tells it.

    Raises:
        TopologyError: two nodes of one name, a link to no node, a negative count or speed.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        links: Iterable[Link] = (),
        classes: Mapping[tuple[str, str], PathClass] | None = None,
        source: str = "",
        remarks: Sequence[str] = (),
        host: Host | None = None,
        peers: Mapping[tuple[str, str], bool] | None = None,
    ) -> None:
        self.nodes = tuple(nodes)
        self.links = tuple(links)
        self.classes = dict(classes or {})
        self.peers = dict(peers or {})
        self.source, self.remarks, self.host = source, tuple(remarks), host
        self._graph = nx.MultiDiGraph()
        for node in self.nodes:
            if node.name in self._graph:
                raise TopologyError(f"two nodes are called {node.name}", source)
            self._graph.add_node(node.name, node=node)
        for link in self.links:
            for end in (link.source, link.target):
                if end not in self._graph:
                    raise TopologyError(f"a link from {link.source} to {link.target}: no node {end}", source)
            if (link.count or 0) < 0 or (link.gbps or 0) < 0:
                raise TopologyError(
                    f"the link from {link.source} to {link.target} has a negative size", source
                )
            self._graph.add_edge(link.source, link.target, link=link)

    def node(self, name: str) -> Node:
        """The node of that name. KeyError if there is none."""
        found: Node = self._graph.nodes[name]["node"]
        return found

    def of_kind(self, kind: NodeKind) -> tuple[Node, ...]:
        """The nodes of one kind, in the order of the source."""
        return tuple(node for node in self.nodes if node.kind == kind)

    @cached_property
    def gpus(self) -> tuple[Node, ...]:
        """The devices, in the order of their numbers."""
        return self.of_kind(NodeKind.GPU)

    @cached_property
    def nics(self) -> tuple[Node, ...]:
        """The network cards."""
        return self.of_kind(NodeKind.NIC)

    def links_between(self, source: str, target: str) -> tuple[Link, ...]:
        """The links of one direction between neighbours."""
        edges = self._graph.get_edge_data(source, target) or {}
        return tuple(edge["link"] for edge in edges.values())

    def links_from(self, source: str) -> tuple[Link, ...]:
        """The links that leave a node."""
        return tuple(edge["link"] for _, _, edge in self._graph.out_edges(source, data=True))

    @property
    def graph(self) -> nx.MultiDiGraph:
        """A copy for networkx: nodes by name with their :class:`Node`, edges with their :class:`Link`."""
        return self._graph.copy()
