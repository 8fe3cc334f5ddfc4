"""Live NVIDIA GPUs: every shape of machine through a stand-in for pynvml, and which devices CUDA shows."""

from __future__ import annotations

from pathlib import Path

import pytest
import topology_facts as facts
from fake_nvml import GPU, IBM, SWITCH, Card, Nvml, device, distances
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.topology import links, paths, pci_address, pci_sysfs
from collectives.topology.graph import LinkKind, NodeKind, PathClass, Topology, TopologyError
from collectives.topology.sources import nvml
from collectives.topology.sources.nvml_visible import Device, Instance, choose


def bus(index: int) -> str:
    return f"0000:{16 + index:02x}:00.0"


def read(cards: list[Card], sys: Path | str = "/nowhere", **environ: str) -> Topology:
    return nvml.read(Nvml(cards), str(sys), environ)


def switched(count: int, links: int = 18, switches: int = 4) -> list[Card]:
    ends = [(SWITCH, f"0000:c{i % switches}:00.0") for i in range(links)]
    return [Card(bus(i), list(ends), uuid=f"GPU-{i}abc", cluster=7, clique=3) for i in range(count)]


def paired(pairs: dict[int, list[int]], **more: object) -> list[Card]:
    return [Card(bus(i), [(GPU, bus(j)) for j in ends], **more) for i, ends in pairs.items()]  # type: ignore[arg-type]


def test_nvswitch(tmp_path: Path) -> None:
    for i in range(8):
        at = f"0000:00:0{i}.0/0000:0{i}:00.0/0000:0{i}:01.0"
        device(tmp_path, f"{at}/{bus(i)}", i // 4)
        device(tmp_path, f"{at[:-12]}0000:0{i}:02.0/0000:4{i}:00.0", i // 4, "0x020700", rdma=f"mlx5_{i}")
    distances(tmp_path, ["10 32", "32 10"])
    machine = read(switched(8), tmp_path)
    assert facts.counts(machine) == {"18": 28} and len(machine.of_kind(NodeKind.NVSWITCH)) == 4
    count, gbps = paths.fast_links(machine, "gpu0", "gpu7")
    assert count == 18 and gbps == pytest.approx(18 * 20.6)
    assert {gpu.group for gpu in machine.gpus} == {"07" + "00" * 15 + ".3"}
    assert [gpu.numa for gpu in machine.gpus] == [0] * 4 + [1] * 4 and machine.gpus[0].arch == "sm_90"
    assert len(machine.of_kind(NodeKind.PCI_SWITCH)) == 8  # of three ports each
    assert all(
        paths.nearest(machine, f"gpu{i}", machine.nics) == (machine.node(f"nic{i}"),) for i in range(8)
    )
    assert paths.path(machine, "gpu3", "nic3") == paths.Path(PathClass.PIX, 0, 48.0, 2)
    assert paths.path(machine, "gpu3", "nic0").kind == PathClass.PHB
    assert paths.path(machine, "gpu3", "nic7").kind == PathClass.SYS
    assert machine.nics[0].gbps == 50 and machine.nics[0].label == "mlx5_0"
    assert {link.weight for link in machine.links if link.kind == LinkKind.SOCKET} == {32}
    assert len(machine.peers) == 56 and all(machine.peers.values()) and not machine.remarks


def test_cube_mesh() -> None:
    near = {0: [1, 2, 3, 3, 4, 4], 1: [0, 2, 2, 3, 5, 5], 2: [0, 1, 1, 3, 3, 6], 3: [0, 0, 1, 2, 2, 7]}
    far = {i + 4: [j ^ 4 for j in ends] for i, ends in near.items()}
    cards = paired(near | far, name=b"Tesla V100-SXM2-16GB", capability=(7, 0))
    machine = read(cards)
    assert facts.counts(machine) == {"1": 8, "2": 8, "0": 12} and facts.best_ring(machine) == 2
    assert paths.fast_links(machine, "gpu0", "gpu3") == (2, 40.0)
    assert machine.gpus[0].model == "Tesla V100-SXM2-16GB"


def test_pairs_pcie_one_and_none(tmp_path: Path) -> None:
    for i in range(4):
        device(tmp_path, f"0000:00:0{i}.0/{bus(i)}", i // 2, net=f"eth{i}" if i == 3 else None)
    pairs = read(paired({0: [1] * 4, 1: [0] * 4, 2: [3] * 4, 3: [2] * 4}, capability=(8, 6)), tmp_path)
    assert paths.islands(pairs) == [(0, 1), (2, 3)] and paths.fast_links(pairs, "gpu0", "gpu1") == (4, 48.0)
    pcie = read(paired({0: [], 1: [], 2: [], 3: []}, capability=None, reaches=False), tmp_path)
    assert facts.others(pcie) == {PathClass.PHB: 2, PathClass.SYS: 4} and not any(pcie.peers.values())
    assert pcie.gpus[0].arch is None and paths.path(pcie, "gpu0", "gpu1").gbps == 48
    one = read(paired({0: []}, reaches=None), tmp_path)
    assert len(one.gpus) == 1 and not one.peers
    assert read([]).gpus == ()


def test_what_is_odd_is_told() -> None:
    cards = [
        Card(bus(0), [(GPU, bus(1)), None, (None, bus(1)), (GPU, None), (IBM, None)]),
        Card(bus(1), [(GPU, bus(0))] * 2, name="NVIDIA H200"),
        Card(bus(2), lost=True),
    ]
    machine = read(cards)
    assert paths.fast_links(machine, "gpu0", "gpu1")[0] == 2  # one of them by its address alone
    remarks = "\n".join(machine.remarks)
    for words in ("GPU 2 does not answer", "1 of 5 NVLinks are down", "1 NVLinks are up", "PCI_BUS_ID"):
        assert words in remarks
    alone = read(cards, CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES="1")
    assert alone.remarks[1:] == ("gpu0: 2 NVLinks lead to a GPU that CUDA does not show here",)


def test_a_switch_by_its_class(tmp_path: Path) -> None:
    device(tmp_path, "0000:c0:00.0", kind="0x068000")
    machine = read([Card(bus(i), [(None, "0000:c0:00.0")] * 6) for i in range(2)], tmp_path)
    assert len(machine.of_kind(NodeKind.NVSWITCH)) == 1 and facts.counts(machine) == {"6": 1}


def test_coherent_links(tmp_path: Path) -> None:
    device(tmp_path, bus(0), 1)
    machine = read([Card(bus(0), c2c=(10, 45000))], tmp_path)
    link = next(link for link in machine.links_between("gpu0", "numa1") if link.kind == LinkKind.C2C)
    assert (link.count, link.gbps) == (10, 450)


def test_visible_devices() -> None:
    cards = paired({0: [2] * 4, 1: [3] * 4, 2: [0] * 4, 3: [1] * 4})
    for index, card in enumerate(cards):
        card.uuid = f"GPU-{index}abc-def"
    machine = read(cards, CUDA_VISIBLE_DEVICES="2,0")
    assert [gpu.label for gpu in machine.gpus] == ["GPU 2", "GPU 0"] and facts.counts(machine) == {"4": 1}
    by_uuid = read(cards, CUDA_VISIBLE_DEVICES="GPU-3abc,GPU-0")
    assert [gpu.bus for gpu in by_uuid.gpus] == [bus(3), bus(0)]
    assert sum("does not show" in remark for remark in by_uuid.remarks) == 2
    assert read(cards, CUDA_VISIBLE_DEVICES="").gpus == ()


def test_partitions(tmp_path: Path) -> None:
    device(tmp_path, f"0000:00:01.0/{bus(0)}", 1)
    cards = switched(2)
    cards[0].mig = [("MIG-a1", 1, 0), ("MIG-b2", 2, 0)]
    machine = read(cards, tmp_path)
    assert [(gpu.name, gpu.bus, gpu.parent) for gpu in machine.gpus] == [
        ("gpu0", bus(0), bus(0)),
        ("gpu1", bus(0), bus(0)),
        ("gpu2", bus(1), None),
    ]
    assert paths.islands(machine) == [(0,), (1,), (2,)]
    assert machine.peers["gpu0", "gpu1"] is False and machine.peers["gpu2", "gpu0"] is False
    assert paths.path(machine, "gpu0", "gpu1").kind == PathClass.PHB
    assert any("one MIG instance" in remark for remark in machine.remarks)
    chosen = read(cards, CUDA_VISIBLE_DEVICES="MIG-b2")
    assert [gpu.parent for gpu in chosen.gpus] == [bus(0)]


@pytest.mark.parametrize(
    ("text", "expected", "told"),
    [
        (None, ["0", "1.a", "1.b", "2"], ""),
        ("", [], ""),
        ("-1", [], ""),
        ("0,1,2", ["0", "1.a", "2"], ""),
        (" 2 , 0", ["2", "0"], ""),
        ("2,9,0", ["2"], '"9" is no device'),
        ("2,x,0", ["2"], '"x" is no device'),
        ("2,-1,0", ["2"], ""),
        ("0,0", [], "again"),
        ("0,GPU-a0", [], "again"),
        ("GPU-a2,GPU-a0", ["2", "0"], ""),
        ("GPU-a", [], "is no device"),  # of which there are several
        ("MIG-b", ["1.b"], ""),
        ("MIG-GPU-a1/1/0", ["1.a"], ""),
        ("MIG-GPU-a1/3/0", [], "is no device"),
        ("3", [], "is no device"),  # in MIG mode, without an instance
    ],
)
def test_choice(text: str | None, expected: list[str], told: str) -> None:
    devices = [
        Device(0, None, "GPU-a0"),
        Device(1, None, "GPU-a1", split=True, instances=[Instance("MIG-a", 1, 0), Instance("MIG-b", 2, 0)]),
        Device(2, None, "GPU-a2"),
        Device(3, None, "GPU-a3", split=True),
    ]
    remarks: list[str] = []
    chosen = choose(devices, text, remarks)
    names = [f"{device.index}" + (f".{part.uuid[4:]}" if part else "") for device, part in chosen]
    assert names == expected
    assert told in "\n".join(remarks) and (bool(remarks) is bool(told) or text is None)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="0123456789,-GPUMIG/a ", max_size=30))
def test_any_variable_is_read(text: str) -> None:
    machine = read(switched(3, 2), CUDA_VISIBLE_DEVICES=text)
    assert len(machine.gpus) <= 3


def test_no_driver_and_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TopologyError, match="Driver Not Loaded"):
        nvml.read(Nvml([], works=False))
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    with pytest.raises(TopologyError, match="nvidia-ml-py"):
        nvml.read()


def test_library_is_shut_down() -> None:
    module = Nvml(switched(2))
    nvml.read(module, "/nowhere", {})
    assert module.running == 0


def test_pci_tree(tmp_path: Path) -> None:
    above = "0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0/0000:04:00.0"
    device(tmp_path, f"{above}/0000:05:00.0", -1, speed="16.0 GT/s PCIe", net="eth0")
    assert pci_sysfs.slot("0000:05:00.0", str(tmp_path)) == pci_sysfs.Slot(
        tuple(above.split("/")), None, "0x030200"
    )
    nodes, found = pci_sysfs.tree([("0000:05:00.0", "nic0")], str(tmp_path))
    assert [node.name for node in nodes] == ["0000:03:00.0", "0000:01:00.0"]
    assert {(link.source, link.target, link.gbps) for link in found} == {
        ("nic0", "0000:03:00.0", 24.0),
        ("0000:03:00.0", "nic0", 24.0),
        ("0000:03:00.0", "0000:01:00.0", 24.0),
        ("0000:01:00.0", "0000:03:00.0", 24.0),
    }
    assert [(nic.label, nic.gbps) for nic in pci_sysfs.nics(str(tmp_path))] == [("eth0", 25.0)]
    assert pci_sysfs.nics("/nowhere") == [] and pci_sysfs.link("0000:05:00.0", None, "/nowhere") == (
        None,
        None,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        (b"0000:1b:00.0\0", "0000:1b:00.0"),
        ("1b:00.0", "0000:1b:00.0"),
        ("10000:01:00.1", "10000:01:00.1"),
        ("ffff:ff:01.0", "ffff:ff:01.0"),
        ("fffffff:ffff:ff", None),
        ("ffffffff:ff:ff.f", None),
        ("pci0000:00", None),
        ("", None),
        (None, None),
    ],
)
def test_pci_addresses(text: str | bytes | None, expected: str | None) -> None:
    assert pci_address.normal(text) == expected


def test_speeds() -> None:
    assert links.nvlink_gbps("sm_90") == 20.6 and links.nvlink_gbps("sm_89") is None
    assert 18 * (links.nvlink_gbps("sm_100") or 0) == pytest.approx(722, abs=1)
    assert links.xgmi_gbps("gfx942") == 48 and links.xgmi_gbps(None) is None
    assert [links.pcie_gbps(generation, 16) for generation in range(7)] == [None, 3, 6, 12, 24, 48, 96]
    assert links.pcie_gbps(4, 8) == 12 and links.pcie_gbps(4, None) is None
    assert links.pcie_generation(16.0) == 4 and links.pcie_generation(7.0) is None
    assert links.socket_gbps("AuthenticAMD", 25, 1) == links.socket_gbps("AuthenticAMD", 175, 1) == 24
    assert (
        links.socket_gbps("GenuineIntel", 6, 143) == 22 and links.socket_gbps("GenuineIntel", 15, 1) is None
    )
    for model, arch in (
        ("NVIDIA A100-SXM4-80GB", "sm_80"),
        ("NVIDIA A10G", "sm_86"),
        ("NVIDIA GB200", "sm_100"),
    ):
        assert links.arch_of(model) == arch
    assert links.arch_of("NVIDIA B300 SXM6 AC") == "sm_103" and links.arch_of("a lamp") is None
