"""Hosts from recorded trees and this machine's own, and the detector on both."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import topology_machines as machines

from collectives.topology import cpu, paths
from collectives.topology.graph import (
    Host,
    Link,
    LinkKind,
    Node,
    NodeKind,
    PathClass,
    Topology,
    TopologyError,
)
from collectives.topology.sources import detect, linux, live, load


def tree(
    root: Path, nodes: int = 2, cores: int = 4, allowed: str = "0-5", packages: int = 2
) -> tuple[str, str]:
    """sysfs and procfs of a machine: so many NUMA nodes of so many cores, an L3 for each two cores."""
    total = nodes * cores
    files = {"devices/system/cpu/online": f"0-{total - 1}"}
    for core in range(total):
        base = f"devices/system/cpu/cpu{core}"
        files[f"{base}/topology/physical_package_id"] = str(core // cores * packages // nodes)
        for index, (level, kind, size, first) in enumerate(
            [(1, "Data", "32K", core), (1, "Instruction", "32K", core), (3, "Unified", "16M", core // 2 * 2)]
        ):
            shared = str(core) if level == 1 else f"{first}-{first + 1}"
            for name, text in {
                "level": str(level),
                "type": kind,
                "size": size,
                "shared_cpu_list": shared,
            }.items():
                files[f"{base}/cache/index{index}/{name}"] = text
    for node in range(nodes):
        files[f"devices/system/node/node{node}/cpulist"] = f"{node * cores}-{node * cores + cores - 1}"
        distances = " ".join("10" if other == node else "21" for other in range(nodes))
        files[f"devices/system/node/node{node}/distance"] = distances
    machines.written(files, root / "sys")
    files = {
        "self/status": f"Name:\tpython\nCpus_allowed_list:\t{allowed}\n",
        "cpuinfo": "model name : Some CPU\n",
    }
    files |= {"self/cgroup": "0::/"}
    machines.written(files, root / "proc")
    machines.written({"fs/cgroup/cpu.max": "350000 100000"}, root / "sys")
    return str(root / "sys"), str(root / "proc")


def host(topology: Topology) -> Host:
    assert topology.host is not None
    return topology.host


def test_recorded_host(tmp_path: Path) -> None:
    found = linux.read(*tree(tmp_path))
    known = host(found)
    assert (known.model, known.quota, known.cores) == ("Some CPU", 3.5, (0, 1, 2, 3, 4, 5))
    first, second = known.numa
    assert (first.package, first.cores, first.all_cores) == (0, (0, 1, 2, 3), (0, 1, 2, 3))
    assert (second.package, second.cores, second.all_cores) == (1, (4, 5), (4, 5, 6, 7))
    assert second.distances == {0: 21, 1: 10}
    assert known.l3_groups == (((0, 1), 16 << 20), ((2, 3), 16 << 20), ((4, 5), 16 << 20))
    assert found.gpus == () and [node.name for node in found.nodes] == ["numa0", "numa1"]
    assert found.links_between("numa1", "numa0") == (
        Link("numa1", "numa0", LinkKind.SOCKET, None, weight=21),
    )


def test_allowed_cores_can_be_given_and_need_not_be_recorded(tmp_path: Path) -> None:
    sys, proc = tree(tmp_path)
    assert host(linux.read(sys, proc, {1, 6, 99})).cores == (1, 6)
    (tmp_path / "proc/self/status").unlink()
    assert host(linux.read(sys, proc)).cores == tuple(range(8))


def test_two_numa_nodes_of_one_package(tmp_path: Path) -> None:
    known = host(linux.read(*tree(tmp_path, packages=1)))
    assert [node.package for node in known.numa] == [0, 0]


def test_kernel_without_numa_or_without_words(tmp_path: Path) -> None:
    sys, proc = tree(tmp_path)
    for node in (0, 1):
        (tmp_path / f"sys/devices/system/node/node{node}/cpulist").write_text("N/A")
    known = host(linux.read(sys, proc))
    assert [(node.number, node.all_cores) for node in known.numa] == [(0, tuple(range(8)))]
    assert known.numa[0].package is None and known.numa[0].distances == {}
    for path in (tmp_path / "sys/devices/system/cpu").rglob("*"):
        if path.is_file() and path.name != "online":
            path.write_text("-1")
    known = host(linux.read(sys, proc))
    assert known.l3_groups == () and known.numa[0].package is None and len(known.cores) == 6


def test_distances_that_do_not_fit_are_none(tmp_path: Path) -> None:
    sys, proc = tree(tmp_path)
    (tmp_path / "sys/devices/system/node/node0/distance").write_text("10 21 31")
    found = linux.read(sys, proc)
    assert host(found).numa[0].distances == {}
    assert found.links_between("numa0", "numa1")[0].weight is None


def test_no_cpus(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="no CPUs"):
        linux.read(str(tmp_path), str(tmp_path))


def test_this_machine() -> None:
    found = linux.read()
    known = host(found)
    assert known.cores == tuple(sorted(os.sched_getaffinity(0)))
    assert known.model == cpu.model_name() and known.quota == cpu.cpu_quota()
    for cores, nbytes in known.l3_groups:
        assert set(cores) <= set(known.cores)
        assert nbytes is None or nbytes > 0
    assert {core for node in known.numa for core in node.cores} == set(known.cores)
    for node in known.numa:
        assert all(cpu.numa_node(core) in (node.number, None) for core in node.cores)


def test_detect_on_this_machine() -> None:
    found = detect()
    assert found.used[-1] == "Linux" and found.topology.source == " + ".join(found.used)
    assert host(found.topology).cores == tuple(sorted(os.sched_getaffinity(0)))
    assert set(found.used) | set(found.refused) >= {"NVML", "Linux"}


def test_detect_kfd_on_a_recorded_host(tmp_path: Path) -> None:
    sys, proc = tree(tmp_path)
    machines.written(machines.mi250x_4(), Path(sys) / "class/kfd/kfd/topology")
    found = detect(sys, proc)
    assert found.used == ("KFD", "Linux") and found.refused == {}
    topology = found.topology
    assert len(topology.gpus) == 4 and host(topology).quota == 3.5
    assert [node.name for node in topology.of_kind(NodeKind.NUMA)] == ["numa0", "numa1"]
    (socket,) = topology.links_between("numa0", "numa1")  # the host's distance, not the driver's
    assert socket.weight == 21
    assert paths.path(topology, "gpu0", "gpu3").kind == PathClass.SYS
    same = load(sys)
    assert (same.nodes, same.links) == (topology.nodes, topology.links)


def test_detect_without_gpus_says_why(tmp_path: Path) -> None:
    sys, proc = tree(tmp_path)
    found = detect(sys, proc)
    assert found.used == ("Linux",) and "no folder 'nodes'" in found.refused["KFD"]
    machines.written(machines.kfd([], {}), Path(sys) / "class/kfd/kfd/topology")
    assert detect(sys, proc).refused["KFD"] == "it knows no GPU"
    assert load(Path(sys)).gpus == ()


class Names:
    """An amdsmi that knows product names and addresses."""

    AmdSmiException = RuntimeError

    def amdsmi_init(self) -> None: ...

    def amdsmi_shut_down(self) -> None: ...

    def amdsmi_get_processor_handles(self) -> list[int]:
        return [0, 1]

    def amdsmi_get_gpu_device_bdf(self, handle: int) -> str:
        return f"0000:1{handle}:00.0"

    def amdsmi_get_gpu_asic_info(self, handle: int) -> dict[str, Any]:
        return {"market_name": "AMD Instinct MI210"}


def test_amd_smi_completes_kfd_and_stands_in_for_it(tmp_path: Path) -> None:
    sys, proc = tree(tmp_path)
    found = detect(sys, proc, amdsmi=Names())
    assert found.used == ("AMD SMI", "Linux") and len(found.topology.gpus) == 2
    machines.written(machines.kfd([0, 1], machines.mesh(2), cpus=2), Path(sys) / "class/kfd/kfd/topology")
    found = detect(sys, proc, amdsmi=Names())
    assert found.used == ("KFD", "AMD SMI", "Linux")
    assert [gpu.model for gpu in found.topology.gpus] == ["AMD Instinct MI210"] * 2
    assert paths.fully_connected(found.topology)


def test_switches_and_nics_come_from_pci(tmp_path: Path) -> None:
    """Root port, switch (a port up, two down), a GPU under one and a NIC under the other."""
    sys, proc = tree(tmp_path)
    machines.written(machines.kfd([0, 1], machines.mesh(2), cpus=2), Path(sys) / "class/kfd/kfd/topology")
    up = "pci0000:00/0000:00:01.0/0000:0e:00.0"
    for place in (f"{up}/0000:0f:00.0/0000:10:00.0", f"{up}/0000:0f:01.0/0000:20:00.0"):
        folder = Path(sys, "devices", place)
        machines.written(dict.fromkeys(("numa_node",), "0") | {"max_link_width": "16"}, folder)
        (folder / "max_link_speed").write_text("32.0 GT/s PCIe")
        for part in (folder, *folder.parents[:3]):
            link = Path(sys, "bus/pci/devices", part.name)
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                link.symlink_to(part)
    card = Path(sys, "class/infiniband/mlx5_0")
    machines.written({"ports/1/rate": "400 Gb/sec (4X NDR)"}, card)
    (card / "device").symlink_to(Path(sys, "bus/pci/devices/0000:20:00.0"))
    found = detect(sys, proc).topology
    (nic,) = found.nics
    assert (nic.label, nic.gbps, nic.numa) == ("mlx5_0", 50.0, 0)
    assert paths.path(found, "gpu0", "nic0").kind == PathClass.PIX
    assert paths.path(found, "gpu1", "nic0").kind == PathClass.SYS
    assert found.links_between("gpu0", "numa0") == ()  # the switch is between
    assert (
        found.links_between("gpu1", "numa1")[0].gbps == 48.0
    )  # what PCI does not show stays as the driver tells
    assert paths.fully_connected(found)


def test_nvml_goes_first_and_may_be_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sys, proc = tree(tmp_path)
    machines.written(machines.mi210_4(), Path(sys) / "class/kfd/kfd/topology")
    module = ModuleType("nvml")
    gpus = [Node(f"gpu{i}", NodeKind.GPU, numa=1) for i in range(2)]
    module.read = lambda _, sys: Topology(gpus, source="NVML")  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "collectives.topology.sources.nvml", module)
    found = detect(sys, proc, nvml=object())
    assert found.used == ("NVML", "Linux") and len(found.topology.gpus) == 2
    monkeypatch.setitem(__import__("sys").modules, "collectives.topology.sources.nvml", None)
    found = detect(sys, proc, nvml=object())
    assert found.used == ("KFD", "Linux") and "cannot be used" in found.refused["NVML"]


def test_join_keeps_numa_nodes_and_speeds_that_only_the_devices_know(tmp_path: Path) -> None:
    nodes = [
        Node("gpu0", NodeKind.GPU),
        Node("numa0", NodeKind.NUMA, numa=0),
        Node("numa7", NodeKind.NUMA, numa=7),
    ]
    links = [
        Link("gpu0", "numa7", LinkKind.PCIE),
        Link("numa0", "numa7", LinkKind.SOCKET),
        Link("numa0", "numa1", LinkKind.SOCKET, gbps=16.0),
    ]
    devices = Topology([*nodes, Node("numa1", NodeKind.NUMA, numa=1)], links, remarks=["odd"])
    found = live.join(devices, linux.read(*tree(tmp_path)))
    assert [node.name for node in found.nodes] == ["gpu0", "numa0", "numa1", "numa7"]
    assert found.links_between("numa0", "numa1")[0] == Link(
        "numa0", "numa1", LinkKind.SOCKET, None, gbps=16.0, weight=21
    )
    assert len(found.links) == 4 and found.remarks == ("odd",)
