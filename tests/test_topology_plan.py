"""Plans: sensible on the machines that there are, saying why, the same everywhere, and back from JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_topology_cost import machines
from topology_fleet import (
    a100_board,
    cube_mesh,
    l40s_4,
    nvswitch,
    pcie_tree,
    rtx_pair,
    two_islands,
    xgmi,
)
from topology_shapes import full_mesh, machine

from collectives.topology.admissible import obstacle
from collectives.topology.call import COLLECTIVES, LEVELS, OPS, SIZES
from collectives.topology.cost import ALGORITHMS, Costs
from collectives.topology.graph import Node, NodeKind, Topology, TopologyError
from collectives.topology.plan import Candidate, Plan, decide, plan, table

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SWEEP = [1 << k for k in range(8, 31)]


def obstacles(made: Plan) -> dict[str, str]:
    return {c.algorithm: c.obstacle for c in made.candidates if c.obstacle}


def choices(topology: Topology, order: str | None = None, collective: str = "all_reduce") -> list[str | None]:
    """The choices from 256 bytes to 1 GiB, each once."""
    plans = table(topology, collective, SWEEP, "bfloat16", order=order).plans
    return [choice for choice, _ in itertools.groupby(made.choice for made in plans)]


# The machines of the issue.


def test_8_h100_behind_nvswitches() -> None:
    h100 = nvswitch("sm_90")
    assert choices(h100) == ["ll", "one_shot", "two_shot"]
    assert choices(h100, "any") == ["ll", "one_shot", "nvls"]
    made = plan(h100, "all_reduce", 64 * MIB, "bfloat16")
    assert made.level == "rank" and made.order is None and made.world == 8
    assert "each rank does one part" in made.reason
    assert "nvls would take" in made.reason and "order level any, asked for is rank" in made.reason
    assert "ring sums each part from another rank on" in obstacles(made)["ring"]


def test_8_a100() -> None:
    made = plan(nvswitch("sm_80"), "all_reduce", 64 * MIB, order="any")
    assert obstacles(made) == {"nvls": "nvls needs sm_90 or later and NVSwitches; the devices are sm_80"}
    assert made.choice in ("two_shot", "ring")  # the same bytes
    assert choices(nvswitch("sm_80")) == ["ll", "one_shot", "two_shot"]


def test_8_v100_hybrid_cube_mesh() -> None:
    """Pairs without NVLink go over the sockets: direct for small calls, rings for large."""
    assert choices(cube_mesh(), "same")[-1] == "ring"
    assert choices(cube_mesh())[0] in ("ll", "one_shot")
    made = plan(cube_mesh(), "all_reduce", 256 * MIB, order="same")
    assert len(made.layout) == 6 and all(sorted(ring) == list(range(8)) for ring in made.layout)
    assert made.level == "same" and any("not known how fast" in remark for remark in made.remarks)
    assert choices(cube_mesh(), collective="all_gather")[-1] == "ring"  # adds nothing: any order is by rank


def test_8_mi300x() -> None:
    mesh = xgmi("gfx942")
    assert choices(mesh) == ["ll", "one_shot", "two_shot"]
    assert choices(mesh, "any")[-1] == "nccl"
    assert "the devices are gfx942" in obstacles(plan(mesh, "all_reduce", MIB, order="any"))["nvls"]


def test_4_l40s_on_pcie() -> None:
    l40s = l40s_4()
    assert choices(l40s)[0] in ("ll", "one_shot") and choices(l40s)[-1] in ("two_shot", "chain")
    assert choices(l40s, "same")[-1] in ("ring", "tree")
    made = plan(l40s, "all_reduce", 64 * MIB, order="same")
    assert made.microseconds and 64 * MIB / made.microseconds / 1e3 < 16  # the socket's GB/s at most


def test_two_islands_of_4() -> None:
    """What crosses between the islands decides: few crossings for large calls."""
    islands = two_islands()
    assert choices(islands)[-1] == "chain" and choices(islands, "same")[-1] == "tree"
    made = plan(islands, "all_reduce", 64 * MIB, order="same")
    for tree in made.layout:
        assert sum(up >= 0 and up // 4 != rank // 4 for rank, up in enumerate(tree)) == 1
    within = plan(islands, "all_reduce", 64 * MIB, world=4)
    assert within.choice == "two_shot" and within.microseconds and made.microseconds
    assert within.microseconds < made.microseconds / 5


def test_devices_of_the_ranks() -> None:
    made = plan(two_islands(), "all_reduce", 64 * MIB, devices=[4, 5, 6, 7])
    assert made.devices == ("gpu4", "gpu5", "gpu6", "gpu7") and made.choice == "two_shot"
    near, far = (
        Costs(two_islands(), 4, devices).predict("chain", "all_reduce", 64 * MIB)
        for devices in ([0, 1, 4, 5], [0, 4, 1, 5])
    )
    assert near and far and far / near == pytest.approx(1.5, rel=0.01)  # three ways over a socket, not two


# Why not.


def test_p2p_refused() -> None:
    made = plan(rtx_pair(), "all_reduce", MIB)
    assert made.choice == "nccl" and made.level == "any"
    assert "the fallback" in made.reason and "P2P is refused between gpu0 and gpu1" in made.reason
    strict = plan(rtx_pair(), "all_reduce", MIB, order="rank")
    assert strict.choice is None and strict.level is None and strict.microseconds is None
    assert "nothing holds order level rank" in strict.reason


def test_one_refusal_bars_only_those_that_need_the_pair() -> None:
    plain = nvswitch("sm_90", 4)
    topology = Topology(plain.nodes, plain.links, peers={("gpu0", "gpu2"): False})
    words = obstacles(plan(topology, "all_reduce", MIB, order="any"))
    assert {words[name] for name in ("ll", "one_shot", "two_shot")} == {
        "P2P is refused between gpu0 and gpu2"
    }
    assert "chain" not in words and "nvls" not in words and "nccl" not in words


def test_instances_of_a_card_have_no_p2p() -> None:
    parts = [Node(f"gpu{i}", NodeKind.GPU, arch="sm_90", numa=0, parent="0000:1b:00.0") for i in range(2)]
    assert plan(Topology(parts), "all_reduce", MIB).choice == "nccl"


@pytest.mark.parametrize(
    ("dtype", "op", "choice", "words"),
    [
        (
            "float64",
            "sum",
            "nccl",
            "one_shot reduces float32, float16, bfloat16, int32 and int64, not float64",
        ),
        ("complex64", "sum", None, "nccl reduces"),
        ("bool", "max", None, "not bool"),
        ("int32", "sum", "nccl", "nvls reduces float32, float16 and bfloat16, not int32"),
        ("bfloat16", "max", "two_shot", "nvls forms sums and averages, not max"),
    ],
)
def test_types_and_reductions(dtype: str, op: str, choice: str | None, words: str) -> None:
    made = plan(nvswitch("sm_90"), "all_reduce", GIB, dtype, op=op)
    assert words in " ".join(obstacles(made).values()) or words in made.reason
    if dtype != "int32":
        assert made.choice == choice
    if dtype in ("float64",):
        assert made.level == "any"


def test_what_has_no_order_may_be_added_in_any() -> None:
    for dtype, op, free in (("int32", "sum", True), ("float32", "max", True), ("float32", "sum", False)):
        words = obstacles(plan(nvswitch("sm_90"), "all_reduce", MIB, dtype, op=op, order="rank"))
        assert ("ring" not in words) == free
    assert "nccl" not in obstacles(plan(nvswitch("sm_90"), "all_reduce", MIB, "int64", order="rank"))
    assert "nccl" in obstacles(plan(nvswitch("sm_90"), "all_reduce", MIB, "int64", op="avg", order="rank"))
    assert not any("order level" in w for w in obstacles(plan(nvswitch("sm_90"), "broadcast", 1)).values())


def test_collectives_without_a_form() -> None:
    words = obstacles(plan(nvswitch("sm_90"), "all_gather", MIB, "complex128"))
    assert words == {
        "two_shot": "all_gather is one exchange: that is one_shot",
        "chain": "there is no chain for all_gather",
        "tree": "there is no tree for all_gather",
    }


def test_nvls_needs_switches() -> None:
    mesh = full_mesh(4, 4, gbps=20.6, arch="sm_90")
    assert "not all devices are seen to hang" in obstacles(plan(mesh, "all_reduce", MIB, order="any"))["nvls"]
    unknown = machine(2, {(0, 1): 2})
    assert "of unknown architecture" in obstacles(plan(unknown, "all_reduce", MIB, order="any"))["nvls"]


def test_more_ranks_than_our_kernels_have() -> None:
    made = plan(full_mesh(17, 1, gbps=20.0, arch="sm_90"), "all_reduce", MIB)
    assert made.choice == "nccl" and "2 to 16 ranks, not 17" in made.reason


def test_one_rank() -> None:
    made = plan(l40s_4(), "all_reduce", MIB, world=1)
    assert made.choice == "one_shot" and made.devices == ("gpu0",)
    assert set(obstacles(made)) == set(ALGORITHMS) - {"one_shot"}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"order": "best"}, "expected one of rank, same, any"),
        ({"op": "xor"}, "expected one of sum"),
        ({"world": 5}, "5 ranks on 4 devices"),
        ({"nbytes": -1}, "0 or more"),
        ({"dtype": "float"}, "no element type"),
        ({"collective": "gather"}, "no collective"),
    ],
)
def test_arguments_that_are_none(call: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan(**{"topology": a100_board(), "collective": "all_reduce", "nbytes": 1, **call})  # type: ignore[arg-type]


def test_costs_have_their_ranks() -> None:
    costs = Costs(a100_board(), 2)
    assert plan(costs, "all_reduce", MIB) == plan(a100_board(), "all_reduce", MIB, world=2)
    with pytest.raises(ValueError, match="leave out world"):
        plan(costs, "all_reduce", MIB, world=4)


def test_decide_takes_the_first_of_equals() -> None:
    """Any model's predictions can be decided on: this is how ranks on CPUs use it."""
    rows = [
        Candidate("inline", None),
        Candidate("direct", 2.0, "no"),
        Candidate("a", 3.0),
        Candidate("b", 3.0),
    ]
    assert decide(rows) == rows[2]
    assert decide(rows[:2]) is None


# Tables.


@pytest.mark.parametrize("make", [lambda: nvswitch("sm_90"), two_islands, cube_mesh, l40s_4])
def test_crossovers_are_where_the_choice_changes(make: Callable[[], Topology]) -> None:
    costs = Costs(make())
    made = table(costs, "all_reduce", [GIB, 256, MIB, 256], order="any")
    assert [p.nbytes for p in made.plans] == [256, MIB, GIB]
    assert made.crossovers
    before = made.plans[0].choice
    for change in made.crossovers:
        assert change.before == before
        assert plan(costs, "all_reduce", change.nbytes - 1, order="any").choice == change.before
        assert plan(costs, "all_reduce", change.nbytes, order="any").choice == change.after
        before = change.after
    assert before == made.plans[-1].choice
    assert table(costs, "all_reduce", []).plans == ()


# JSON.


def test_json_is_the_same_on_all_ranks_and_comes_back() -> None:
    for topology in (nvswitch("sm_90"), cube_mesh(), rtx_pair(), pcie_tree("sm_86", [[0, 1], [2]], 4)):
        made = plan(topology, "all_reduce", 16 * MIB, "float16", order="same")
        again = plan(Topology(topology.nodes, topology.links, topology.classes, peers=topology.peers),
                     "all_reduce", 16 * MIB, "float16", order="same")  # fmt: skip
        assert made.to_json() == again.to_json()
        assert Plan.from_json(made.to_json()) == made
        assert Plan.from_json(json.dumps(json.loads(made.to_json()), indent=2)) == made
        assert json.loads(made.to_json())["version"] == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(version=2), "version: expected 1, which this release"),
        (lambda d: d.pop("version"), "version: expected 1"),
        (lambda d: d.pop("choice"), None),
        (lambda d: d.pop("reason"), "plan.reason: expected a value"),
        (lambda d: d.update(nbytes=-1), "plan.nbytes: expected 0 or more"),
        (lambda d: d.update(nbytes=None), "plan.nbytes"),
        (lambda d: d.update(channels=4), "plan.channels"),
        (lambda d: d["candidates"][0].pop("algorithm"), "algorithm: expected a name"),
        (lambda d: d["candidates"][0].update(microseconds=-1), "a number of 0 or more"),
        (lambda d: d["candidates"][0].update(microseconds=float("nan")), "a number of 0 or more"),
        (lambda d: d.update(layout=[["0"]]), "a whole number"),
        (lambda d: d.update(devices="gpu0"), "plan.devices: expected a list"),
    ],
)
def test_json_of_something_else(change: Callable[[dict[str, object]], object], words: str | None) -> None:
    data = json.loads(plan(a100_board(), "all_reduce", MIB).to_json())
    change(data)
    if words is None:
        assert Plan.from_json(json.dumps(data)).choice is None
        return
    with pytest.raises(TopologyError, match=words):
        Plan.from_json(json.dumps(data), "some.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "[" * 100_000, '{"version": 1}'])
def test_no_plan_at_all(text: str) -> None:
    with pytest.raises(TopologyError, match=r"some\.json"):
        Plan.from_json(text, "some.json")


# Any machine.


@settings(max_examples=150, deadline=None)
@given(
    machines(),
    st.sampled_from(COLLECTIVES),
    st.integers(0, 1 << 34),
    st.sampled_from(sorted(SIZES)),
    st.sampled_from([None, *LEVELS]),
    st.sampled_from(OPS),
)
def test_the_fastest_admissible_one(
    topology: Topology, collective: str, nbytes: int, dtype: str, order: str | None, op: str
) -> None:
    made = plan(topology, collective, nbytes, dtype, order=order, op=op)
    assert Plan.from_json(made.to_json()) == made
    assert [c.algorithm for c in made.candidates] == list(ALGORITHMS)
    able = {c.algorithm: c.microseconds for c in made.candidates if c.obstacle is None}
    assert all(us is not None for us in able.values())
    assert made.reason
    if made.choice is None:
        assert not able
        return
    assert able[made.choice] == min(us for us in able.values() if us is not None)
    assert made.level in LEVELS and LEVELS.index(made.level) <= LEVELS.index(order or "any")
    costs = Costs(topology)
    if order is None:  # nothing of ours would have held a stronger level
        for stronger in LEVELS[: LEVELS.index(made.level)]:
            for name in set(ALGORITHMS) - {"nccl"}:
                assert obstacle(costs, name, collective, dtype, op, stronger) is not None
