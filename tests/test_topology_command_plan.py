"""Plans and simulations on the command line, and the model of many machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from topology_files import FILES, refuse, run, write

from collectives.topology.cost import Costs
from collectives.topology.graph import Topology, TopologyError
from collectives.topology.plan import plan
from collectives.topology.plan_record import Plan
from collectives.topology.simulate import ENGINES, Cluster
from collectives.topology.sources import load
from collectives.topology.sources.files import parse

SIZES = st.integers(1, 1 << 34)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return write(tmp_path)


def test_plan_prints_predictions_choice_and_reasons(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    text = run(capsys, "plan", files / "nvswitch.json", "all_reduce", "-b", "1K", "-e", "64M", "-n", "8")
    cells = [line.split() for line in text.splitlines() if line[:1].isdigit() and ":" not in line]
    rows = {row[0]: row for row in cells}
    topology = load(files / "nvswitch.json")
    for size, nbytes in (("1K", 1 << 10), ("64M", 64 << 20)):
        expected = plan(topology, "all_reduce", nbytes, world=8)
        assert rows[size][-2:] == [expected.choice, expected.level]
        assert any(f"{expected.microseconds:.1f}" in cell for cell in rows[size])
        assert expected.reason in text or size == "64M"
    assert "Why" in text and "Not admissible" in text and "nccl sums in the order" in text


def test_plan_as_json(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    words = ["plan", files / "mi300x.txt", "all_reduce", "-b", "1K", "-e", "1M", "-f", "32"]
    data = json.loads(run(capsys, *words, "--dtype", "bfloat16", "--order", "any", "--json"))
    topology = load(files / "mi300x.txt")
    plans = [Plan.from_json(json.dumps(entry)) for entry in data["plans"]]
    assert [found.nbytes for found in plans] == [1 << 10, 32 << 10, 1 << 20]
    for found in plans:
        assert found == plan(topology, "all_reduce", found.nbytes, "bfloat16", order="any")


def test_plan_for_some_devices(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    words = ["plan", files / "pairs.txt", "all_gather", "-b", "1M", "-e", "1M", "--devices", "3,2", "--json"]
    (found,) = json.loads(run(capsys, *words))["plans"]
    assert found["devices"] == ["gpu3", "gpu2"]


def test_plan_refuses_ranks_without_devices(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    assert "5 ranks on 4 devices" in refuse(capsys, "plan", files / "pairs.txt", "all_reduce", "-n", "5")
    assert "expected" in refuse(capsys, "plan", files / "pairs.txt", "all_reduce", "--devices", "0,9")
    run(capsys, "record", files / "here.json")
    if not load(files / "here.json").gpus:
        assert "no device" in refuse(capsys, "plan", files / "here.json", "all_reduce")
    assert "before they begin" in refuse(capsys, "plan", files / "pairs.txt", "all_reduce", "-b", "2G")


def test_simulate_prints_times_and_steps(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    words = ["simulate", files / "nvswitch.json", "--nodes", "128", "-f", "1024"]
    data = json.loads(run(capsys, *words, "--json"))
    cluster = Cluster(load(files / "nvswitch.json"), 8, ENGINES["nccl"])
    assert data["gbps"] == cluster.gbps
    assert {entry["nodes"] for entry in data["results"]} == {1, 2, 4, 8, 16, 32, 64, 128}
    assert {entry["nbytes"] for entry in data["results"]} == {1 << 10, 1 << 20, 1 << 30}
    for entry in data["results"]:
        expected = cluster.all_reduce(entry["nbytes"], entry["nodes"])
        assert entry["us"] == expected.us and entry["busbw"] == expected.busbw
    text = run(capsys, *words)
    assert "128 nodes" in text and "reduce_scatter" in text and ENGINES["nccl"].source in text


def test_simulate_needs_a_speed(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    assert "--link-gbps" in refuse(capsys, "simulate", files / "switched.txt", "--nodes", "4")
    text = run(
        capsys, "simulate", files / "switched.txt", "--nodes", "2,4", "--link-gbps", "100", "-f", "1024"
    )
    assert "4 ranks share a network card" in text and "taken to be no limit" in text
    assert "9 ranks a node" in refuse(capsys, "simulate", files / "nvswitch.json", "--ranks-per-node", "9")


def test_the_formula() -> None:
    topology = parse(FILES["nvswitch.json"])
    inside = {"reduce_scatter": 10.0, "all_gather": 20.0, "all_reduce": 25.0}
    cluster = Cluster(topology, 8, ENGINES["nccl"], 400.0, inside=lambda name, _: inside[name])
    assert cluster.gbps == pytest.approx(48.0)  # PCIe, just below 50 less what packets cost
    small = cluster.all_reduce(8, 4)
    assert small.way == "ring LL" and small.between == pytest.approx(6.6 + 6 * 2.7, rel=1e-3)
    assert small.us == pytest.approx(30.0 + 6.6 + 6 * 2.7, rel=1e-3)
    large = cluster.all_reduce(1 << 33, 2)
    shard = (1 << 33) / 8
    assert large.way == "ring Simple" and large.between == pytest.approx(
        8.4 + 2 * 14 + shard / 48e3, rel=1e-6
    )
    assert large.busbw == pytest.approx(2 * 15 / 16 * (1 << 33) / large.us * 1e-3)
    assert cluster.all_reduce(1 << 20, 1).us == 25.0


def test_gloo_is_staged_and_slow() -> None:
    topology = parse(FILES["nvswitch.json"])
    cluster = Cluster(topology, 8, ENGINES["gloo"], 400.0)
    assert cluster.gbps == 1.1 and cluster.host_gbps == 48.0
    found = cluster.all_reduce(1 << 30, 2)
    assert found.staging == pytest.approx(2 * (1 << 27) / 48e3)
    assert found.us > Cluster(topology, 8, ENGINES["nccl"], 400.0).all_reduce(1 << 30, 2).us
    unknown = Cluster(parse(FILES["pairs.txt"]), 4, ENGINES["gloo"], 100.0)
    assert unknown.host_gbps is None and any("not counted" in remark for remark in unknown.remarks)


def test_inside_a_node_stands_the_plan() -> None:
    topology = parse(FILES["mi300x.txt"])
    found = Cluster(topology, 8, ENGINES["nccl"], 400.0).all_reduce(1 << 20, 2)
    costs = Costs(topology, 8)
    assert found.reduce_scatter == plan(costs, "reduce_scatter", 1 << 20).microseconds
    assert found.all_gather == plan(costs, "all_gather", 1 << 20).microseconds


@settings(max_examples=100, deadline=None)
@given(SIZES, SIZES, st.integers(1, 4096), st.sampled_from(sorted(ENGINES)))
def test_time_grows_with_bytes(first: int, second: int, nodes: int, engine: str) -> None:
    cluster = Cluster(
        parse(FILES["pairs.txt"]), 4, ENGINES[engine], 200.0, inside=lambda name, nbytes: 1.0 + nbytes * 1e-6
    )
    low, high = (cluster.all_reduce(nbytes, nodes) for nbytes in sorted((first, second)))
    assert 0 < low.us <= high.us
    if nodes > 1:
        assert low.us <= cluster.all_reduce(low.nbytes, nodes + 1).us * (1 + 1e-9)


def test_a_cluster_needs_devices() -> None:
    with pytest.raises(TopologyError, match="0 devices"):
        Cluster(Topology([]), 1, ENGINES["nccl"])
