"""hwloc XML of versions 1 to 3: hosts, PCI trees, NVLink and xGMI matrices, refusals, recorded machines."""

from __future__ import annotations

import pytest
import topology_facts as facts
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.topology import paths
from collectives.topology.graph import LinkKind, NodeKind, Numa, PathClass, Topology, TopologyError
from collectives.topology.sources import hwloc_xml

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n'
WIRE = 15.753846  # GB/s on the wires of PCIe 3 with 16 lanes


def obj(kind: str, inside: str = "", **attributes: object) -> str:
    words = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f'<object type="{kind}"{words}>{inside}</object>'


def gpu(index: int, bus: str, model: str, backend: str = "nvml", ids: str = "0302 [10de:20b0]") -> str:
    device = obj(
        "OSDev", f'<info name="GPUModel" value="{model}"/>', name=f"{backend}{index}", gp_index=800 + index
    )
    return obj(
        "PCIDev", device, gp_index=700 + index, pci_busid=bus, pci_type=f"{ids} [0:0]", pci_link_speed=WIRE
    )


def bridge(bus: str, *inside: str) -> str:
    return obj("Bridge", "".join(inside), bridge_type="1-1", pci_busid=bus, pci_link_speed=WIRE)


def host_bridge(*inside: str) -> str:
    return obj("Bridge", "".join(inside), bridge_type="0-1")


def package(index: int, *inside: str) -> str:
    cores, nodes = f"0x{3 << 2 * index:08x}", f"0x{1 << index:08x}"
    info = "".join(
        f'<info name="CPU{name}" value="{value}"/>'
        for name, value in (
            ("Vendor", "GenuineIntel"),
            ("FamilyNumber", 6),
            ("ModelNumber", 85),
            ("Model", "Xeon"),
        )
    )
    numa = obj("NUMANode", os_index=index, cpuset=cores, nodeset=nodes, gp_index=100 + index)
    cache = obj("L3Cache", cpuset=cores, nodeset=nodes, cache_size=1048576)
    return obj(
        "Package",
        info + numa + cache + "".join(inside),
        os_index=index,
        cpuset=cores,
        nodeset=nodes,
        gp_index=90 + index,
    )


def machine(*inside: str, after: str = "", version: str = "3.0", allowed: str = "0x0000000f") -> str:
    whole = obj("Machine", "".join(inside), nodeset="0x00000003", cpuset="0x0000000f", allowed_cpuset=allowed)
    return f'{HEAD}<topology version="{version}">\n{whole}\n{after}</topology>\n'


def matrix(name: str, ends: list[str], values: list[int]) -> str:
    return (
        f'<distances2hetero nbobjs="{len(ends)}" kind="25" name="{name}">'
        f'<indexes length="9">{ends[0]} </indexes><indexes length="9">{" ".join(ends[1:])}</indexes>'
        f'<u64values length="1">{" ".join(map(str, values))}</u64values></distances2hetero>\n'
    )


LATENCY = (
    '<distances2 type="NUMANode" nbobjs="2" kind="5" name="NUMALatency" indexing="os">'
    '<indexes length="4">0 1 </indexes><u64values length="12">10 21 21 10 </u64values></distances2>\n'
)
A100 = "NVIDIA A100-SXM4-40GB"
PAIRS = machine(
    package(
        0,
        host_bridge(
            bridge(
                "0000:00:01.0",
                bridge(
                    "0000:01:00.0",
                    bridge("0000:02:00.0", gpu(0, "0000:03:00.0", A100)),
                    bridge("0000:02:01.0", gpu(1, "0000:04:00.0", A100)),
                ),
            ),
            bridge("0000:00:02.0", gpu(2, "0000:08:00.0", A100)),
        ),
    ),
    package(
        1,
        host_bridge(
            bridge("0000:80:01.0", gpu(3, "0000:81:00.0", A100)),
            obj(
                "PCIDev",
                obj("OSDev", name="ens1", osdev_type=16) + obj("OSDev", name="mlx5_0", osdev_type=32),
                pci_busid="0000:85:00.0",
                pci_type="0207 [15b3:101b] [0:0]",
            ),
        ),
    ),
    after=LATENCY
    + matrix(
        "NVLinkBandwidth",
        [f"OSDev:{800 + i}" for i in range(4)],
        [1000000, 100000, 0, 0, 100000, 1000000, 0, 0, 0, 0, 1000000, 100000, 0, 0, 100000, 1000000],
    ),
)
SWITCHED = machine(
    package(0, host_bridge(gpu(0, "0000:03:00.0", A100), gpu(1, "0000:04:00.0", A100))),
    obj(
        "Bridge",
        obj(
            "PCIDev", gp_index=500, subtype="NVSwitch", pci_busid="0000:c0:00.0", pci_type="0680 [10de:1af1]"
        ),
        bridge_type="0-1",
    ),
    after=matrix(
        "NVLinkBandwidth",
        ["OSDev:800", "OSDev:801", "PCIDev:500"],
        [0, 0, 300000, 0, 0, 300000, 300000, 300000, 0],
    ),
)
POWER = machine(
    package(0, host_bridge(gpu(0, "0002:01:00.0", "Tesla P100-SXM2-16GB"))),
    after=matrix("NVLinkBandwidth", ["OSDev:800", "Package:90"], [0, 40000, 40000, 0]),
)
XGMI = machine(
    package(
        0,
        *(gpu(i, f"0000:0{i}:00.0", "MI300X", "rsmi", "1200 [1002:74a1]") for i in range(2)),
    ),
    after=matrix("XGMIBandwidth", ["OSDev:800", "OSDev:801"], [0, 64000, 64000, 0]),
)
PCIE = machine(
    package(0, host_bridge(bridge("0000:00:01.0", gpu(1, "0000:01:00.0", "Tesla P40")))),
    package(1, host_bridge(bridge("0000:80:01.0", gpu(0, "0000:81:00.0", "Tesla P40")))),
)
ONE = machine(package(0, host_bridge(gpu(0, "0000:01:00.0", "NVIDIA H100 PCIe", "cuda"))))
NONE = machine(package(0), package(1), after=LATENCY)
OLD = """<topology>
<object type="Machine" cpuset="0xf" nodeset="0x3" allowed_cpuset="0xf">
  <distances nbobjs="2" relative_depth="1" latency_base="10.0">
    <latency value="1.0"/><latency value="2.1"/><latency value="2.1"/><latency value="1.0"/>
  </distances>
  <object type="NUMANode" os_index="0" cpuset="0x3" nodeset="0x1">
    <object type="Socket" os_index="0" cpuset="0x3" nodeset="0x1">
      <object type="Cache" depth="3" cache_size="2048" cpuset="0x3" nodeset="0x1"/>
    </object>
    <object type="Bridge" bridge_type="0-1">
      <object type="PCIDev" pci_busid="0000:03:00.0" pci_type="0302 [10de:1db6] [10de:0] a1"/>
      <object type="PCIDev" pci_busid="0000:04:00.0" pci_type="0300 [1a03:2000] [0:0] 41"/>
      <object type="PCIDev" pci_busid="0000:05:00.0" pci_type="0207 [15b3:1017] [0:0] 00">
        <object type="OSDev" name="ib0" osdev_type="2"/><object type="OSDev" name="mlx5_1" osdev_type="3"/>
      </object>
    </object>
  </object>
  <object type="NUMANode" os_index="1" cpuset="0xc" nodeset="0x2"/>
</object>
</topology>
"""
SHAPES = [PAIRS, SWITCHED, POWER, XGMI, PCIE, ONE, NONE, OLD]


def read(text: str | bytes) -> Topology:
    return hwloc_xml.read(text, "file")


def test_nvlink_pairs_over_pcie() -> None:
    found = read(PAIRS)
    assert paths.islands(found) == [(0, 1), (2, 3)] and paths.fast_links(found, "gpu0", "gpu1") == (4, 80.0)
    assert [gpu.numa for gpu in found.gpus] == [0, 0, 0, 1] and found.gpus[0].arch == "sm_80"
    assert [(nic.label, nic.numa, nic.bus) for nic in found.nics] == [("mlx5_0", 1, "0000:85:00.0")]
    assert [node.bus for node in found.of_kind(NodeKind.PCI_SWITCH)] == ["0000:01:00.0"]  # ports are merged
    assert paths.path(found, "gpu0", "gpu2").kind == PathClass.PHB
    assert paths.path(found, "gpu3", "nic0").kind == PathClass.PHB
    far = paths.path(found, "gpu0", "gpu3")
    assert (far.kind, far.gbps) == (PathClass.SYS, 10.0)  # Skylake's socket link is narrower than PCIe
    assert {link.weight for link in found.links if link.kind == LinkKind.SOCKET} == {21}
    without = PAIRS.replace('name="NVLinkBandwidth"', 'name="Other"')
    assert paths.path(read(without), "gpu0", "gpu1") == paths.Path(PathClass.PIX, 0, 12.0, 2)


def test_nvswitch() -> None:
    found = read(SWITCHED)
    assert len(found.of_kind(NodeKind.NVSWITCH)) == 1
    assert paths.fast_links(found, "gpu0", "gpu1") == (12, 240.0)


def test_links_to_the_cpu() -> None:
    found = read(POWER)
    link = next(link for link in found.links_between("gpu0", "numa0") if link.kind == LinkKind.C2C)
    assert (link.count, link.gbps) == (2, 36.0)


def test_xgmi_of_unknown_count() -> None:
    found = read(XGMI)
    assert paths.link_matrix(found) == [[0, None], [None, 0]]
    assert paths.fully_connected(found) and found.gpus[0].name == "gpu0"


def test_pcie_on_two_sockets_in_the_order_of_numbers() -> None:
    found = read(PCIE)
    assert [gpu.bus for gpu in found.gpus] == ["0000:81:00.0", "0000:01:00.0"]
    assert paths.path(found, "gpu0", "gpu1").kind == PathClass.SYS


def test_one_and_none() -> None:
    assert read(ONE).gpus[0].arch == "sm_90" and read(ONE).gpus[0].numa == 0
    found = read(NONE)
    assert not found.gpus and found.host is not None and found.host.model == "Xeon"
    assert found.host.numa == (
        Numa(0, 0, (0, 1), (0, 1), {0: 10, 1: 21}),
        Numa(1, 1, (2, 3), (2, 3), {0: 21, 1: 10}),
    )
    assert found.host.l3_groups == (((0, 1), 1048576), ((2, 3), 1048576))
    less = read(NONE.replace('allowed_cpuset="0x0000000f"', 'allowed_cpuset="0x00000002"'))
    assert less.host is not None and less.host.cores == (1,) and less.host.l3_groups == (((1,), 1048576),)


def test_version_1() -> None:
    found = read(OLD)
    assert [(gpu.bus, gpu.numa) for gpu in found.gpus] == [("0000:03:00.0", 0)]  # not the board's VGA
    assert [nic.label for nic in found.nics] == ["mlx5_1"]
    assert found.host is not None and found.host.numa[1].distances == {0: 21, 1: 10}
    assert found.host.numa[0].package == 0 and found.host.l3_groups == (((0, 1), 2048),)


def test_wires() -> None:
    assert hwloc_xml.usable(WIRE) == 12 and hwloc_xml.usable(31.507692) == 24 and hwloc_xml.usable(4.0) == 3
    assert hwloc_xml.usable(7.0) is None and hwloc_xml.usable(None) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not well-formed"),
        (ONE[:-20], "not well-formed"),
        ("<system version='1'/>", "<topology> is expected"),
        (ONE.replace('"3.0"', '"9.0"'), "expected 1, 2 or 3"),
        ("<topology version='2.0'/>", "Machine"),
        (ONE.replace("0000:01:00.0", "x"), "not a PCI address"),
        (PAIRS.replace('pci_busid="0000:01:00.0"', 'pci_busid="x"'), "not a PCI address"),
        (ONE.replace('nodeset="0x00000001"', 'nodeset="all"'), "not a set"),
        (ONE.replace('cpuset="0x00000003"', 'cpuset="0xf...f"'), "not a set"),
        (ONE.replace(str(WIRE), "fast"), "not a number of GB/s"),
        (PAIRS.replace("OSDev:803", "OSDev:9"), "no object"),
        (PAIRS.replace("100000 0 0 100000", "100000 0"), "expected 16"),
        (PAIRS.replace("10 21 21 10", "10 21 x 10"), "not a number"),
        (NONE.replace('<object type="NUMANode" os_index="0"', '<object type="NUMANode"'), "os_index"),
        (OLD.replace("2.1", "far", 1), "not a number"),
        (OLD.replace('<latency value="1.0"/>', "", 1), "expected 4"),
        (ONE.replace('"hwloc2.dtd">', '"hwloc2.dtd" [<!ENTITY a "b">]>'), "refused"),
        (
            ONE.replace('"hwloc2.dtd">', '"hwloc2.dtd" [<!ENTITY % a SYSTEM "file:///etc/passwd"> %a;]>'),
            "refused",
        ),
        (ONE.replace("<info", "&x;<info", 1), "refused"),
        (NONE.replace(LATENCY, "").replace('"NUMANode" os_index="1"', '"NUMANode" os_index="0"'), "numa0"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        read(text)
    assert message in str(caught.value) and caught.value.source == "file"


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_mutations_raise_nothing_else(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(SHAPES))
    for _ in range(data.draw(st.integers(1, 3))):
        if data.draw(st.booleans()):
            parts = text.split('"')
            at = 2 * data.draw(st.integers(0, len(parts) // 2 - 1)) + 1
            parts[at] = data.draw(
                st.sampled_from(["", "0", "-1", "9" * 400, "0x", "0x1,0x2", "x", "Machine", "PCIDev", "800"])
            )
            text = '"'.join(parts)
        else:
            at = data.draw(st.integers(0, len(text)))
            text = text[:at] + data.draw(st.text(max_size=4)) + text[at + data.draw(st.integers(0, 9)) :]
    try:
        read(text)
    except TopologyError:
        pass


@pytest.mark.skipif(not facts.FACTS, reason="the recorded machines are not here")
def test_recorded_dgx2() -> None:
    found = hwloc_xml.read((facts.FOLDER / "nvidia/hwloc_dgx2_16gpu.xml").read_bytes())
    assert len(found.gpus) == 16 and len(found.of_kind(NodeKind.NVSWITCH)) == 12
    assert [gpu.numa for gpu in found.gpus] == [0] * 8 + [1] * 8 and found.gpus[0].arch == "sm_70"
    # The file has no links between switches, so each board's GPUs are an island of their own.
    assert paths.islands(found) == [tuple(range(8)), tuple(range(8, 16))]
    assert paths.fast_links(found, "gpu0", "gpu7") == (6, 120.0)
    assert any("switches" in remark for remark in found.remarks)


@pytest.mark.skipif(not facts.FACTS, reason="the recorded machines are not here")
def test_recorded_power8() -> None:
    found = hwloc_xml.read((facts.FOLDER / "nvidia/hwloc_power8_4gpu.xml").read_bytes())
    assert len(found.gpus) == 4 and facts.counts(found) == {"2": 2, "0": 4}
    assert paths.islands(found) == [(0, 1), (2, 3)] and [gpu.numa for gpu in found.gpus] == [0, 0, 1, 1]
    assert sum(link.kind == LinkKind.C2C for link in found.links) == 8
    assert found.host is not None and found.host.numa[0].distances == {0: 10, 1: 40}
