"""Well-known machines, built from data sheets, for the tests of costs and plans, and what others measured."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from topology_shapes import CUBE_MESH, full_mesh, machine

from collectives.topology import links as speeds
from collectives.topology.graph import Link, LinkKind, Node, NodeKind, PathClass, Topology

PUBLISHED = Path(__file__).parent / "topologies" / "published.json"


def nvswitch(arch: str, count: int = 8) -> Topology:
    """Devices with all their NVLinks to one NVSwitch."""
    ports, each = speeds.nvlink_ports(arch), speeds.nvlink_gbps(arch)
    assert ports and each
    nodes = [Node(f"gpu{i}", NodeKind.GPU, arch=arch) for i in range(count)]
    ends = [pair for i in range(count) for pair in ((f"gpu{i}", "switch"), ("switch", f"gpu{i}"))]
    links = [Link(a, b, LinkKind.NVLINK, ports, gbps=ports * each) for a, b in ends]
    return Topology([*nodes, Node("switch", NodeKind.NVSWITCH)], links)


def cube_mesh() -> Topology:
    """Eight V100 as a hybrid cube mesh; what has no NVLink goes over the sockets."""
    return machine(8, CUBE_MESH, gbps=20.0, arch="sm_70", apart=lambda i, j: PathClass.SYS)


def xgmi(arch: str, count: int = 8) -> Topology:
    """Devices each joined to each by one xGMI link."""
    return full_mesh(count, gbps=speeds.xgmi_gbps(arch), kind=LinkKind.XGMI, arch=arch)


def a100_board() -> Topology:
    """Four A100 on one board, four NVLinks a pair."""
    return full_mesh(4, 4, gbps=20.0, arch="sm_80")


def pcie_tree(
    arch: str, switches: list[list[int]], generation: int, sockets: list[int] | None = None
) -> Topology:
    """Devices under PCIe switches, all slots of 16 lanes; `sockets`: the NUMA node of each switch.

    A group of one device hangs on its NUMA node directly.
    """
    sockets = sockets or [0] * len(switches)
    gbps = speeds.pcie_gbps(generation, 16)
    count = sum(map(len, switches))
    home = {v: socket for group, socket in zip(switches, sockets, strict=True) for v in group}
    nodes = [Node(f"gpu{v}", NodeKind.GPU, numa=home[v], arch=arch) for v in range(count)]
    nodes += [Node(f"numa{n}", NodeKind.NUMA, numa=n) for n in sorted(set(sockets))]
    ends = []
    for k, (group, socket) in enumerate(zip(switches, sockets, strict=True)):
        above = f"numa{socket}"
        if len(group) > 1:
            nodes.append(Node(f"switch{k}", NodeKind.PCI_SWITCH, numa=socket))
            ends.append((f"switch{k}", above))
            above = f"switch{k}"
        ends += [(f"gpu{v}", above) for v in group]
    links = [
        Link(*pair, LinkKind.PCIE, 1, generation, 16, gbps) for a, b in ends for pair in ((a, b), (b, a))
    ]
    links += [
        Link(f"numa{a}", f"numa{b}", LinkKind.SOCKET, None, gbps=16.0)
        for a, b in itertools.permutations(sorted(set(sockets)), 2)
    ]
    return Topology(nodes, links)


def l40s_4() -> Topology:
    """Four L40S, two on each socket, no switches."""
    return pcie_tree("sm_89", [[0], [1], [2], [3]], 4, [0, 0, 1, 1])


def two_islands(gbps: float = 20.6, links: int = 6) -> Topology:
    """Two islands of four H100 with NVLinks between all within; sockets between."""
    within = {(i, j): links for i, j in itertools.combinations(range(8), 2) if i // 4 == j // 4}
    return machine(8, within, gbps=gbps, arch="sm_90", apart=lambda i, j: PathClass.SYS)


def rtx_pair() -> Topology:
    """Two RTX 5070 Ti that may not reach each other."""
    plain = pcie_tree("sm_120", [[0], [1]], 5)
    peers = {("gpu0", "gpu1"): False, ("gpu1", "gpu0"): False}
    return Topology(plain.nodes, plain.links, peers=peers)


MACHINES: dict[str, Callable[[], Topology]] = {
    "h100": lambda: nvswitch("sm_90"),
    "a100_board": a100_board,
    "mi300x": lambda: xgmi("gfx942"),
    "mi355x": lambda: xgmi("gfx950"),
    "v100_pcie": lambda: pcie_tree("sm_70", [[0, 1, 2, 3]], 3),
    "gb300": lambda: nvswitch("sm_103", 16),
    "rtx5070ti": rtx_pair,
}
"""The machines of the published measurements."""


def published() -> list[dict[str, Any]]:
    """The entries, as ``tests/topologies/published.json`` explains them."""
    entries: list[dict[str, Any]] = json.loads(PUBLISHED.read_text(encoding="utf-8"))["entries"]
    return entries
