"""NCCL and RCCL topology XML: every shape of machine read and written, what is refused, recorded machines."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import topology_facts as facts
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.topology import paths
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
from collectives.topology.sources import nccl_xml, nccl_xml_write

SWITCH = 'tclass="0x068000"'
GPU = 'tclass="0x030200"'


def card(bus: int, inside: str, kind: str = "0x030200") -> str:
    speed = 'link_speed="16.0 GT/s PCIe" link_width="16"'
    return f'<pci busid="0000:{bus:02x}:00.0" class="{kind}" {speed}>{inside}</pci>'


def gpu(dev: int, links: Iterable[str] = (), bus: int | None = None, sm: str = 'sm="80"') -> str:
    return card(
        16 + dev if bus is None else bus, f'<gpu dev="{dev}" {sm} rank="{dev}">{"".join(links)}</gpu>'
    )


def bridge(bus: int, *inside: str) -> str:
    return card(bus, "".join(inside), "0x060400")


def cpu(number: int, *inside: str, affinity: str = "0000ffff") -> str:
    model = 'arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1"'
    return f'<cpu numaid="{number}" affinity="{affinity}" {model}>' + "\n".join(inside) + "</cpu>"


def system(*inside: str, version: str = "1") -> str:
    return f'<system version="{version}">\n' + "\n".join(inside) + "\n</system>\n"


def nvlink(bus: str, count: int, kind: str = GPU) -> str:
    return f'<nvlink target="{bus}" count="{count}" {kind}/>'


def to(dev: int, count: int) -> str:
    return nvlink(f"0000:{16 + dev:02x}:00.0", count)


def net(dev: int, name: str) -> str:
    return f'<net name="{name}" dev="{dev}" speed="200000" port="1" guid="0x1000" maxconn="1" gdr="1"/>'


def cube() -> str:
    rings = {0: (1, 2, 3), 1: (0, 3, 2), 2: (3, 0, 1), 3: (2, 1, 0)}
    double = {(0, 3), (1, 2), (2, 3)}

    def links(i: int) -> list[str]:
        half = i & 4
        near = [to(half + j, 2 if (min(i & 3, j), max(i & 3, j)) in double else 1) for j in rings[i & 3]]
        return [*near, to(i ^ 4, 2 if (i & 3) < 2 else 1)]

    return system(
        *(cpu(n, *(gpu(i, links(i), sm='sm="70"') for i in range(4 * n, 4 * n + 4))) for n in (0, 1))
    )


NVSWITCH = system(
    *(
        cpu(
            n,
            *(
                gpu(i, [nvlink(f"0000:c{j}:00.0", 2, SWITCH) for j in range(6)])
                for i in range(4 * n, 4 * n + 4)
            ),
        )
        for n in (0, 1)
    )
)
PAIRS = system(
    cpu(
        0,
        bridge(
            2, gpu(0, [to(1, 4)]), gpu(1, [to(0, 4)]), card(5, f"<nic>{net(0, 'mlx5_0')}</nic>", "0x020700")
        ),
    ),
    cpu(1, gpu(2, [to(3, 4)]), gpu(3, [to(2, 4)]), affinity="ffff0000"),
)
PCIE = system(
    cpu(0, bridge(2, bridge(3, gpu(0), gpu(1)), bridge(4, gpu(2)))),
    cpu(1, gpu(3), "<nic>" + net(0, "eth0") + "</nic>"),
)
ONE = system(cpu(-1, gpu(0)))
NONE = system(cpu(0, card(1, f"<nic>{net(0, 'mlx5_0')}{net(1, 'mlx5_1')}</nic>", "0x020700")))
XGMI = system(
    *(
        cpu(
            n,
            *(
                card(
                    16 + i,
                    f'<gpu dev="{i}" sm="304" gcn="gfx942:sramecc+:xnack-" arch="38911" rank="{i}">'
                    + "".join(
                        f'<xgmi target="0000:{16 + j:02x}:00.0" count="1" tclass="0x120000"/>'
                        for j in range(8)
                        if i != j
                    )
                    + "</gpu>",
                    "0x120000",
                )
                for i in range(4 * n, 4 * n + 4)
            ),
        )
        for n in (0, 1)
    ),
    version="2",
)
SHAPES = {
    "nvswitch": NVSWITCH,
    "cube": cube(),
    "pairs": PAIRS,
    "pcie": PCIE,
    "one": ONE,
    "none": NONE,
    "xgmi": XGMI,
}


def test_nvswitch() -> None:
    machine = nccl_xml.read(NVSWITCH)
    assert len(machine.of_kind(NodeKind.NVSWITCH)) == 6 and facts.counts(machine) == {"12": 28}
    assert paths.fast_links(machine, "gpu0", "gpu7") == (12, 240.0)
    assert machine.gpus[5] == Node("gpu5", NodeKind.GPU, "0000:15:00.0", 1, arch="sm_80", rank=5)
    assert machine.host is not None and machine.host.model == "x86_64 AuthenticAMD family 175 model 1"


def test_switches_without_address_are_one() -> None:
    ends = [nvlink("fffffff:ffff:ff", 18, SWITCH)]
    machine = nccl_xml.read(system(cpu(0, gpu(0, ends, sm='sm="90"'), gpu(1, ends, sm='sm="90"'))))
    assert len(machine.of_kind(NodeKind.NVSWITCH)) == 1
    assert paths.fast_links(machine, "gpu0", "gpu1") == (18, pytest.approx(370.8))


def test_cube_mesh() -> None:
    machine = nccl_xml.read(SHAPES["cube"])
    assert facts.counts(machine) == {"1": 8, "2": 8, "0": 12} and facts.best_ring(machine) >= 1
    assert paths.islands(machine) == [tuple(range(8))] and facts.others(machine) == {PathClass.SYS: 12}


def test_pairs_over_pcie() -> None:
    machine = nccl_xml.read(PAIRS)
    assert paths.islands(machine) == [(0, 1), (2, 3)]
    assert paths.path(machine, "gpu0", "nic0").kind == PathClass.PIX and machine.nics[0].gbps == 25
    assert paths.path(machine, "gpu0", "gpu2").kind == PathClass.SYS
    assert paths.path(machine, "gpu0", "gpu2").gbps == 24  # PCIe 4 x16, and as much between sockets
    assert machine.host is not None and machine.host.numa[1] == Numa(
        1, None, tuple(range(16, 32)), tuple(range(16, 32))
    )


def test_pcie_on_two_sockets() -> None:
    machine = nccl_xml.read(PCIE)
    kinds = [paths.path(machine, "gpu0", f"gpu{i}").kind for i in (1, 2, 3)]
    assert kinds == [PathClass.PIX, PathClass.PXB, PathClass.SYS]
    assert paths.path(machine, "nic0", "gpu3").kind == PathClass.PHB


def test_one_and_none() -> None:
    machine = nccl_xml.read(ONE)
    assert [gpu.numa for gpu in machine.gpus] == [None]  # -1: not told
    empty = nccl_xml.read(NONE)
    assert not empty.gpus and [nic.label for nic in empty.nics] == ["mlx5_0", "mlx5_1"]
    assert paths.path(empty, "nic0", "nic1").kind == PathClass.PIX  # ports of one card


def test_xgmi() -> None:
    machine = nccl_xml.read(XGMI)
    assert paths.fully_connected(machine) and paths.fast_links(machine, "gpu0", "gpu7") == (1, 48.0)
    assert (
        machine.gpus[0].arch == "gfx942"
        and nccl_xml.gfx("910") == "gfx90a"
        and nccl_xml.gfx("908") == "gfx908"
    )


def test_order_is_by_device_number() -> None:
    machine = nccl_xml.read(system(cpu(0, gpu(2), gpu(0)), cpu(1, gpu(1))))
    assert [(gpu.name, gpu.numa) for gpu in machine.gpus] == [("gpu0", 0), ("gpu1", 1), ("gpu2", 0)]


def test_what_is_odd_is_told_and_left_out() -> None:
    text = system(cpu(0, gpu(0, [to(0, 12), to(9, 1), "<new/>"]), "<gone/>"), "<later/>")
    machine = nccl_xml.read(text)
    assert not [link for link in machine.links if link.kind == LinkKind.NVLINK]
    remarks = "\n".join(machine.remarks)
    for words in ("to itself", "0000:19:00.0", "<new>", "<gone>", "<later>"):
        assert words in remarks
    fast = nccl_xml.read(NONE.replace("200000", "200000000"))
    assert fast.nics[0].gbps is None and "Mbit/s" in fast.remarks[0]
    twins = nccl_xml.read(system(cpu(0, bridge(2, gpu(0)), bridge(2, gpu(1)))))
    assert paths.path(twins, "gpu0", "gpu1").kind == PathClass.PHB and "again" in twins.remarks[0]


def test_links_to_the_host() -> None:
    text = system(
        cpu(
            0,
            gpu(0, ['<c2c count="10" bw="40000"/>']),
            gpu(1, [nvlink("0000:aa:00.0", 2, 'tclass="0x068001"')]),
        )
    )
    machine = nccl_xml.read(text)
    wide, narrow = (
        next(link for link in machine.links_between(name, "numa0") if link.kind == LinkKind.C2C)
        for name in ("gpu0", "gpu1")
    )
    assert (wide.count, wide.gbps) == (10, 400) and (narrow.count, narrow.gbps) == (2, 40)


def test_cards_without_gpu_elements_stay_unnamed() -> None:
    machine = nccl_xml.read(
        system(cpu(0, bridge(2, card(3, ""), card(4, "", "0x020000"))), cpu(1, '<pci busid="0:5:0.0"/>'))
    )
    assert not machine.gpus and not machine.nics
    assert [(node.bus, node.label, node.numa) for node in machine.of_kind(NodeKind.PCI_DEVICE)] == [
        ("0000:03:00.0", "0x030200", 0),
        ("0000:04:00.0", "0x020000", 0),
        ("0000:05:00.0", None, 1),
    ]


BOMB = '<!DOCTYPE a [<!ENTITY b "b"><!ENTITY c "&b;&b;">]>' + ONE.replace('dev="0"', 'dev="&c;"')


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "not well-formed"),
        (ONE[:-12], 2, "not well-formed"),
        ("<graphs><graph/></graphs>", 1, "graph file"),
        ("<topology/>", 1, "<system> is expected"),
        (ONE.replace('version="1"', 'version="7"'), 1, "expected 1 or 2"),
        (BOMB, None, "refused"),
        ('<!DOCTYPE a SYSTEM "http://localhost/x.dtd">' + ONE, None, "refused"),
        (
            '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><system version="1">&b;</system>',
            None,
            "refused",
        ),
        (ONE.replace('dev="0"', ""), 2, "without dev"),
        (ONE.replace('dev="0"', 'dev="zero"'), 2, "a whole number is expected"),
        (ONE.replace('dev="0"', 'dev="-1"'), 2, "dev=-1"),
        (ONE.replace("0000:10:00.0", "here"), 2, "not a PCI address"),
        (ONE.replace('numaid="-1"', ""), 2, "without numaid"),
        (ONE.replace("0000ffff", "cores"), 2, "not a mask"),
        (ONE.replace('link_width="16"', 'link_width="1600"'), 2, "lanes"),
        (system(cpu(0, gpu(0)), cpu(0, gpu(1))), 3, "a second <cpu> with numaid=0"),
        (system(cpu(0, gpu(0)), cpu(1, gpu(0, bus=99))), 3, "a second <gpu> with dev=0"),
        (system(cpu(0, gpu(0)), cpu(1, gpu(1, bus=16))), 3, "0000:10:00.0 again; it stands on line 2"),
        (system(cpu(0, gpu(0, [nvlink("0000:11:00.0", -1)]))), 2, "-1 links"),
        ("<a>" * 300, 1, "deep"),
        ("\ud800", None, "not readable"),
        (b'<?xml version="1.0" encoding="utf-32"?><a/>', None, ""),
    ],
)
def test_refused(text: str | bytes, line: int | None, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        nccl_xml.read(text, "file")
    assert message in str(caught.value) and caught.value.source == "file"
    assert line is None or caught.value.line == line


def alike(a: Topology, b: Topology) -> bool:
    return (
        a.gpus == b.gpus
        and set(a.nodes) == set(b.nodes)
        and sorted(map(repr, a.links)) == sorted(map(repr, b.links))
        and a.classes == b.classes
        and a.host == b.host
    )


@pytest.mark.parametrize("name", SHAPES)
def test_written_and_read_again(name: str) -> None:
    machine = nccl_xml.read(SHAPES[name])
    text = nccl_xml_write.write(machine)
    assert alike(nccl_xml.read(text), machine)
    assert text.startswith(f'<system version="{"2" if name == "xgmi" else "1"}">')


def test_written_from_another_source() -> None:
    gpus = [Node(f"gpu{i}", NodeKind.GPU, f"0000:0{i}:00.0", i, arch="sm_90") for i in (1, 2)]
    links = [Link(*ends, LinkKind.NVLINK, 18, 4, gbps=370.8) for ends in (("gpu1", "gpu2"), ("gpu2", "gpu1"))]
    host = Host("AMD EPYC", (Numa(1, 0, (32,), (32, 33)), Numa(2, 1)))
    machine = nccl_xml.read(nccl_xml_write.write(Topology(gpus, links, host=host)))
    assert machine.gpus == tuple(gpus) and facts.counts(machine) == {"18": 1}
    assert machine.host is not None and machine.host.numa[0].all_cores == (32, 33)
    for unnamed in (Node("gpu0", NodeKind.GPU), Node("x", NodeKind.PCI_DEVICE)):
        with pytest.raises(TopologyError, match="no PCI address"):
            nccl_xml_write.write(Topology([unnamed]))


_COUNTS = st.lists(st.integers(0, 18), min_size=10, max_size=10)


@settings(max_examples=100, deadline=None)
@given(_COUNTS, st.lists(st.integers(-1, 2), min_size=5, max_size=5), st.booleans())
def test_random_machines_come_back(counts: list[int], numa: list[int], amd: bool) -> None:
    nodes = [
        Node(
            f"gpu{i}",
            NodeKind.GPU,
            f"0000:{i:02x}:00.0",
            n if n >= 0 else None,
            arch="gfx942" if amd else "sm_80",
        )
        for i, n in enumerate(numa)
    ]
    pairs = [(i, j) for i in range(5) for j in range(i)]
    kind = LinkKind.XGMI if amd else LinkKind.NVLINK
    links = [
        Link(f"gpu{a}", f"gpu{b}", kind, count)
        for (i, j), count in zip(pairs, counts, strict=True)
        for a, b in ((i, j), (j, i))
        if count
    ]
    machine = Topology(nodes, links)
    again = nccl_xml.read(nccl_xml_write.write(machine))
    assert again.gpus == machine.gpus and facts.counts(again) == facts.counts(machine)
    assert alike(nccl_xml.read(nccl_xml_write.write(again)), again)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_mutations_raise_nothing_else(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(list(SHAPES.values())))
    for _ in range(data.draw(st.integers(1, 3))):
        if data.draw(st.booleans()):  # an attribute's value, so that the text stays well-formed
            parts = text.split('"')
            at = 2 * data.draw(st.integers(0, len(parts) // 2 - 1)) + 1 if len(parts) > 2 else 0
            parts[at] = data.draw(
                st.sampled_from(["", "0", "-1", "9" * 400, "0x", "f" * 99, "x", "0000:10:00.0"])
            )
            text = '"'.join(parts)
        else:
            at = data.draw(st.integers(0, len(text)))
            text = text[:at] + data.draw(st.text(max_size=4)) + text[at + data.draw(st.integers(0, 9)) :]
    try:
        machine = nccl_xml.read(text)
        nccl_xml_write.write(machine)
    except TopologyError:
        pass


WORDS = {
    "same PCIe switch tree": (PathClass.PIX, PathClass.PXB),
    "same NUMA, via CPU": (PathClass.PHB,),
    "other NUMA (SYS)": (PathClass.SYS,),
}
RECORDED = [
    name for name in facts.recorded("nvidia/nccl_") + facts.recorded("amd/rccl_") if "graph" not in name
]


@pytest.mark.skipif(not RECORDED, reason="the recorded machines are not here")
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_machines(name: str) -> None:
    told = facts.FACTS[name]
    machine = nccl_xml.read((facts.FOLDER / name).read_bytes(), name)
    assert len(machine.gpus) == told["gpus"] and len(machine.nics) == told["nics"]
    assert {str(node.numa) for node in machine.of_kind(NodeKind.NUMA)} == set(told["numa_nodes"])
    for dev, numa, rank in zip(told["dev_order"], told["gpu_numa"], told["rank_order"], strict=True):
        node = machine.node(f"gpu{dev}")
        assert (str(node.numa), str(node.rank)) == (numa, rank)
    loops = [remark for remark in machine.remarks if "to itself" in remark]
    assert len(loops) == told.get("links_that_name_their_own_gpu", 0)
    if told["gpus"]:
        facts.check(machine, told, WORDS)
    again = nccl_xml.read(nccl_xml_write.write(machine))
    assert facts.others(again) == facts.others(machine) and facts.counts(again) == facts.counts(machine)


@pytest.mark.skipif(not RECORDED, reason="the recorded machines are not here")
def test_recorded_graph_is_refused() -> None:
    text = (facts.FOLDER / "nvidia/nccl_azure_ncv4-graph.xml").read_bytes()
    with pytest.raises(TopologyError, match="graph file"):
        nccl_xml.read(text)
