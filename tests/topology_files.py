"""Descriptions of machines for the tests of the command line, typed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import topology_machines as machines

from collectives.topology import record
from collectives.topology.commands.command_line import main
from collectives.topology.graph import Host, Link, LinkKind, Node, NodeKind, Numa, Topology

SWITCHED = "\t".join(("", *(f"GPU{i}" for i in range(4)), "NIC0", "CPU Affinity", "NUMA Affinity")) + "\n"
SWITCHED += "".join(
    "\t".join(
        (
            f"GPU{i}",
            *("X" if i == j else "NV12" for j in range(4)),
            "PXB" if i < 2 else "SYS",
            "0-15" if i < 2 else "16-31",
            str(i // 2),
        )
    )
    + "\n"
    for i in range(4)
)
SWITCHED += "NIC0\tPXB\tPXB\tSYS\tSYS\t X \n\nLegend:\n\n  X = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
"""Four GPUs with twelve NVLinks to each other, on two NUMA nodes, and a network card."""

PAIRS = """\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV4\tSYS\tSYS\t0-7\t0
GPU1\tNV4\t X \tSYS\tSYS\t0-7\t0
GPU2\tSYS\tSYS\t X \tNV4\t8-15\t1
GPU3\tSYS\tSYS\tNV4\t X \t8-15\t1
"""
"""Two bridged pairs on two sockets."""

CUBE = {(0, 3): 2, (2, 3): 2, (1, 2): 2, (1, 5): 2, (5, 6): 2, (6, 7): 2, (4, 7): 2, (0, 4): 2}
CUBE |= dict.fromkeys([(0, 1), (1, 3), (3, 7), (5, 7), (4, 5), (4, 6), (2, 6), (0, 2)], 1)


def nvswitch() -> str:
    """A recording of eight H100 with four NVSwitches, a card beside each, on two sockets."""
    gpus = [
        Node(f"gpu{i}", NodeKind.GPU, f"0000:{16 + i:02x}:00.0", i // 4, "NVIDIA H100 80GB HBM3", "sm_90")
        for i in range(8)
    ]
    switches = [Node(f"nvswitch{i}", NodeKind.NVSWITCH, f"0000:{64 + i:02x}:00.0") for i in range(4)]
    bridges = [
        Node(f"0000:{128 + i:02x}:00.0", NodeKind.PCI_SWITCH, f"0000:{128 + i:02x}:00.0") for i in range(8)
    ]
    nics = [
        Node(f"nic{i}", NodeKind.NIC, f"0000:{32 + i:02x}:00.0", i // 4, label=f"mlx5_{i}", gbps=50.0)
        for i in range(8)
    ]
    numa = [Node(f"numa{i}", NodeKind.NUMA, numa=i) for i in range(2)]
    links = []

    def join(a: str, b: str, kind: LinkKind, **how: object) -> None:
        links.extend(Link(x, y, kind, **how) for x, y in ((a, b), (b, a)))  # type: ignore[arg-type]

    for i, gpu in enumerate(gpus):
        for k, switch in enumerate(switches):
            count = 5 if k < 2 else 4
            join(gpu.name, switch.name, LinkKind.NVLINK, count=count, generation=4, gbps=20.6 * count)
        pcie = {"generation": 5, "width": 16, "gbps": 48.0}
        join(gpu.name, bridges[i].name, LinkKind.PCIE, **pcie)
        join(nics[i].name, bridges[i].name, LinkKind.PCIE, **pcie)
        join(bridges[i].name, f"numa{i // 4}", LinkKind.PCIE, **pcie)
    join("numa0", "numa1", LinkKind.SOCKET, gbps=22.0)
    cores = (tuple(range(8)), tuple(range(8, 16)))
    distances = ({0: 10, 1: 21}, {0: 21, 1: 10})
    host = Host("a processor", tuple(Numa(i, i, cores[i], cores[i], distances[i]) for i in (0, 1)))
    nodes = [*gpus, *switches, *bridges, *nics, *numa]
    return record.dumps(Topology(nodes, links, host=host))


def cube_mesh() -> str:
    """Eight V100 in two halves of four, as text."""

    def cell(i: int, j: int) -> str:
        count = CUBE.get((min(i, j), max(i, j)), 0)
        return "X" if i == j else f"NV{count}" if count else "SYS"

    rows = [
        "\t".join((f"GPU{i}", *(cell(i, j) for j in range(8)), "0-7" if i < 4 else "8-15", str(i // 4)))
        for i in range(8)
    ]
    names = "\t".join(("", *(f"GPU{i}" for i in range(8)), "CPU Affinity", "NUMA Affinity"))
    return "\n".join((names, *rows)) + "\n"


FILES = {
    "switched.txt": SWITCHED,
    "pairs.txt": PAIRS,
    "cube_mesh.txt": cube_mesh(),
    "nvswitch.json": nvswitch(),
    "mi300x.txt": machines.joined(machines.mi300x_8()),
    "mi250x.txt": machines.joined(machines.mi250x_4()),
    "partitions.txt": machines.joined(machines.partitioned(4, 8, 1)),
    "pcie.txt": machines.joined(machines.pcie_4()),
    "one.txt": "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\t0\n",
    "linkless.txt": "GPU 0: NVIDIA H100 (UUID: GPU-0)\n\t Link 0: 26.562 GB/s\n"
    "GPU 1: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n",
}
"""By name; their kinds are seen by what is in them."""


def write(folder: Path) -> Path:
    """All of them, in a folder."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command prints that succeeds."""
    assert main([str(argument) for argument in arguments]) == 0
    written = capsys.readouterr()
    assert written.err == ""
    return written.out


def refuse(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The line of a command that fails."""
    assert main([str(argument) for argument in arguments]) == 2
    written = capsys.readouterr()
    assert written.out == "" and written.err.count("\n") == 1
    return written.err
