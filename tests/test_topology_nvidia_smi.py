"""What nvidia-smi prints: topo -m, nvlink -s and topo -p2p, of every shape of machine and driver."""

from __future__ import annotations

import pytest
import topology_facts as facts
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.topology import paths
from collectives.topology.graph import NodeKind, PathClass, Topology, TopologyError
from collectives.topology.sources import nvidia_smi, nvidia_smi_nvlink, nvidia_smi_p2p

LEGEND = "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"


def table(cells: list[str], tails: list[str], titles: str, nics: str = "") -> str:
    """A matrix in the tool's own layout; `cells` are rows of words, `nics` the names of the last columns."""
    extra = nics.split()
    names = [f"GPU{i}" for i in range(len(cells) - len(extra))] + extra
    lines = ["\t" + "\t".join(names) + ("\t" + titles if titles else "")]
    for name, row, tail in zip(names, cells, tails + [""] * len(extra), strict=True):
        words = [" X " if word == "X" else word for word in row.split()]
        lines.append("\t".join([name, *words, tail]).rstrip())
    return "\n".join(lines) + "\n" + LEGEND


def uniform(count: int, word: str) -> list[str]:
    return [" ".join("X" if i == j else word for j in range(count)) for i in range(count)]


NVSWITCH = table(
    uniform(8, "NV18"),
    [f"{32 * (i // 4)}-{32 * (i // 4) + 31}\t{i // 4}\t\tN/A" for i in range(8)],
    "CPU Affinity\tNUMA Affinity\tGPU NUMA ID",
)
CUBE = table(
    [
        "X NV1 NV1 NV2 NV2 SYS SYS SYS",
        "NV1 X NV2 NV1 SYS NV2 SYS SYS",
        "NV1 NV2 X NV2 SYS SYS NV1 SYS",
        "NV2 NV1 NV2 X SYS SYS SYS NV1",
        "NV2 SYS SYS SYS X NV1 NV1 NV2",
        "SYS NV2 SYS SYS NV1 X NV2 NV1",
        "SYS SYS NV1 SYS NV1 NV2 X NV2",
        "SYS SYS SYS NV1 NV2 NV1 NV2 X",
    ],
    ["0-19"] * 4 + ["20-39"] * 4,
    "CPU Affinity",
)
PAIRS = table(
    ["X NV4 SYS SYS SYS", "NV4 X SYS SYS SYS", "SYS SYS X NV4 PXB", "SYS SYS NV4 X PIX", "SYS SYS PXB PIX X"],
    ["0-7\t0", "0-7\t0", "8-15\t1", "8-15\t1"],
    "CPU Affinity\tNUMA Affinity",
    "NIC0",
)
PCIE = table(
    ["X PIX SOC SOC PHB", "PIX X SOC SOC PHB", "SOC SOC X PIX SOC", "SOC SOC PIX X SOC", "PHB PHB SOC SOC X"],
    ["0-5", "0-5", "6-11", "6-11"],
    "CPU Affinity",
    "mlx4_0",
)
ONE = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-7\t0\t\tN/A\n" + LEGEND
SHAPES = {"nvswitch": NVSWITCH, "cube": CUBE, "pairs": PAIRS, "pcie": PCIE, "one": ONE}

A100 = "".join(
    f"GPU {i}: NVIDIA A100-SXM4-40GB (UUID: GPU-0)\n" + "".join(f"\t Link {j}: 25 GB/s\n" for j in range(12))
    for i in range(3)
)


def test_nvswitch() -> None:
    machine = nvidia_smi.read(NVSWITCH)
    assert facts.counts(machine) == {"18": 28} and paths.fully_connected(machine)
    assert [node.kind for node in machine.nodes if node.kind != NodeKind.GPU] == [NodeKind.NVSWITCH]
    assert paths.path(machine, "gpu0", "gpu7").hops == 2  # more links than ports: not direct ones
    assert [gpu.numa for gpu in machine.gpus] == [0] * 4 + [1] * 4
    assert machine.host is not None and machine.host.cores == tuple(range(64))
    assert machine.remarks


def test_cube_mesh() -> None:
    machine = nvidia_smi.read(CUBE)
    assert facts.counts(machine) == {"1": 8, "2": 8, "0": 12} and facts.best_ring(machine) == 2
    assert facts.others(machine) == {PathClass.SYS: 12}
    assert not machine.of_kind(NodeKind.NVSWITCH) and paths.path(machine, "gpu0", "gpu3").hops == 1
    assert machine.gpus[0].numa is None and machine.host is None  # the column is not there


def test_pairs_over_pcie() -> None:
    machine = nvidia_smi.read(PAIRS + "\nNIC Legend:\n\n  NIC0: mlx5_2\n")
    assert paths.islands(machine) == [(0, 1), (2, 3)]
    assert paths.path(machine, "gpu0", "gpu1").gbps is None  # which GPUs they are is not told
    assert [(nic.label, nic.numa) for nic in machine.nics] == [("mlx5_2", 1)]
    assert paths.path(machine, "nic0", "gpu3").kind == PathClass.PIX
    assert paths.path(machine, "gpu2", "nic0").kind == PathClass.PXB
    assert paths.nearest(machine, "nic0", machine.gpus) == (machine.gpus[3],)


def test_pcie_on_two_sockets_in_old_words() -> None:
    machine = nvidia_smi.read(PCIE)
    assert facts.others(machine) == {PathClass.PIX: 2, PathClass.SYS: 4}
    assert machine.nics[0].label == "mlx4_0"
    assert paths.path(machine, "gpu1", "nic0").kind == PathClass.PHB


def test_one_and_none() -> None:
    assert [gpu.name for gpu in nvidia_smi.read(ONE).gpus] == ["gpu0"]
    for read in (nvidia_smi.read, nvidia_smi_nvlink.read, nvidia_smi_p2p.read):
        assert read("No devices were found\n").nodes == ()


def same(a: Topology, b: Topology) -> bool:
    return a.nodes == b.nodes and a.links == b.links and a.classes == b.classes and a.host == b.host


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.expandtabs(8),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: (
            "$ nvidia-smi topo -m\n"
            + text.replace("\tGPU0", "\x1b[4m\tGPU0", 1).replace("ID\n", "ID\x1b[0m\n")
        ),
        lambda text: text.replace("\tGPU0", "[4m\tGPU0", 1),
        lambda text: "\n".join("    " + line for line in text.split("\n")),
        lambda text: text.encode("utf-16"),
        lambda text: text[: text.index("Legend")],
        lambda text: text.replace("Affinity\tNUMA", "AffinityNUMA").replace("GPU0\tGPU1\t", "GPU0GPU1"),
        lambda text: text.replace("SOC", "SYS"),
    ],
    ids=["spaces", "crlf", "escapes", "rests", "indented", "utf16", "no legend", "glued titles", "new word"],
)
def test_forms(name: str, change) -> None:
    assert same(nvidia_smi.read(change(SHAPES[name])), nvidia_smi.read(SHAPES[name]))


def test_glued_and_missing_cells() -> None:
    glued = (
        "        GPU0    GPU1CPU Affinity    NUMA Affinity\n"
        "GPU0XPHB0-3,8    0\n"
        "GPU1PHB X                           1\n"
    )
    machine = nvidia_smi.read(glued)
    assert [gpu.numa for gpu in machine.gpus] == [0, 1] and machine.host is not None
    assert [node.cores for node in machine.host.numa] == [(0, 1, 2, 3, 8), ()]
    short = nvidia_smi.read(NVSWITCH.replace("\t\tN/A", ""))
    assert [gpu.numa for gpu in short.gpus] == [0] * 4 + [1] * 4
    unknown = nvidia_smi.read("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0\t0-1\n")
    assert unknown.gpus[0].numa is None
    none = nvidia_smi.read("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tN/A\tN/A\n")
    assert none.gpus[0].numa is None and none.host is None


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", None, "expected what nvidia-smi topo -m prints"),
        ("hello\nworld", None, "GPU0"),
        (b"\xff\x00\xfe", None, "not text"),
        (NVSWITCH[:300], 1, "no row for GPU4, GPU5, GPU6, GPU7"),
        ("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t\t0", 2, "which columns"),
        (PAIRS.replace("PXB", "PBX", 1), 4, '"PBX" in the row of GPU2 under NIC0'),
        (PAIRS.replace("GPU3\tSYS", "GPU4\tSYS", 1), 1, "no row for GPU3"),
        (PAIRS.replace("GPU1\tNV4", "GPU0\tNV4", 1), 3, "a second row for GPU0"),
        (PCIE.replace("PIX", "PXB", 1), 2, "GPU0 to GPU1 is PXB, but GPU1 to GPU0 is PIX"),
        (PCIE.replace(" X ", "PIX", 1), 2, "where GPU0 meets GPU0"),
        (PCIE.replace("PIX", " X ", 1), 2, "where GPU0 meets GPU1"),
        ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV40-7\nGPU1\tNV4\t X \t0-7", 2, '"-7" under CPU Affinity'),
        (PAIRS.replace("NV4", "NV99", 1), 2, "no GPU has so many links"),
        (PAIRS.replace("0-7", "0-99999999999", 1), 2, "expected numbers such as 0-3,8"),
        (PAIRS.replace("8-15\t1", "8-15\t1\t7", 1), 4, "after the cells of GPU2"),
        (PAIRS.replace("GPU1", "GPU0", 1), 1, "stands twice"),
        ("\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n", 2, '"OK"'),
    ],
)
def test_refused(text: str | bytes, line: int | None, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        nvidia_smi.read(text, "file")
    assert message in str(caught.value) and caught.value.source == "file"
    assert line is None or caught.value.line == line


def test_one_way_link_stays_one_way() -> None:
    machine = nvidia_smi.read(PAIRS.replace("NV4", "SYS", 1))
    assert not machine.links_between("gpu0", "gpu1") and machine.links_between("gpu1", "gpu0")
    assert paths.path(machine, "gpu0", "gpu1").kind == PathClass.SYS


def test_joined_texts() -> None:
    matrix = table(uniform(3, "NV6"), [""] * 3, "")
    access = "\tGPU0\tGPU1\tGPU2\n GPU0\tX\tOK\tCNS\n GPU1\tOK\tX\tU\n GPU2\tGNS\tDR\tX\n"
    machine = nvidia_smi.read(matrix, nvlink=A100, p2p=access)
    assert [gpu.arch for gpu in machine.gpus] == ["sm_80"] * 3
    assert paths.fast_links(machine, "gpu0", "gpu2") == (6, 120.0)  # 12 ports are enough for direct links
    assert not machine.of_kind(NodeKind.NVSWITCH)
    assert machine.peers == {
        ("gpu0", "gpu1"): True,
        ("gpu1", "gpu0"): True,
        ("gpu0", "gpu2"): False,
        ("gpu2", "gpu0"): False,
        ("gpu2", "gpu1"): False,
    }
    switched = nvidia_smi.read(table(uniform(3, "NV12"), [""] * 3, ""), nvlink=A100)
    assert switched.of_kind(NodeKind.NVSWITCH) and paths.fast_links(switched, "gpu0", "gpu2") == (12, 240.0)
    with pytest.raises(TopologyError, match="12 active links"):
        nvidia_smi.read(table(uniform(3, "NV18"), [""] * 3, ""), nvlink=A100)
    with pytest.raises(TopologyError, match="not one machine"):
        nvidia_smi.read(table(uniform(2, "NV12"), [""] * 2, ""), nvlink=A100)


def test_a_gpu_that_lost_links_behind_a_switch() -> None:
    rows = [
        " ".join("X" if i == j else "NV12" if 2 in (i, j) else "NV18" for j in range(4)) for i in range(4)
    ]
    machine = nvidia_smi.read(table(rows, [""] * 4, ""))
    assert machine.of_kind(NodeKind.NVSWITCH) and facts.counts(machine) == {"18": 3, "12": 3}


def test_nvlink_status_alone() -> None:
    text = A100.replace("Link 11: 25 GB/s", "Link 11: <inactive>", 1)
    parsed = nvidia_smi_nvlink.parse(text)
    assert parsed[0].active == 11 and parsed[0].raw[11] is None and parsed[1].active == 12
    machine = nvidia_smi_nvlink.read(text)
    assert machine.remarks[0].startswith("gpu0: 11 of 12 NVLinks up, 25 GB/s raw each")
    assert machine.gpus[2].model == "NVIDIA A100-SXM4-40GB" and not machine.links
    for bad in (
        "Link 0: 25 GB/s",
        A100 + "GPU 0: again",
        A100 + "Link",
        A100 + " Link 3: 25 GB/s",
        "nothing",
    ):
        with pytest.raises(TopologyError):
            nvidia_smi_nvlink.parse(bad)


def test_peer_access_alone() -> None:
    machine = nvidia_smi_p2p.read(" \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n")
    assert machine.peers == {("gpu0", "gpu1"): False, ("gpu1", "gpu0"): False}
    for bad in (
        "",
        "\tGPU0\tGPU1\nGPU0\tX\tOK\n",
        "\tGPU0\nGPU0\tOK\n",
        "\tGPU0\tGPU1\nGPU0\tX\tWHY\nGPU1\tOK\tX\n",
    ):
        with pytest.raises(TopologyError):
            nvidia_smi_p2p.parse(bad)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_mutations_raise_nothing_else(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([*SHAPES.values(), A100, "\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n"]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 20))
        put = data.draw(
            st.text(max_size=6) | st.sampled_from(["NV9" * 9, "GPU", "GPU7", "\t", "\n", " X ", "9" * 5000])
        )
        text = text[:at] + put + text[at + cut :]
    for read in (nvidia_smi.read, nvidia_smi_nvlink.read, nvidia_smi_p2p.read):
        try:
            read(text)
        except TopologyError:
            pass
    try:
        nvidia_smi.read(NVSWITCH, nvlink=text, p2p=text)
    except TopologyError:
        pass


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_raise_nothing_else(data: bytes) -> None:
    for read in (nvidia_smi.read, nvidia_smi_nvlink.read, nvidia_smi_p2p.read):
        with pytest.raises(TopologyError):
            read(data)


WORDS = {name: (PathClass[name],) for name in ("PIX", "PXB", "PHB", "NODE", "SYS")} | {
    "SOC": (PathClass.SYS,)
}


@pytest.mark.skipif(not facts.FACTS, reason="the recorded machines are not here")
@pytest.mark.parametrize("name", facts.recorded("nvidia/topo_"))
def test_recorded_matrices(name: str) -> None:
    machine = nvidia_smi.read((facts.FOLDER / name).read_bytes(), name)
    facts.check(machine, facts.FACTS[name], WORDS)


@pytest.mark.skipif(not facts.FACTS, reason="the recorded machines are not here")
def test_recorded_details() -> None:
    def load(name: str) -> Topology:
        return nvidia_smi.read((facts.FOLDER / "nvidia" / name).read_bytes(), name)

    dgx = load("topo_dgx_a100_8gpu_10nic.txt")
    assert [gpu.numa for gpu in dgx.gpus] == [3, 3, 1, 1, 7, 7, 5, 5] and len(dgx.nics) == 10
    half = load("topo_a100_4of8_12nic.txt")
    assert len(half.nics) == 12 and [nic.numa for nic in half.nics[:5]] == [3, 3, 1, 1, None]
    assert load("topo_a100_custom_4gpu_nv4.txt").gpus[0].numa is None  # a range
    near = load("topo_4gpu_nv4_pairs_nic.txt")
    assert paths.nearest(near, "nic0", near.gpus) == (near.gpus[3],)
    status = facts.FOLDER / "nvidia" / "nvlink_s_2x3090.txt"
    assert [gpu.raw for gpu in nvidia_smi_nvlink.parse(status.read_bytes()).values()] == [
        dict.fromkeys(range(4), 14.062)
    ] * 2
    a100 = nvidia_smi_nvlink.parse((facts.FOLDER / "nvidia" / "nvlink_s_a100_8gpu.txt").read_bytes())
    assert [gpu.active for gpu in a100.values()] == [12] * 8
    for name, reach, pairs in (("p2p_r_8gpu_all_ok", True, 56), ("p2p_rw_2x5090_gns", False, 2)):
        machine = nvidia_smi_p2p.read((facts.FOLDER / "nvidia" / f"{name}.txt").read_bytes())
        assert list(machine.peers.values()) == [reach] * pairs
