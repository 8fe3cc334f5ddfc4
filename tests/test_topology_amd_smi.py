"""AMD SMI: its text, both shapes of its JSON, and the library by a stand-in that answers as it does."""

from __future__ import annotations

import json
from typing import Any

import pytest
import topology_machines as machines
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.topology import paths
from collectives.topology.graph import LinkKind, PathClass, TopologyError
from collectives.topology.sources import amd_smi

BUSES = ("0000:0c:00.0", "0000:22:00.0", "0001:38:00.0")
KINDS = (("SELF", "XGMI", "PCIE"), ("XGMI", "SELF", "PCIE"), ("PCIE", "PCIE", "SELF"))
WEIGHTS = ((0, 15, 72), (15, 0, 72), (72, 72, 0))
HOPS = ((0, 1, 3), (1, 0, 3), (3, 3, 0))
BANDWIDTHS = (("N/A", "50000-100000", "N/A"), ("50000-100000", "N/A", "N/A"), ("N/A", "N/A", "N/A"))
ACCESS = (
    ("ENABLED", "ENABLED", "DISABLED"),
    ("ENABLED", "ENABLED", "DISABLED"),
    ("DISABLED", "DISABLED", "ENABLED"),
)


def table(title: str, cells: Any) -> str:
    rows = "".join(
        bus.ljust(13) + "".join(str(cell).ljust(13) for cell in row) + "\n"
        for bus, row in zip(BUSES, cells, strict=True)
    )
    return f"{title} TABLE:\n{'':13}{' '.join(BUSES)}\n{rows}\n"


TEXT = (
    table("ACCESS", ACCESS)
    + table("WEIGHT", WEIGHTS)
    + table("HOPS", HOPS)
    + table("LINK TYPE", KINDS)
    + table("NUMA BW", BANDWIDTHS)
    + table("DMA", (("SELF", "T", "N/A"),) * 3)
    + "\nLegend:\n  SELF = Current GPU\n  N/A = Not supported\n"
)
NEW: list[dict[str, Any]] = [
    {
        "gpu": a,
        "bdf": BUSES[a],
        "links": [
            {
                "gpu": b,
                "bdf": BUSES[b],
                "weight": WEIGHTS[a][b],
                "link_status": ACCESS[a][b],
                "link_type": KINDS[a][b],
                "num_hops": HOPS[a][b],
                "bandwidth": BANDWIDTHS[a][b],
            }
            for b in range(3)
        ],
    }
    for a in range(3)
]
OLD: list[dict[str, Any]] = [
    {"gpu": a}
    | {
        key: {f"gpu_{b}": cells[a][b] for b in range(3)}
        for key, cells in {
            "link_accessibility": ACCESS,
            "weight": WEIGHTS,
            "hops": HOPS,
            "link_type": KINDS,
            "numa_bandwidth": BANDWIDTHS,
        }.items()
    }
    for a in range(3)
]


@pytest.mark.parametrize("shape", ["text", "new", "old"])
def test_text_and_both_shapes_of_json_tell_the_same(shape: str) -> None:
    if shape == "text":
        found = amd_smi.read_text(TEXT, "x")
    else:
        found = amd_smi.read_json(json.loads(json.dumps(NEW if shape == "new" else OLD)), "x")
    assert [gpu.bus for gpu in found.gpus] == ([None] * 3 if shape == "old" else list(BUSES))
    # The least bandwidth is that of one link, the greatest that of all.
    assert paths.link_matrix(found) == [[0, 2, 0], [2, 0, 0], [0, 0, 0]]
    assert paths.path(found, "gpu0", "gpu2").kind == PathClass.SYS
    assert found.peers["gpu0", "gpu1"] and not found.peers["gpu0", "gpu2"]
    assert len(found.links) == 6


def test_one_gpu() -> None:
    links = [{"gpu": 0, "link_type": "SELF", "weight": 0}]
    found = amd_smi.read_json([{"gpu": 0, "bdf": BUSES[0], "links": links}])
    assert len(found.gpus) == 1 and found.links == () and found.peers == {}


def test_links_that_are_disabled_count_none() -> None:
    found = amd_smi.read_text(TEXT.replace("ENABLED      ENABLED ", "ENABLED      DISABLED ", 1))
    assert paths.link_matrix(found)[0][1] == 0
    assert {link.count for link in found.links_between("gpu0", "gpu1")} == {0}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("LINK TYPE TABLE", "LINK TALE TABLE", "no 'LINK TYPE TABLE:'"),
        ("SELF         XGMI         PCIE", "SELF         XGMI", "has 2 cells, expected 3"),
        ("SELF         XGMI         PCIE", "SELF         XGMI         IB", "'IB': expected XGMI, PCIE"),
        ("50000-100000", "fast", "expected the least and the greatest MB/s"),
        ("72", "-2", "'-2' is no number"),
        ("WEIGHT TABLE", "HOPS TABLE", "a second table HOPS"),
        ("DISABLED", "MAYBE   ", "expected ENABLED or DISABLED"),
        (
            "HOPS TABLE:\n             0000",
            "HOPS TABLE:\n             0009",
            "expected the row of 0009:0c:00.0",
        ),
    ],
)
def test_text_refused(old: str, new: str, said: str) -> None:
    assert old in TEXT
    with pytest.raises(TopologyError, match=r"^x") as caught:
        amd_smi.read_text(TEXT.replace(old, new, 1), "x")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        [],
        {},
        "gpu",
        [3],
        [{"gpu": "0"}],
        [{"gpu": 0}],
        NEW[:2],
        OLD[1:],
        [NEW[0], NEW[0], NEW[2]],
        [{**NEW[0], "bdf": "here"}, *NEW[1:]],
        [{**NEW[0], "links": 3}, *NEW[1:]],
        [{**NEW[0], "links": [{"gpu": 0}]}, *NEW[1:]],
        [{**NEW[0], "links": [*NEW[0]["links"], NEW[0]["links"][0]]}, *NEW[1:]],
        [{**OLD[0], "weight": []}, *OLD[1:]],
        [{**OLD[0], "hops": {"card": 1}}, *OLD[1:]],
        [{**OLD[0], "weight": {"gpu_0": "x"}}, *OLD[1:]],
    ],
)
def test_json_refused(data: object) -> None:
    with pytest.raises(TopologyError):
        amd_smi.read_json(data, "x")


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(TEXT)), st.integers(0, len(TEXT)), st.text(max_size=12))
def test_fuzz_text(start: int, end: int, noise: str) -> None:
    try:
        paths.link_matrix(amd_smi.read_text(TEXT[:start] + noise + TEXT[max(start, end) :]))
    except TopologyError:
        pass


SCRAPS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["gpu", "bdf", "links", "weight", "link_type", "gpu_0"]), inner)
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([NEW, OLD]), st.integers(0, 2), st.sampled_from([*NEW[0], *OLD[0]]), SCRAPS)
def test_fuzz_json(whole: list[dict[str, Any]], at: int, key: str, scrap: Any) -> None:
    for data in (scrap, [{**entry, key: scrap} if i == at else entry for i, entry in enumerate(whole)]):
        try:
            amd_smi.read_json(data)
        except TopologyError:
            pass


class Fault(Exception):
    pass


class Library:
    """What of amdsmi is asked for: four devices, two parts of each of two cards."""

    AmdSmiException = Fault

    def __init__(self, lacks: str = "", fails: str = "", count: int = 4) -> None:
        self.lacks, self.fails, self.count, self.running = lacks, fails, count, 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("amdsmi_"):
            if name == self.lacks:
                raise AttributeError(name)
            if name == self.fails:
                return self.fault
        return super().__getattribute__(name)

    def fault(self, *_: object) -> None:
        raise Fault("not supported")

    def amdsmi_init(self) -> None:
        self.running += 1

    def amdsmi_shut_down(self) -> None:
        self.running -= 1

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(self.count))

    def amdsmi_get_gpu_device_bdf(self, handle: int) -> str:
        return f"0000:{5 + handle // 2:02X}:00.{handle % 2}"

    def amdsmi_get_gpu_asic_info(self, handle: int) -> dict[str, Any]:
        return {
            "market_name": "AMD Instinct MI300X",
            "target_graphics_version": "gfx942",
            "asic_serial": "0xC0FFEE",
        }

    def amdsmi_topo_get_numa_node_number(self, handle: int) -> int:
        return handle // 2

    def amdsmi_get_xgmi_info(self, handle: int) -> dict[str, Any]:
        return {"xgmi_hive_id": 0xABCDEF0123456789, "xgmi_node_id": handle}

    def amdsmi_topo_get_link_type(self, a: int, b: int) -> dict[str, int]:
        return {"hops": 1, "type": 2}

    def amdsmi_topo_get_link_weight(self, a: int, b: int) -> int:
        return 13 if a // 2 == b // 2 else 41

    def amdsmi_get_minmax_bandwidth_between_processors(self, a: int, b: int) -> dict[str, int]:
        same = a // 2 == b // 2
        return {"min_bandwidth": 819200 if same else 0, "max_bandwidth": 819200 if same else 0}

    def amdsmi_is_P2P_accessible(self, a: int, b: int) -> bool:  # noqa: N802 (the library's name)
        return True


def test_library() -> None:
    library = Library()
    found = amd_smi.read(library)
    assert library.running == 0
    assert [gpu.bus for gpu in found.gpus][1:3] == ["0000:05:00.1", "0000:06:00.0"]
    assert {gpu.parent for gpu in found.gpus} == {"0000:05:00.0", "0000:06:00.0"}
    assert {(gpu.model, gpu.arch, gpu.group) for gpu in found.gpus} == {
        ("AMD Instinct MI300X", "gfx942", "hive0")
    }
    assert [gpu.numa for gpu in found.gpus] == [0, 0, 1, 1]
    assert paths.fully_connected(found)
    assert (paths.path(found, "gpu0", "gpu1").gbps, paths.path(found, "gpu0", "gpu2").gbps) == (819.2, 48.0)
    assert all(found.peers.values()) and len(found.peers) == 12


@pytest.mark.parametrize(
    "call",
    [
        "amdsmi_get_gpu_device_bdf",
        "amdsmi_get_gpu_asic_info",
        "amdsmi_topo_get_numa_node_number",
        "amdsmi_get_xgmi_info",
        "amdsmi_topo_get_link_type",
        "amdsmi_topo_get_link_weight",
        "amdsmi_get_minmax_bandwidth_between_processors",
        "amdsmi_is_P2P_accessible",
    ],
)
def test_library_that_does_not_answer(call: str) -> None:
    for library in (Library(lacks=call), Library(fails=call)):
        found = amd_smi.read(library)
        assert len(found.gpus) == 4 and library.running == 0
        if call == "amdsmi_topo_get_link_type":
            assert found.links == () and "is not told" in found.remarks[0]
        else:
            assert {link.kind for link in found.links} == {LinkKind.XGMI}
        if call == "amdsmi_topo_get_link_weight":
            assert paths.link_matrix(found)[0] == [0, 1, None, None]


def test_library_that_is_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TopologyError, match="does not start: not supported"):
        amd_smi.read(Library(fails="amdsmi_init"))
    for library in (Library(count=0), Library(fails="amdsmi_get_processor_handles")):
        with pytest.raises(TopologyError, match="AMD SMI: it"):
            amd_smi.read(library)
        assert library.running == 0
    monkeypatch.setitem(__import__("sys").modules, "amdsmi", None)
    with pytest.raises(TopologyError, match="amdsmi cannot be used"):
        amd_smi.read()


@pytest.mark.skipif(not machines.SHARED.exists(), reason="the recorded machines are not here")
def test_recorded_machine() -> None:
    name = "amd/amdsmi_topology_mi300x_links.json"
    found = amd_smi.read_json(json.loads((machines.SHARED / name).read_text()), name)
    assert len(found.gpus) == 8 and paths.fully_connected(found) and found.gpus[7].bus == "0000:df:00.0"
    assert {link.weight for link in found.links} == {15}
