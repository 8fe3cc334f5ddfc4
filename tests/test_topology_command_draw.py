"""Pictures: every shape of machine is drawn, boxes do not overlap, and what is known stands in them."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import topology_machines as machines
from topology_files import FILES, refuse, run, write

from collectives.topology.commands.description import describe
from collectives.topology.draw_layout import Box, layout
from collectives.topology.draw_links import fabric
from collectives.topology.graph import Link, LinkKind, Node, NodeKind, Topology, TopologyError
from collectives.topology.sources import load
from collectives.topology.sources.files import parse

pytest.importorskip("matplotlib")

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return write(tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_draws(capsys: pytest.CaptureFixture[str], files: Path, name: str) -> None:
    picture = files / "pictures" / f"{name}.svg"
    assert run(capsys, "draw", files / name, picture) == f"{picture}\n"
    root = ET.parse(picture).getroot()
    assert root.tag == f"{SVG}svg" and len(root.findall(f".//{SVG}path")) > 5
    again = files / "again.svg"
    run(capsys, "draw", files / name, again)
    assert again.read_bytes() == picture.read_bytes()


def test_formats_titles_and_places(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    run(capsys, "draw", files / "pairs.txt", files / "pairs.png", "--title", "Two pairs")
    assert (files / "pairs.png").read_bytes().startswith(b"\x89PNG")
    for name in ("pairs.doc", "pairs"):
        assert "expected a name that ends in .svg" in refuse(
            capsys, "draw", files / "pairs.txt", files / name
        )
    refused = refuse(capsys, "draw", files / "pairs.txt", files / "pairs.png" / "x.svg")
    assert "it cannot be written" in refused


def test_this_machine_can_be_drawn(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    run(capsys, "record", files / "here.json")
    run(capsys, "draw", files / "here.json", files / "here.svg")
    assert ET.parse(files / "here.svg").getroot().tag == f"{SVG}svg"


def overlap(a: Box, b: Box) -> bool:
    return abs(a.x - b.x) < (a.width + b.width) / 2 and abs(a.y - b.y) < (a.height + b.height) / 2


@pytest.mark.parametrize("name", FILES)
def test_boxes_do_not_overlap(name: str) -> None:
    topology = parse(FILES[name])
    found = layout(topology)
    for a, b in itertools.combinations(found.boxes.values(), 2):
        assert not overlap(a, b), (a, b)
    shown = {*found.fabric.stands_for.values(), *(nic.name for nic in topology.nics)}
    assert shown <= found.boxes.keys()


def test_a_switch_is_a_hub_and_a_mesh_is_not() -> None:
    (hub,) = fabric(parse(FILES["nvswitch.json"])).hubs
    assert hub.switches == 4 and len(hub.members) == 8
    assert {(link.count, round(link.gbps or 0, 1)) for link in hub.links} == {(18, 370.8)}
    (hub,) = fabric(parse(FILES["switched.txt"])).hubs
    assert {link.count for link in hub.links} == {12}
    mesh = fabric(parse(FILES["mi300x.txt"]))
    assert not mesh.hubs and len(mesh.direct) == 28
    cube = fabric(parse(FILES["cube_mesh.txt"]))
    assert not cube.hubs and sorted(link.count or 0 for link in cube.direct) == [1] * 8 + [2] * 8


def test_devices_face_each_other_where_links_lead_across() -> None:
    assert layout(parse(FILES["cube_mesh.txt"])).facing
    pairs = layout(parse(FILES["pairs.txt"]))
    assert not pairs.facing
    assert pairs.boxes["gpu0"].y > pairs.boxes["numa0"].y > pairs.boxes["numa1"].y > pairs.boxes["gpu2"].y


def test_switches_of_the_pci_tree_stand_between() -> None:
    found = layout(parse(FILES["nvswitch.json"]))
    wires = dict(found.wires)
    assert wires["gpu0"] == wires["nic0"] != wires["gpu1"]
    assert wires[wires["gpu0"]] == "numa0" and len(found.titles) == 8


def test_many_partitions_are_drawn_as_cards() -> None:
    found = fabric(parse(FILES["partitions.txt"]))
    assert len(set(found.stands_for.values())) == 4 and len(found.stands_for) == 31
    few = fabric(parse(machines.joined(machines.partitioned(2, 4))))
    assert len(set(few.stands_for.values())) == 8


def test_a_link_that_one_end_tells_is_seen() -> None:
    nodes = [Node(f"gpu{i}", NodeKind.GPU) for i in range(2)]
    (bundle,) = fabric(Topology(nodes, [Link("gpu0", "gpu1", LinkKind.NVLINK, 2)])).direct
    assert bundle.one_way


def test_nothing_is_an_empty_picture(files: Path) -> None:
    from collectives.topology.draw import draw

    draw(Topology([]), files / "empty.svg")
    with pytest.raises(TopologyError):
        draw(load(files / "pairs.txt"), files / "picture.exe")


@pytest.mark.skipif(not machines.SHARED.is_dir(), reason="the recorded machines are not here")
def test_recorded_machines_are_described_and_laid_out() -> None:
    done = 0
    for path in sorted(machines.SHARED.glob("*/*")):
        try:
            topology = load(path)
        except TopologyError:
            continue
        assert len(describe(topology)["devices"]) == len(topology.gpus)
        found = layout(topology)
        for a, b in itertools.combinations(found.boxes.values(), 2):
            assert not overlap(a, b), (path, a, b)
        done += 1
    assert done > 50
