"""KFD topologies: meshes, dies, partitions and PCIe only; what is cut or contradicts itself is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import topology_machines as machines
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.topology import paths
from collectives.topology.graph import LinkKind, NodeKind, PathClass, Topology, TopologyError
from collectives.topology.sources import kfd


def read(files: dict[str, str]) -> Topology:
    return kfd.read_text(machines.joined(files), "machine.txt")


def test_folder_and_text_are_the_same_machine(tmp_path: Path) -> None:
    files = machines.mi250x_4()
    folder, text = kfd.read(machines.written(files, tmp_path)), read(files)
    assert (set(folder.nodes), set(folder.links)) == (set(text.nodes), set(text.links))
    assert folder.source == str(tmp_path)


@pytest.mark.parametrize(
    ("files", "count", "gbps"), [(machines.mi300x_8(), 8, 48.0), (machines.mi210_4(), 4, 36.0)]
)
def test_meshes(files: dict[str, str], count: int, gbps: float) -> None:
    found = read(files)
    assert len(found.gpus) == count and paths.fully_connected(found)
    assert paths.path(found, "gpu0", f"gpu{count - 1}") == paths.Path(PathClass.LINK, 1, gbps, 1)
    assert {gpu.group for gpu in found.gpus} == {"hive0"}  # not the id, which is one machine's
    assert {gpu.parent for gpu in found.gpus} == {None}


def test_numa_nodes_and_pcie() -> None:
    found = read(machines.mi300x_8())
    assert [gpu.numa for gpu in found.gpus] == [0] * 4 + [1] * 4
    (link,) = found.links_between("gpu5", "numa1")
    assert (link.kind, link.gbps, link.weight) == (LinkKind.PCIE, 48.0, 20)
    (socket,) = found.links_between("numa0", "numa1")
    assert (socket.kind, socket.weight, socket.gbps) == (LinkKind.SOCKET, 32, None)
    assert (
        found.gpus[0].arch == "gfx942"
        and found.gpus[0].model == "aqua"
        and found.gpus[3].bus == "0000:13:00.0"
    )


def test_numa_nodes_by_the_hosts_numbers(tmp_path: Path) -> None:
    root = machines.written(machines.pcie_4(), tmp_path)
    assert [gpu.numa for gpu in kfd.read(root, [2, 5]).gpus] == [2, 2, 5, 5]
    assert [gpu.numa for gpu in kfd.read(root, [1, 2, 3]).gpus] == [0, 0, 1, 1]


def test_dies_of_one_package_have_four_links_and_detours_none() -> None:
    found = read(machines.mi250x_4())
    assert paths.link_matrix(found) == [[0, 4, 1, 0], [4, 0, 0, 2], [1, 0, 0, 4], [0, 2, 4, 0]]
    assert paths.path(found, "gpu0", "gpu1").gbps == 4 * 36.0
    assert paths.path(found, "gpu0", "gpu3").kind == PathClass.SYS
    assert not paths.fully_connected(found) and paths.islands(found) == [(0, 1, 2, 3)]
    assert {link.weight for link in found.links_between("gpu0", "gpu3")} == {30}


def test_partitions_know_their_card() -> None:
    found = read(machines.partitioned())
    assert [gpu.parent for gpu in found.gpus] == ["0000:05:00.0"] * 4 + ["0000:06:00.0"] * 4
    assert found.gpus[6].bus == "0000:06:00.2"
    assert paths.fully_connected(found)
    assert paths.path(found, "gpu0", "gpu1").gbps == 819.2
    assert paths.path(found, "gpu0", "gpu4") == paths.Path(PathClass.LINK, 1, 48.0, 1)


def test_pcie_only_on_two_sockets() -> None:
    found = read(machines.pcie_4())
    assert paths.islands(found) == [(0,), (1,), (2,), (3,)]
    assert paths.path(found, "gpu0", "gpu1").kind == PathClass.PHB
    assert paths.path(found, "gpu0", "gpu2").kind == PathClass.SYS
    assert {link.weight for link in found.links_between("gpu0", "gpu2")} == {72}
    assert found.gpus[0].arch == "gfx906" and found.gpus[0].group is None
    assert found.links_between("gpu0", "numa0")[0].gbps == 12.0


def test_one_gpu_and_none() -> None:
    one, none = read(machines.kfd([0], {})), read(machines.kfd([], {}))
    assert len(one.gpus) == 1 and not paths.fully_connected(one) and paths.islands(one) == [(0,)]
    assert none.gpus == () and [node.name for node in none.nodes] == ["numa0"]


def test_an_apu_is_a_cpu_and_a_gpu() -> None:
    files = machines.kfd([], {})
    files["nodes/0/properties"] = (
        "cpu_cores_count 8\nsimd_count 16\ngfx_target_version 90012\nlocation_id 512\n"
    )
    found = read(files)
    assert [node.kind for node in found.nodes] == [NodeKind.GPU, NodeKind.NUMA]
    assert found.gpus[0].numa == 0 and found.gpus[0].arch == "gfx90c" and found.gpus[0].bus == "0000:02:00.0"


def test_nodes_kept_from_the_process_are_left_out(tmp_path: Path) -> None:
    files = machines.mi210_4()
    files["nodes/3/properties"] = ""
    found = kfd.read(machines.written(files, tmp_path))
    assert len(found.gpus) == 3 and paths.fully_connected(found)
    assert any("1 nodes are kept" in remark for remark in found.remarks)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nodes/1/properties": "cpu_cores_count 0\n"}, "no simd_count"),
        ({"nodes/1/properties": "simd_count many\n"}, "expected a name and a number"),
        ({"nodes/1/properties": "simd_count 1\nsimd_count 2\ncpu_cores_count 0\n"}, "told twice"),
        ({"nodes/1/io_links/0/properties": "type 2\nnode_from 1\n"}, "no node_to"),
        ({"nodes/1/io_links/1/properties": None}, "has 3 of its 4 io_links: truncated?"),
        ({"nodes/2/properties": None}, "without nodes/2/properties"),
        ({"nodes/1/caches": "1\n"}, "no file of a KFD topology"),
        (
            {"nodes/1/io_links/1/properties": "type 11\nnode_from 1\nnode_to 2\nweight -3\n"},
            "weight -3: expected 0 or more",
        ),
    ],
)
def test_what_is_cut_or_contradicts_itself_is_refused(change: dict[str, str | None], said: str) -> None:
    files: dict[str, Any] = machines.mi210_4() | change
    with pytest.raises(TopologyError, match=r"machine\.txt") as caught:
        read({name: text for name, text in files.items() if text is not None})
    assert said in str(caught.value)


def test_errors_tell_the_line() -> None:
    text = machines.joined(machines.kfd([0], {})) + "### /sys/class/kfd/kfd/topology/nodes/0/name\n"
    with pytest.raises(TopologyError, match="is there twice") as caught:
        kfd.read_text(text, "x")
    assert caught.value.line == text.count("\n")
    for bad in ("", "hello\n", "### /etc/passwd\nroot\n"):
        with pytest.raises(TopologyError):
            kfd.read_text(bad)


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="no folder 'nodes'"):
        kfd.read(tmp_path / "none")
    (tmp_path / "nodes").mkdir()
    with pytest.raises(TopologyError, match="no node"):
        kfd.read(tmp_path)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_fuzz(data: st.DataObject) -> None:
    """Lines lost, doubled, cut or changed: a topology or a TopologyError, and nothing else."""
    lines = machines.joined(machines.mi210_4()).splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        change = data.draw(st.sampled_from(["drop", "double", "cut", "number", "noise"]))
        if change == "drop" and len(lines) > 1:
            del lines[at]
        elif change == "double":
            lines.insert(at, lines[at])
        elif change == "cut":
            lines[at] = lines[at][: len(lines[at]) // 2]
        elif change == "number":
            lines[at] = f"{lines[at].split(' ')[0]} {data.draw(st.integers(-(2**65), 2**65))}"
        else:
            lines[at] = data.draw(st.text(max_size=30))
    try:
        found = kfd.read_text("\n".join(lines))
    except TopologyError:
        return
    paths.link_matrix(found)


@pytest.mark.parametrize(("name", "told"), machines.facts("amd/kfd_").items())
def test_recorded_machines(name: str, told: dict[str, Any]) -> None:
    found = kfd.read_text((machines.SHARED / name).read_text(), name)
    matrix = paths.link_matrix(found)
    pairs = [(a, b) for b in range(len(matrix)) for a in range(b)]
    assert len(found.gpus) == told["gpus"]
    assert Counter(str(matrix[a][b]) for a, b in pairs) == told["direct_link_count_histogram"]
    assert paths.fully_connected(found) == told["fully_connected_by_direct_links"]
    assert [list(island) for island in paths.islands(found)] == told["islands"]
    assert [gpu.numa for gpu in found.gpus] == told["nearest_cpu_node"]
    assert len(found.of_kind(NodeKind.NUMA)) == len(told["cpu_nodes"])
    assert len({gpu.group for gpu in found.gpus}) == len(told["hives"])
    buses = [gpu.bus for gpu in found.gpus]
    assert len(buses) - len(set(buses)) == told["duplicate_location_ids"]
    weights = Counter(f"xGMI weight {link.weight}" for link in found.links if link.kind == LinkKind.XGMI)
    assert weights == told["link_weights"]
    asymmetric = any(matrix[a][b] != matrix[b][a] for a, b in pairs)
    assert asymmetric == told["asymmetric"]
    others: Counter[str] = Counter()
    for a, b in pairs:
        if matrix[a][b] == 0:
            ways = found.links_between(f"gpu{a}", f"gpu{b}")
            others[f"PCIe p2p weight {ways[0].weight}" if ways else "none"] += 1
    assert others == told["other_pairs"]
    versions = {
        None
        if gpu.arch is None
        else f"{int(gpu.arch[3:-2])}{int(gpu.arch[-2], 16):02}{int(gpu.arch[-1], 16):02}"
        for gpu in found.gpus
    }
    assert versions == set(told["gfx"])
