"""The cost model: what each algorithm loads, what it waits for, and that no machine makes it go wrong."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from topology_fleet import a100_board, cube_mesh, l40s_4, nvswitch, pcie_tree, rtx_pair, two_islands, xgmi
from topology_shapes import full_mesh, machine, two_sockets

from collectives.topology import constants
from collectives.topology.call import COLLECTIVES, SIZES
from collectives.topology.constants import default, parse
from collectives.topology.cost import ALGORITHMS, Costs, soft
from collectives.topology.graph import Link, LinkKind, Node, NodeKind, PathClass, Topology, TopologyError
from collectives.topology.routes import Routes, chosen

MIB = 1 << 20
GIB = 1 << 30
UNKNOWN = default().unknown


def loads(topology: Topology, flows: list[tuple[int, int, float]]) -> float:
    """Microseconds at full speed."""
    return Routes(topology, UNKNOWN).busiest(flows, 1.0, 1.0)


def everyone(n: int, size: float) -> list[tuple[int, int, float]]:
    return [(i, j, size) for i, j in itertools.permutations(range(n), 2)]


# What flows load.


def test_a_mesh_has_a_link_for_each_pair() -> None:
    assert loads(xgmi("gfx942"), everyone(8, 48e9)) == pytest.approx(1e6)
    assert loads(xgmi("gfx942"), [(0, 1, 48e9)]) == pytest.approx(1e6)


def test_a_device_shares_its_ports_to_a_switch() -> None:
    h100 = nvswitch("sm_90")
    assert loads(h100, [(0, 1, 18 * 20.6e9)]) == pytest.approx(1e6)
    assert loads(h100, everyone(8, 18 * 20.6e9)) == pytest.approx(7e6)
    assert loads(h100, [(0, 1, 18 * 20.6e9), (2, 1, 18 * 20.6e9)]) == pytest.approx(2e6)  # into one


def test_a_source_that_knows_no_switch_gives_the_same() -> None:
    plain = full_mesh(8, 18, gbps=20.6, arch="sm_90")
    for flows in ([(0, 1, 1e9)], everyone(8, 1e9)):
        assert loads(plain, flows) == pytest.approx(loads(nvswitch("sm_90"), flows))


def test_flows_share_the_uplink_of_a_switch_and_the_sockets() -> None:
    tree = pcie_tree("sm_80", [[0, 1], [2, 3]], 4, [0, 1])
    assert loads(tree, [(0, 1, 24e9), (2, 3, 24e9)]) == pytest.approx(1e6)
    assert loads(tree, [(0, 2, 24e9)]) == pytest.approx(1.5e6)  # the sockets' 16 GB/s
    assert loads(tree, [(0, 2, 24e9), (1, 3, 24e9)]) == pytest.approx(3e6)
    assert loads(tree, [(0, 2, 24e9), (3, 1, 24e9)]) == pytest.approx(1.5e6)  # one each way
    one_socket = pcie_tree("sm_80", [[0, 1], [2, 3]], 4)
    assert loads(one_socket, [(0, 2, 24e9), (1, 3, 24e9)]) == pytest.approx(2e6)  # one uplink


def test_classes_alone_imply_a_tree() -> None:
    """What nvidia-smi topo -m tells: two devices a switch, two switches a socket, all speeds unknown."""
    told = machine(8, {}, arch="sm_80", apart=two_sockets)
    routes = Routes(told, UNKNOWN)
    slot, socket = UNKNOWN["pcie"] * 1e9, UNKNOWN["socket"] * 1e9
    assert loads(told, [(0, 1, slot)]) == pytest.approx(1e6)
    assert loads(told, [(0, 2, slot), (1, 3, slot)]) == pytest.approx(2e6)  # one way out of the switch
    assert loads(told, [(i, i + 4, socket) for i in range(4)]) == pytest.approx(4e6)
    assert loads(told, [(0, 4, socket), (4, 0, socket)]) == pytest.approx(1e6)
    assert any("6 GB/s" in remark for remark in routes.remarks)


def test_devices_of_which_nothing_is_known_share_one_way() -> None:
    told = machine(4, {})
    assert loads(told, everyone(4, UNKNOWN["socket"] * 1e9)) == pytest.approx(12e6)
    assert "nothing is known" in Routes(told, UNKNOWN).remarks[0]


@pytest.mark.parametrize(("arch", "gbps"), [("sm_90", 20.6), ("sm_999", 12.0), (None, 12.0)])
def test_links_of_unknown_speed(arch: str | None, gbps: float) -> None:
    """By the architecture if that is known, else the slowest there is; an unknown number is one."""
    assert loads(machine(2, {(0, 1): 2}, arch=arch), [(0, 1, 2e9 * gbps)]) == pytest.approx(1e6)
    assert loads(machine(2, {(0, 1): None}, arch=arch), [(0, 1, 1e9 * gbps)]) == pytest.approx(1e6)


# What algorithms move.


def bandwidth(topology: Topology, algorithm: str, collective: str, dtype: str = "float32") -> float:
    """GB/s of a call, for long calls, as parts of the links' speed."""
    costs = Costs(topology)
    wide = {"efficiency": 1.0, "nvls_efficiency": 1.0, "nccl_efficiency": 1.0}
    even = parse_with(lambda data: [row.update(figures(wide)) for row in data["gpu"].values()])
    first = costs.with_constants(even).predict(algorithm, collective, 4 * GIB, dtype)
    second = costs.with_constants(even).predict(algorithm, collective, 8 * GIB, dtype)
    assert first is not None and second is not None
    return 4 * GIB / (second - first) / 1e3


def figures(values: dict[str, float]) -> dict[str, dict[str, object]]:
    return {name: {"value": value, "source": "test"} for name, value in values.items()}


def parse_with(change: object) -> constants.Constants:
    data = json.loads(constants.FILE.read_text(encoding="utf-8"))
    change(data)  # type: ignore[operator]
    return parse(data, "test")


H100_PORT = 18 * 20.6


@pytest.mark.parametrize(
    ("algorithm", "collective", "times"),
    [
        ("ll", "all_reduce", 14),
        ("one_shot", "all_reduce", 7),
        ("two_shot", "all_reduce", 2 * 7 / 8),
        ("chain", "all_reduce", 2),
        ("ring", "all_reduce", 2 * 7 / 8),
        ("nvls", "all_reduce", 9 / 8),
        ("nccl", "all_reduce", 9 / 8),
        ("one_shot", "all_gather", 7 / 8),
        ("ring", "reduce_scatter", 7 / 8),
        ("one_shot", "broadcast", 7),
        ("two_shot", "broadcast", 2 * 7 / 8),
        ("ring", "broadcast", 1),
        ("nvls", "broadcast", 1),
        ("nccl", "broadcast", 1),
    ],
)
def test_bytes_through_the_busiest_port(algorithm: str, collective: str, times: float) -> None:
    assert bandwidth(nvswitch("sm_90"), algorithm, collective) == pytest.approx(H100_PORT / times, rel=1e-3)


def test_sixteen_bits_travel_up_the_chain_as_thirty_two() -> None:
    wide, narrow = (bandwidth(nvswitch("sm_90"), "chain", "all_reduce", t) for t in ("float32", "bfloat16"))
    assert wide / narrow == pytest.approx(1.5, rel=1e-3)


def test_two_ranks_of_a_mesh_have_one_link() -> None:
    """Seven times as slow as all eight (MI300X): the others' links do not help."""
    eight, two = (Costs(xgmi("gfx942"), n).predict("two_shot", "all_reduce", GIB) for n in (8, 2))
    assert eight and two and two / eight == pytest.approx(4.0, rel=0.05)  # 2 S/2 on one link; 2 S/8 on each


def test_rings_of_the_cube_mesh_go_over_all_links() -> None:
    assert bandwidth(cube_mesh(), "ring", "all_reduce") == pytest.approx(120 / 1.75, rel=1e-3)


def test_trees_cross_once_between_islands() -> None:
    """All of an all_reduce's bytes go over the socket once each way, where a ring sends 2 (n - 1)/n."""
    ring, tree = (bandwidth(two_islands(), name, "all_reduce") for name in ("ring", "tree"))
    assert tree / ring == pytest.approx(2 * 7 / 8, rel=1e-3)


def test_more_ranks_wait_longer() -> None:
    for algorithm in ("ll", "one_shot", "two_shot", "ring", "chain", "nccl"):
        times = [Costs(nvswitch("sm_90"), n).predict(algorithm, "all_reduce", 0) for n in range(2, 9)]
        assert times == sorted(times), algorithm  # type: ignore[type-var]


def test_without_p2p_nccl_goes_through_the_host() -> None:
    us = Costs(rtx_pair()).predict("nccl", "all_reduce", 20_000_000)
    assert us is not None and 20e6 / us / 1e3 == pytest.approx(default().shared["staged"], rel=0.01)


def test_devices_of_the_ranks() -> None:
    """Ranks on devices of one island do not go through the sockets; on both, they do."""
    within, across = (
        Costs(two_islands(), 4, devices).predict("two_shot", "all_reduce", MIB)
        for devices in ([4, 5, 6, 7], [0, 1, 4, 5])
    )
    assert within and across and across > 5 * within
    assert [gpu.name for gpu in Costs(two_islands(), None, [7, 2]).topology.gpus] == ["gpu7", "gpu2"]


@pytest.mark.parametrize(
    ("world", "devices", "words"),
    [
        (0, None, "0 ranks on 8 devices"),
        (9, None, "9 ranks on 8 devices"),
        (2, [0, 0], "2 different numbers"),
        (2, [0], "2 different numbers"),
        (2, [0, 8], "from 0 to 7"),
    ],
)
def test_ranks_without_devices_are_refused(world: int, devices: list[int] | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Costs(nvswitch("sm_90"), world, devices)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("best", "all_reduce", 1, "float32"), "no algorithm"),
        (("ring", "all_reduces", 1, "float32"), "no collective"),
        (("ring", "all_reduce", -1, "float32"), "0 or more"),
        (("ring", "all_reduce", 1, "float31"), "no element type"),
    ],
)
def test_names_that_are_none(call: tuple[str, str, int, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Costs(a100_board()).predict(*call)


# Constants.


def test_the_knee() -> None:
    assert soft(0.0, 1.0) == 0.0
    assert soft(0.1, 1.0) < 0.04  # hidden
    assert soft(1000.0, 1.0) == pytest.approx(1000 - 1.31, abs=0.01)
    assert soft(5.0, 0.0) == 5.0


def test_unknown_and_mixed_architectures_get_the_worst() -> None:
    numbers = default()
    mixed = numbers.of(["sm_90", "gfx942"])
    assert mixed["base"] == max(numbers.gpu["sm_90"]["base"], numbers.gpu["gfx942"]["base"])
    assert mixed["efficiency"] == min(numbers.gpu[a]["efficiency"] for a in ("sm_90", "gfx942"))
    for unknown in ([None], ["sm_90", "sm_999"]):
        worst = numbers.of(unknown)
        assert all(worst["base"] >= row["base"] for row in numbers.gpu.values())
        assert all(worst["efficiency"] <= row["efficiency"] for row in numbers.gpu.values())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(version=2), "version: expected 1"),
        (lambda d: d["gpu"]["sm_90"].pop("base"), "gpu.sm_90.base: expected a number"),
        (lambda d: d["gpu"]["sm_90"].update(like="sm_80", why="test"), "like no other that is like it"),
        (lambda d: d["gpu"]["sm_90"].update(like="sm_1", why="test"), "gpu.sm_1"),
        (lambda d: d["gpu"]["sm_90"]["base"].update(source=""), "where the number is from"),
        (lambda d: d["shared"]["knee"].update(value="1"), "shared.knee.value: expected a number"),
        (lambda d: d.pop("links"), "links: expected an object"),
    ],
)
def test_constants_that_are_none(change: object, words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        parse_with(change)


# Any machine.

KINDS = st.sampled_from([LinkKind.NVLINK, LinkKind.XGMI])
ARCHS = st.sampled_from(["sm_70", "sm_80", "sm_90", "gfx942", "sm_999", None])


@st.composite
def machines(draw: st.DrawFn, most: int = 6) -> Topology:
    """Devices with some links, PCIe trees, classes and refusals, of which much is unknown."""
    count = draw(st.integers(1, most))
    kind, arch = draw(KINDS), draw(ARCHS)
    nodes = [
        Node(f"gpu{i}", NodeKind.GPU, numa=draw(st.sampled_from([0, 1, None])), arch=arch)
        for i in range(count)
    ]
    links, classes, peers = [], {}, {}
    for i, j in itertools.combinations(range(count), 2):
        a, b = f"gpu{i}", f"gpu{j}"
        if draw(st.booleans()):
            number = draw(st.sampled_from([0, 1, 2, 18, None]))
            gbps = draw(st.sampled_from([0.0, 20.0, 48.0, None]))
            links += [Link(*pair, kind, number, gbps=gbps) for pair in ((a, b), (b, a))]
        if draw(st.booleans()):
            classes[a, b] = draw(st.sampled_from(list(PathClass)[2:]))
        if draw(st.integers(0, 5)) == 0:
            peers[a, b] = draw(st.booleans())
    if draw(st.booleans()):
        nodes += [
            Node("switch", draw(st.sampled_from([NodeKind.PCI_SWITCH, NodeKind.NVSWITCH, NodeKind.NUMA])))
        ]
        made = kind if nodes[-1].kind == NodeKind.NVSWITCH else LinkKind.PCIE
        for i in range(draw(st.integers(0, count))):
            gbps = draw(st.sampled_from([0.0, 12.0, 370.8, None]))
            links += [Link(*pair, made, gbps=gbps) for pair in ((f"gpu{i}", "switch"), ("switch", f"gpu{i}"))]
    return Topology(nodes, links, classes, peers=peers)


@settings(max_examples=150, deadline=None)
@given(machines(), st.sampled_from(sorted(SIZES)), st.lists(st.integers(0, 1 << 40), min_size=2, max_size=5))
def test_finite_not_negative_and_monotone(topology: Topology, dtype: str, sizes: list[int]) -> None:
    costs = Costs(topology)
    for algorithm, collective in itertools.product(ALGORITHMS, COLLECTIVES):
        times = [costs.predict(algorithm, collective, nbytes, dtype) for nbytes in sorted(sizes)]
        if None in times:
            assert set(times) == {None}
            continue
        assert all(math.isfinite(us) and us >= 0 for us in times if us is not None)
        assert times == sorted(times)  # type: ignore[type-var]


@settings(max_examples=50, deadline=None)
@given(machines())
def test_what_is_unknown_is_planned_slowly(topology: Topology) -> None:
    """No machine is slower than the same with speeds unknown, if all its links are fast."""
    best = Topology(topology.nodes, map(_fast, topology.links), topology.classes, peers=topology.peers)
    for algorithm in ("ll", "one_shot", "two_shot"):
        slow, fast = (Costs(t).predict(algorithm, "all_reduce", MIB) for t in (topology, best))
        if slow is not None and fast is not None:
            assert fast <= slow * (1 + 1e-9)


def _fast(link: Link) -> Link:
    return Link(link.source, link.target, link.kind, link.count, gbps=500.0)


def test_parts_of_a_machine() -> None:
    part = chosen(l40s_4(), [3, 1])
    assert [gpu.name for gpu in part.gpus] == ["gpu3", "gpu1"]
    assert {link.source for link in part.links} >= {"gpu3", "gpu1", "numa0", "numa1"}
    assert not any(link.source in ("gpu0", "gpu2") for link in part.links)
