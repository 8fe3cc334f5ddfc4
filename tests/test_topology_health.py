"""What looks broken is found, and what is well is left in peace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import topology_machines as machines

from collectives.topology.graph import Link, LinkKind, Node, NodeKind, Topology
from collectives.topology.health import Finding, Severity, findings
from collectives.topology.sources import kfd, load
from collectives.topology.sources.files import parse


def mesh(count: int = 4, weight: int | None = 15, skip: Iterable[tuple[int, int]] = ()) -> list[Link]:
    without = set(skip)
    return [
        Link(f"gpu{a}", f"gpu{b}", LinkKind.XGMI, weight=weight)
        for a in range(count)
        for b in range(count)
        if a != b and (a, b) not in without
    ]


def gpus(count: int = 4, **values: object) -> list[Node]:
    return [
        replace(Node(f"gpu{i}", NodeKind.GPU, bus=f"0000:{i + 1:02x}:00.0"), **values) for i in range(count)
    ]


def found(links: list[Link], nodes: list[Node] | None = None) -> list[Finding]:
    return findings(Topology(nodes or gpus(), links))


def one(links: list[Link], nodes: list[Node] | None = None) -> Finding:
    (finding,) = found(links, nodes)
    return finding


@pytest.mark.parametrize(
    "files",
    [
        machines.mi300x_8(),
        machines.mi210_4(),
        machines.mi250x_4(),
        machines.partitioned(),
        machines.pcie_4(),
        machines.kfd([0], {}),
        machines.kfd([], {}),
    ],
)
def test_machines_that_are_well(files: dict[str, str]) -> None:
    assert findings(kfd.read_text(machines.joined(files))) == []


def test_a_gpu_that_lost_its_links() -> None:
    finding = one([link for link in mesh() if "gpu2" not in (link.source, link.target)])
    assert (finding.severity, finding.kind, finding.nodes) == (Severity.ERROR, "lost-links", ("gpu2",))
    assert "3 of its peers have" in finding.words


def test_a_gpu_with_fewer_links_than_its_peers() -> None:
    switch = [*gpus(), Node("sw0", NodeKind.NVSWITCH)]
    links = []
    for i in range(4):
        count = 17 if i == 3 else 18
        links += [
            Link(f"gpu{i}", "sw0", LinkKind.NVLINK, count),
            Link("sw0", f"gpu{i}", LinkKind.NVLINK, count),
        ]
    finding = one(links, switch)
    assert (finding.severity, finding.kind) == (Severity.WARNING, "fewer-links")
    assert finding.words == "gpu3 has 17 fast links, its peers have 18"


def test_gpus_of_another_kind_are_no_peers() -> None:
    nodes = [*gpus(3), replace(gpus(4)[3], model="another")]
    assert found(mesh(3), nodes) == []


def test_half_of_them_without_links_is_how_it_was_built() -> None:
    assert found(mesh(2)) == []


def test_one_way_links() -> None:
    finding = one([*mesh(2), Link("gpu0", "gpu1", LinkKind.XGMI)])
    assert (finding.kind, finding.words) == (
        "uneven",
        "2 links from gpu0 to gpu1, but 1 back: only the smaller number counts",
    )
    kinds = {finding.kind: finding for finding in found(mesh(4, skip=[(2, 1)]))}
    assert kinds["one-way"].severity == Severity.ERROR and kinds["one-way"].nodes == ("gpu1", "gpu2")


def test_all_weights_zero() -> None:
    finding = one(mesh(weight=0))
    assert (finding.severity, finding.kind) == (Severity.WARNING, "no-weights")
    assert found(mesh(weight=None)) == []
    assert found([replace(link, weight=15 if link.source == "gpu0" else 0) for link in mesh()]) == []


def test_links_that_name_their_own_gpu() -> None:
    finding = one([*mesh(), *(Link(f"gpu{i}", f"gpu{i}", LinkKind.NVLINK, 12) for i in (0, 1))])
    assert (finding.severity, finding.kind, finding.nodes) == (Severity.ERROR, "own-gpu", ("gpu0", "gpu1"))


def test_links_that_name_their_own_gpu_in_nccl_xml() -> None:
    link = '<nvlink target="0000:0{0}:00.0" count="4" tclass="0x030200"/>'
    gpu = f'<gpu dev="{{0}}" sm="80" rank="{{0}}">{link}</gpu>'
    pci = (
        '<pci busid="0000:0{0}:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">' + gpu + "</pci>"
    )
    cpu = '<cpu numaid="0" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">'
    inner = "".join(pci.format(i) for i in (0, 1))
    found = findings(parse(f'<system version="1">{cpu}{inner}</cpu></system>'))
    assert {(finding.severity, finding.kind) for finding in found} == {(Severity.ERROR, "own-gpu")}
    assert sorted(finding.nodes for finding in found) == [("gpu0",), ("gpu1",)]


def test_two_devices_at_one_address() -> None:
    finding = one(mesh(), [*gpus(3), replace(gpus(4)[3], bus="0000:01:00.0")])
    assert (finding.severity, finding.kind, finding.nodes) == (
        Severity.ERROR,
        "same-address",
        ("gpu0", "gpu3"),
    )


def test_missing_partitions() -> None:
    (finding,) = findings(kfd.read_text(machines.joined(machines.partitioned(3, 4, missing=1))))
    assert finding.kind == "missing-partition"
    assert "0000:07:00.0 shows 3 partitions, the others 4: 11 devices of 12" in finding.words
    (finding,) = findings(kfd.read_text(machines.joined(machines.partitioned(3, 4, missing=3))))
    assert (finding.kind, finding.nodes) == ("unsplit", ("gpu8",))


def pcie(values: list[tuple[int | None, int | None, float | None]]) -> list[Link]:
    return [Link(f"gpu{i}", "numa0", LinkKind.PCIE, 1, *value) for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ((4, 8, 12.0), "gpu3 is on PCIe with width 8, its peers with 16"),
        ((3, 16, 12.0), "gpu3 is on PCIe with generation 3, its peers with 4"),
        ((None, None, 12.0), "gpu3 is on PCIe with GB/s 12, its peers with 24"),
    ],
)
def test_pcie_below_its_peers(last: tuple[int | None, int | None, float | None], words: str) -> None:
    nodes = [*gpus(), Node("numa0", NodeKind.NUMA, numa=0)]
    finding = one(pcie([(4, 16, 24.0)] * 3 + [last]), nodes)
    assert (finding.severity, finding.nodes) == (Severity.WARNING, ("gpu3",)) and finding.words.startswith(
        words
    )
    assert found(pcie([(4, 16, 24.0)] * 4), nodes) == []
    assert found(pcie([(4, 16, 24.0)] * 2 + [(4, 8, 12.0)] * 2), nodes) == []  # nobody knows which is meant


def test_links_that_are_down() -> None:
    links = [replace(link, count=0, gbps=0.0) if link.source == "gpu0" else link for link in mesh(2)]
    kinds = [finding.kind for finding in found(links, gpus(2))]
    assert "inactive" in kinds
    text = "GPU 0: A100\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\nGPU 1: A100\n\t Link 0: 25 GB/s\n"
    (finding,) = findings(parse(text))
    assert (finding.kind, finding.nodes) == ("inactive", ("gpu0",)) and "1 of 2 NVLinks up" in finding.words


def test_the_worst_comes_first_and_remarks_last() -> None:
    topology = Topology(gpus(), mesh(4, weight=0, skip=[(2, 1)]), remarks=["the tool said so"])
    severities = [finding.severity for finding in findings(topology)]
    assert severities == sorted(severities, key=list(Severity).index)
    assert (severities[0], severities[-1]) == (Severity.ERROR, Severity.NOTE)


ILL = {
    "kfd_1gpu_copied.txt": {"same-address"},
    "kfd_mi300x_cpx_64.txt": {"missing-partition"},
    "nccl_azure_ncv4-topo.xml": {"own-gpu"},
}


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(machines.SHARED.glob("*/*")) if "graph" not in path.name],
    ids=lambda path: path.name,
)
def test_recorded_machines(path: Path) -> None:
    """Those that the index calls odd are, and no other has more than a remark."""
    kinds = {finding.kind for finding in findings(load(path))}
    assert kinds - {"remark"} == ILL.get(path.name, set())
