"""Recordings: what goes in comes out, nothing in them identifies a machine, and others' JSON is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import topology_machines as machines
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.topology import record
from collectives.topology.graph import (
    Host,
    Link,
    LinkKind,
    Node,
    NodeKind,
    Numa,
    PathClass,
    Topology,
    TopologyError,
)
from collectives.topology.sources import detect, kfd, load

HOST = Host("Some CPU", (Numa(0, None, (0, 1), (0, 1, 2), {0: 10, 1: 21}), Numa(1)), (((0, 1), None),), 2.5)
MACHINE = Topology(
    [
        Node(
            "gpu0", NodeKind.GPU, "0000:0c:00.0", 0, "Some GPU", "sm_90", None, "clique7", "0000:0c:00.0", 3
        ),
        Node("gpu1", NodeKind.GPU),
        Node("sw0", NodeKind.NVSWITCH),
        Node("nic0", NodeKind.NIC, label="mlx5_0", gbps=50.0),
        Node("numa0", NodeKind.NUMA, numa=0),
    ],
    [
        Link("gpu0", "sw0", LinkKind.NVLINK, 18, 4, None, 370.8),
        Link("sw0", "gpu0", LinkKind.NVLINK, None),
        Link("gpu1", "numa0", LinkKind.PCIE, 1, 5, 16, 48.0, 20),
        Link("gpu0", "gpu1", LinkKind.XGMI, 0),
    ],
    {("gpu0", "nic0"): PathClass.PXB},
    "somewhere",
    ["odd"],
    HOST,
    {("gpu0", "gpu1"): False},
)


def parts(topology: Topology) -> tuple[Any, ...]:
    return tuple(
        getattr(topology, name) for name in ("nodes", "links", "classes", "remarks", "host", "peers")
    )


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    record.record(path, MACHINE)
    again = load(path)
    assert parts(again) == parts(MACHINE) and again.source == str(path)
    assert json.loads(path.read_text())["version"] == record.VERSION
    assert record.dumps(again) == record.dumps(MACHINE)


def test_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    written = record.record(path)
    assert written.host is not None and parts(load(path)) == parts(record.neutral(written))
    assert written.host == detect().topology.host


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="it cannot be written"):
        record.record(tmp_path, MACHINE)


def test_nothing_identifies_the_machine() -> None:
    uuid = "2f9c1d7e-0b7a-4c55-9d1f-6d0a3c5e8b11"
    nodes = [
        Node("gpu0", NodeKind.GPU, group=f"{uuid}.4", model=f"Card {uuid}", label="GPU-" + uuid),
        Node("gpu1", NodeKind.GPU, group=f"{uuid}.5"),
        Node("gpu2", NodeKind.GPU, group="group0"),
        Node("nic0", NodeKind.NIC, label="b8:59:9f:00:11:22"),
        Node("nic1", NodeKind.NIC, label="b859:9f03:0011:2233"),
    ]
    remarks = [f"lost {uuid} at /home/someone/run.txt", "serial 0x1a2b3c4d5e6f7081, PIX/PXB stays"]
    plain = record.neutral(Topology(nodes, remarks=remarks))
    text = record.dumps(plain)
    for secret in (uuid, "someone", "b8:59", "b859", "1a2b3c4d"):
        assert secret not in text
    assert [node.group for node in plain.gpus] == ["group1", "group2", "group0"]
    assert plain.remarks[1] == "serial (id), PIX/PXB stays"


def test_hives_of_kfd_and_a_machine_of_partitions_survive() -> None:
    found = kfd.read_text(machines.joined(machines.partitioned()))
    text = record.dumps(found)
    assert "987654321" not in text and parts(record.from_json(json.loads(text))) == parts(found)


def changed(**values: Any) -> dict[str, Any]:
    return {**record.to_json(MACHINE), **values}


GPU = {"name": "gpu0", "kind": "gpu"}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "the recording: expected an object"),
        ({}, "format: expected"),
        (changed(version=2), "version: expected 1"),
        (changed(version="1"), "version: expected a whole number"),
        (changed(nodes=None), "nodes: expected a list"),
        (changed(nodes=[{"name": "a"}]), "nodes[0]: expected a name and a kind"),
        (changed(nodes=[{**GPU, "kind": "tpu"}]), "nodes[0].kind: expected one of gpu"),
        (changed(nodes=[{**GPU, "uuid": "x"}]), "nodes[0].uuid: expected one of name"),
        (changed(nodes=[{**GPU, "numa": -1}]), "nodes[0].numa: expected 0 or more"),
        (changed(nodes=[{**GPU, "numa": True}]), "nodes[0].numa: expected a whole number"),
        (changed(nodes=[GPU, GPU], links=[], classes=[], peers=[]), "two nodes are called gpu0"),
        (changed(links=[{"source": "gpu0", "target": "moon", "kind": "nvlink"}]), "no node moon"),
        (changed(links=[{"source": "gpu0", "kind": "nvlink"}]), "links[0]: expected a source"),
        (
            changed(links=[{"source": "gpu0", "target": "gpu1", "kind": "pcie", "gbps": float("nan")}]),
            "links[0].gbps",
        ),
        (
            changed(links=[{"source": "gpu0", "target": "gpu1", "kind": "pcie", "gbps": 10**400}]),
            "links[0].gbps",
        ),
        (changed(classes=[["gpu0", "gpu1", "NEAR"]]), "classes: expected a path class"),
        (changed(classes=[["gpu0", "gpu9", "PIX"]]), "classes: expected two names of nodes"),
        (changed(peers=[["gpu0", "gpu1", "PIX"]]), "peers: expected true or false"),
        (changed(host=[]), "host: expected an object"),
        (
            changed(host={"numa": [{"number": 0, "distances": [[1]]}]}),
            "host.numa[0].distances: expected pairs",
        ),
        (changed(host={"l3_groups": [[[0]]]}), "host.l3_groups: expected pairs"),
        (changed(remarks=[1]), "remarks: expected a text"),
    ],
)
def test_refused(data: object, said: str) -> None:
    with pytest.raises(TopologyError) as caught:
        record.from_json(data, "x")
    assert said in str(caught.value)


SCRAPS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["gpu0", "PIX", "gpu", "nvlink", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "kind", "source", "target", "numa", "number", "distances"]), inner
        )
    ),
)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["format", "version", "nodes", "links", "classes", "peers", "remarks", "host"]), SCRAPS
)
def test_fuzz(key: str, scrap: Any) -> None:
    try:
        record.from_json(changed(**{key: scrap}))
    except TopologyError:
        pass
