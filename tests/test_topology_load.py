"""Files of every kind are recognised by what is in them; others are refused with what was expected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import topology_machines as machines
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.topology import paths, record
from collectives.topology.graph import TopologyError
from collectives.topology.sources import load
from collectives.topology.sources.files import parse

ROCM = "=== Link Type between two GPUs ===\n     GPU0  GPU1\nGPU0 0     XGMI\nGPU1 XGMI  0\n"
AMD = (
    "LINK TYPE TABLE:\n             0000:0c:00.0 0000:22:00.0\n"
    "0000:0c:00.0 SELF         XGMI\n0000:22:00.0 XGMI         SELF\n"
)
ROCM_JSON = {"system": {"(Topology) Link type between DRM devices 0 and 1": "XGMI"}}
AMD_JSON = [
    {"gpu": a, "links": [{"gpu": b, "link_type": "SELF" if a == b else "XGMI"} for b in (0, 1)]}
    for a in (0, 1)
]
TOPO = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n"
NVLINK = "".join(f"GPU {i}: NVIDIA GeForce RTX 3090 (UUID: GPU-0)\n\t Link 0: 14.062 GB/s\n" for i in (0, 1))
P2P = " \tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"
NCCL = """<?xml version="1.0"?>
<!-- <graphs> are something else -->
<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
    <pci busid="0000:0c:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
      <gpu dev="0" sm="80" rank="0"/>
    </pci>
    <pci busid="0000:22:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
      <gpu dev="1" sm="80" rank="1"/>
    </pci>
  </cpu>
</system>
"""
KFD = machines.joined(machines.kfd([0, 0], machines.mesh(2)))

KINDS = {
    "rocm": ROCM,
    "amd": AMD,
    "rocm-json": json.dumps(ROCM_JSON),
    "amd-json": json.dumps(AMD_JSON),
    "topo": TOPO,
    "nvlink": NVLINK,
    "p2p": P2P,
    "nccl": NCCL,
    "kfd": KFD,
    "record": record.dumps(parse(KFD)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_every_kind_is_recognised(kind: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "machine"  # no name that could help
    path.write_bytes(KINDS[kind].encode(encoding))
    found = load(path)
    assert len(found.gpus) == 2 and found.source == str(path)
    if kind not in ("nvlink", "p2p", "nccl"):
        assert paths.link_matrix(found)[0][1] != 0


def test_folders(tmp_path: Path) -> None:
    machines.written(machines.mi210_4(), tmp_path / "kfd")
    assert len(load(tmp_path / "kfd").gpus) == 4
    with pytest.raises(TopologyError, match="neither 'nodes'"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty: expected nvidia-smi topo -m"),
        (b" \n\t", "empty"),
        (b"\x89PNG\r\n\xff\xfe", "no text"),
        (b"To whom it may concern", "a text of an unknown kind: expected nvidia-smi"),
        (b"{", "no JSON"),
        (b'[{"gpu": 0,', "no JSON: "),
        (b"[" * 100_000, "no JSON"),
        (b"9" * 5000, "unknown kind"),
        (b"[" + b"9" * 5000 + b"]", "no JSON"),
        (b'{"a": 1}', "JSON of an unknown shape"),
        (b"<html><body/></html>", "XML with the root element 'html'"),
        (b"<!-- -->", "XML with no element"),
        (b"<graphs version='1'></graphs>", "an NCCL graph, the result of its search"),
        (b"<system", "m"),
    ],
)
def test_others_are_refused_with_what_was_expected(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "machine"
    path.write_bytes(content)
    with pytest.raises(TopologyError) as caught:
        load(path)
    assert said in str(caught.value) and str(caught.value).startswith(str(path))


def test_json_errors_tell_the_line() -> None:
    with pytest.raises(TopologyError) as caught:
        parse('{\n "system": {\n "a" 1}}', "x")
    assert caught.value.line == 3


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="it cannot be read: No such file"):
        load(tmp_path / "none")


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(KINDS)),
    st.integers(0, 400),
    st.integers(0, 400),
    st.text(max_size=10) | st.binary(max_size=6),
)
def test_fuzz(kind: str, start: int, length: int, noise: str | bytes) -> None:
    whole = KINDS[kind].encode()
    middle = noise if isinstance(noise, bytes) else noise.encode("utf-8", "surrogatepass")
    try:
        parse(whole[:start] + middle + whole[start + length :])
    except TopologyError:
        pass


@settings(max_examples=100, deadline=None)
@given(st.text() | st.binary())
def test_noise(content: str | bytes) -> None:
    with pytest.raises(TopologyError):
        parse(content)


@pytest.mark.parametrize("path", sorted(machines.SHARED.glob("*/*")), ids=lambda path: path.name)
def test_recorded_machines_load_and_survive_being_recorded(path: Path) -> None:
    if path.name == "nccl_azure_ncv4-graph.xml":
        with pytest.raises(TopologyError, match="an NCCL graph, the result of its search"):
            load(path)
        return
    found = load(path)
    told = machines.facts(path.parent.name)[f"{path.parent.name}/{path.name}"]
    assert len(found.gpus) == told.get("gpus", len(found.gpus))
    again = parse(record.dumps(found), found.source)
    assert (again.nodes, again.links, again.classes, again.peers, again.remarks) == (
        found.nodes,
        found.links,
        found.classes,
        found.peers,
        found.remarks,
    )
