"""``rocm-smi --showtopo``: text with and without its parts, JSON, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import topology_machines as machines
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.topology import paths
from collectives.topology.graph import LinkKind, PathClass, TopologyError
from collectives.topology.sources import rocm_smi

TEXT = """\

=================== ROCm System Management Interface ===================
WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status

======================= Weight between two GPUs ========================
       GPU0         GPU1         GPU2
GPU0   0            15           30
GPU1   15           0            72
GPU2   30           72           0

======================== Hops between two GPUs =========================
       GPU0         GPU1         GPU2
GPU0   0            1            1
GPU1   1            0            3
GPU2   1            3            0

====================== Link Type between two GPUs ======================
       GPU0         GPU1         GPU2
GPU0   0            XGMI         XGMI
GPU1   XGMI         0            PCIE
GPU2   XGMI         PCIE         0

============================== Numa Nodes ==============================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[0]\t\t: (Topology) Numa Affinity: 0
GPU[1]\t\t: (Topology) Numa Node: 0
GPU[1]\t\t: (Topology) Numa Affinity: 0
GPU[2]\t\t: (Topology) Numa Node: -1
GPU[2]\t\t: (Topology) Numa Affinity: -1
========================= End of ROCm SMI Log ==========================
"""
SYSTEM = {
    f"(Topology) {word} between DRM devices {a} and {b}": value
    for word, values in {"Weight": ("15", "52"), "Hops": ("1", "3"), "Link type": ("XGMI", "PCIE")}.items()
    for (a, b), value in (((0, 1), values[0]), ((0, 2), values[1]), ((1, 2), values[1]))
}
DATA: dict[str, Any] = {
    "system": SYSTEM,
    "card0": {"(Topology) Numa Node": "0"},
    "card1": {"(Topology) Numa Node": "0"},
    "card2": {"(Topology) Numa Node": "1"},
}


def test_text() -> None:
    found = rocm_smi.read_text(TEXT, "x")
    assert [gpu.numa for gpu in found.gpus] == [0, 0, None]
    assert paths.link_matrix(found) == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]  # 30 is a way through another device
    assert paths.path(found, "gpu1", "gpu2").kind == PathClass.SYS
    assert {link.weight for link in found.links_between("gpu2", "gpu1")} == {72}
    assert found.links_between("gpu2", "gpu1")[0].kind == LinkKind.PCIE
    assert rocm_smi.read_text(TEXT.encode()).links == found.links


def test_one_gpu_and_tables_without_banners() -> None:
    text = "== Link Type between two GPUs ==\n      GPU0\nGPU0  0\n"
    found = rocm_smi.read_text(text)
    assert len(found.gpus) == 1 and found.links == ()


def test_accessibility_and_a_gpu_that_names_itself() -> None:
    text = (
        "== Link Type between two GPUs ==\n GPU0 GPU1\nGPU0 XGMI PCIE\nGPU1 PCIE 0\n\n"
        "== Link accessibility between two GPUs ==\n GPU0 GPU1\nGPU0 True False\nGPU1 False True\n"
    )
    found = rocm_smi.read_text(text)
    assert found.peers == {("gpu0", "gpu1"): False, ("gpu1", "gpu0"): False}
    assert [link.kind for link in found.links_between("gpu0", "gpu0")] == [LinkKind.XGMI]


def test_unknown_cells_stay_unknown() -> None:
    found = rocm_smi.read_text(TEXT.replace("GPU1   15           0 ", "GPU1   N/A          0 "))
    assert paths.link_matrix(found)[0][1] is None
    found = rocm_smi.read_text(
        TEXT.replace("GPU1   XGMI         0            PCIE", "GPU1   XGMI   0   XXXX")
    )
    assert any("gpu1 to gpu2 is not told" in remark for remark in found.remarks)


@pytest.mark.parametrize(
    ("old", "new", "said", "line"),
    [
        ("GPU2   30           72           0\n", "", "expected the row of GPU2, found nothing", 9),
        ("GPU1   1            0            3\n", "GPU1   1            0\n", "has 2 cells, expected 3", 14),
        ("GPU1   1            0            3\n", "GPU1   1            0     far\n", "'far' is no number", 14),
        ("0            XGMI         XGMI\n", "0            XGMI         WIRE\n", "called 'WIRE'", None),
        ("= End of ROCm SMI Log =", "=", "truncated: expected a line with 'End of ROCm SMI Log'", None),
        ("Link Type between", "Link Tape between", "no table 'Link Type between two GPUs'", None),
        ("Hops between", "Weight between", "a second table", None),
        ("GPU[2]\t\t: (Topology) Numa Node: -1\n", "", "not those of the devices", None),
        ("Numa Node: -1", "Numa Node:", "expected '(Topology) Numa Node: N'", 28),
        ("GPUs =========================\n", "GPUs =\n CARD0\nCARD0 0\n", "expected GPU0, GPU1", 12),
    ],
)
def test_refused(old: str, new: str, said: str, line: int | None) -> None:
    assert old in TEXT
    with pytest.raises(TopologyError) as caught:
        rocm_smi.read_text(TEXT.replace(old, new, 1), "x")
    assert said in str(caught.value)
    assert line is None or caught.value.line == line


def test_json_tells_both_ways() -> None:
    found = rocm_smi.read_json(DATA, "x")
    assert [gpu.numa for gpu in found.gpus] == [0, 0, 1]
    assert paths.link_matrix(found) == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert found.classes["gpu2", "gpu1"] == found.classes["gpu1", "gpu2"] == PathClass.SYS


@pytest.mark.parametrize(
    "data",
    [
        [],
        {},
        "card0",
        {"system": []},
        {"card0": 3},
        {"system": {}},
        DATA | {"system": {k: v for k, v in SYSTEM.items() if "Link type" not in k}},
        DATA | {"system": SYSTEM | {"(Topology) Weight between DRM devices 0 and 1": "much"}},
        DATA | {"system": SYSTEM | {"(Topology) Hops between DRM devices 7 and 9": "1"}},
        DATA | {"card0": {"(Topology) Numa Node": "near"}},
    ],
)
def test_json_refused(data: object) -> None:
    with pytest.raises(TopologyError):
        rocm_smi.read_json(data, "x")


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(TEXT)), st.integers(0, len(TEXT)), st.text(max_size=12))
def test_fuzz_text(start: int, end: int, noise: str) -> None:
    try:
        paths.link_matrix(rocm_smi.read_text(TEXT[:start] + noise + TEXT[max(start, end) :]))
    except TopologyError:
        pass


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*DATA, *SYSTEM]), st.recursive(st.text() | st.none() | st.integers(), st.lists)
    )
)
def test_fuzz_json(data: dict[str, Any]) -> None:
    changed = {**DATA, "system": {**SYSTEM, **data}, **{key: data[key] for key in data if key in DATA}}
    for candidate in (data, changed):
        try:
            rocm_smi.read_json(candidate)
        except TopologyError:
            pass


@pytest.mark.parametrize(("name", "told"), machines.facts("amd/rocm_").items())
def test_recorded_machines(name: str, told: dict[str, Any]) -> None:
    text = (machines.SHARED / name).read_text()
    if name.endswith(".json"):  # its facts are those of the text
        told = machines.facts("amd/rocm_")[name.replace(".json", ".txt")]
    found = (
        rocm_smi.read_json(json.loads(text), name)
        if name.endswith(".json")
        else rocm_smi.read_text(text, name)
    )
    matrix = paths.link_matrix(found)
    pairs = [(a, b) for b in range(len(matrix)) for a in range(b)]
    assert len(found.gpus) == told["gpus"]
    assert Counter(str(matrix[a][b]) for a, b in pairs) == told["direct_link_count_histogram"]
    assert paths.fully_connected(found) == told["fully_connected_by_direct_links"]
    assert [list(island) for island in paths.islands(found)] == told["islands"]
    assert [str(gpu.numa) for gpu in found.gpus if gpu.numa is not None] == told["gpu_numa"]
    assert any(matrix[a][b] != matrix[b][a] for a, b in pairs) == told["asymmetric"]
    others: Counter[str] = Counter()
    for a, b in pairs:
        for link in found.links_between(f"gpu{a}", f"gpu{b}"):
            if link.kind == LinkKind.PCIE:
                others[f"PCIE w{link.weight}"] += 1
    assert others == told["other_pairs"]
