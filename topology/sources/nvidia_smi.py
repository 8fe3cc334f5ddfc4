"""The text of ``nvidia-smi topo -m``: a matrix of path classes, and where GPUs stand.

All generations of the driver: columns for CPU and NUMA affinity that come and go, NICs by device name or by
number with a legend, SOC for SYS, tabs or spaces, cells that a paste has glued together. The text tells
NVLinks by pair only; what ``nvidia-smi nvlink -s`` and ``nvidia-smi topo -p2p r`` print of the same machine
adds models, speeds and peer access.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace

import networkx as nx

from collectives.topology import links as speeds
from collectives.topology import text_lines
from collectives.topology.cpu import parse_list
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
from collectives.topology.sources import nvidia_smi_nvlink, nvidia_smi_p2p

MAX_PORTS = 18
"""NVLinks of a GPU at most, whichever it is (up to NVLink 5)."""

MAX_CORES = 1 << 16

_CLASSES = {
    "PIX": PathClass.PIX,
    "PXB": PathClass.PXB,
    "PHB": PathClass.PHB,
    "NODE": PathClass.NODE,
    "SYS": PathClass.SYS,
    "SOC": PathClass.SYS,  # the word of drivers before 2018
}
_CELL = re.compile(r"\s*(X|NV\d+|" + "|".join(_CLASSES) + ")", re.ASCII)
_TITLES = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID")
_HEADER = re.compile(r"\s*GPU\d+(?=\s|GPU|NIC|CPU|$)", re.ASCII)
_ROW = re.compile(r"\b(X|NV\d+|" + "|".join(_CLASSES) + r")\b", re.ASCII)
_GLUED = re.compile(r"(?:GPU\d+|NIC\d+){2,}", re.ASCII)
_LEGEND = re.compile(r"\s*(NIC\d+)\s*:\s*(\S+)\s*$", re.ASCII)


@dataclass
class _Matrix:
    """The table as it stands: devices by name, cells and their lines by pair, the right-hand columns."""

    names: list[str]
    cells: dict[tuple[str, str], tuple[str, int]]
    tails: dict[str, dict[str, str]]
    legend: dict[str, str]


def read(
    text: str | bytes,
    source: str = "nvidia-smi topo -m",
    nvlink: str | bytes | None = None,
    p2p: str | bytes | None = None,
) -> Topology:
    """A machine from what ``nvidia-smi topo -m`` printed.

    More NVLinks to all peers together than a GPU has ports can only go through an NVSwitch, and then one is
    in the graph. With fewer, links are taken as direct ones.

    Args:
        text: what was printed.
        source: its name, for errors.
        nvlink: what ``nvidia-smi nvlink -s`` printed on the same machine.
        p2p: what ``nvidia-smi topo -p2p r`` (or ``w``) printed there.

    Raises:
        TopologyError: no table; a row that is missing or too short; a word that is no path class; two cells
            that contradict each other; texts of different machines.
    """
    lines = text_lines.clean(text, source)
    found = next((i for i, line in enumerate(lines) if _HEADER.match(line) and not _ROW.search(line)), None)
    if found is None:
        if any("No devices were found" in line for line in lines):
            return Topology([], source=source)
        raise TopologyError(
            "no line of column names that begins with GPU0; expected what nvidia-smi topo -m prints", source
        )
    matrix = _matrix(lines, found, source)
    _check(matrix, source)
    status = nvidia_smi_nvlink.parse(nvlink, f"{source} (nvlink -s)") if nvlink is not None else {}
    access = nvidia_smi_p2p.parse(p2p, f"{source} (p2p)") if p2p is not None else {}
    return _topology(matrix, status, access, source)


def _matrix(lines: list[str], start: int, source: str) -> _Matrix:
    header = lines[start]
    titles = list(_TITLES.finditer(header))
    words = header[: titles[0].start() if titles else None].split()
    names: list[str] = []
    for word in words:
        names += re.findall(r"GPU\d+|NIC\d+", word, re.ASCII) if _GLUED.fullmatch(word) else [word]
    if len(set(names)) != len(names):
        raise TopologyError("a column name stands twice", source, start + 1)
    for title in names:
        if title.startswith("GPU") and not re.fullmatch(r"GPU(0|[1-9]\d{0,4})", title, re.ASCII):
            raise TopologyError(f'"{title}" is not the name of a GPU', source, start + 1)
    matrix = _Matrix(names, {}, {}, {})
    longest_first = sorted(names, key=len, reverse=True)
    missing = list(names)
    for number, line in enumerate(lines[start + 1 :], start + 2):
        if legend := _LEGEND.match(line):
            matrix.legend[legend[1]] = legend[2]
        body = line.lstrip()
        name = next((name for name in longest_first if body.startswith(name)), None)
        if name is None or name not in names or not missing or legend or body[len(name) :][:1].isdigit():
            if body.startswith("Legend"):
                missing = []
            continue
        if name not in missing:
            raise TopologyError(f"a second row for {name}", source, number)
        missing.remove(name)
        _row(matrix, name, line, number, titles, source)
    absent = [name for name in names if name not in matrix.tails and name.startswith("GPU")]
    if absent:
        raise TopologyError(
            f"no row for {', '.join(absent)}; expected one for each of {len(names)} columns",
            source,
            start + 1,
        )
    return matrix


def _row(
    matrix: _Matrix, name: str, line: str, number: int, titles: list[re.Match[str]], source: str
) -> None:
    at = line.index(name) + len(name)
    for column in matrix.names:
        cell = _CELL.match(line, at)
        if not cell:
            found = line[at:].split()
            word = f'"{found[0]}"' if found else "the end of the line"
            raise TopologyError(
                f"{word} in the row of {name} under {column}; expected X, NV#, {', '.join(_CLASSES)}",
                source,
                number,
            )
        matrix.cells[name, column] = cell[1], number
        at = cell.end()
    values = list(re.finditer(r"\S+", line[at:]))
    if len(values) > len(titles) or (values and not name.startswith("GPU") and values[0][0] != "N/A"):
        raise TopologyError(f'"{line[at:].strip()}" after the cells of {name}', source, number)
    tail: dict[str, str] = {}
    for index, value in enumerate(values):
        title = titles[index]
        if len(values) < len(titles):  # a column is empty: which one, the position tells
            place = at + value.start()
            title = min(titles, key=lambda column: abs(column.start() - place))
        if title[0] in tail:
            raise TopologyError(
                f"which columns {tail[title[0]]} and {value[0]} are in is unclear", source, number
            )
        if not re.fullmatch(r"N/A|\d+(-\d+)?(,\d+(-\d+)?)*", value[0], re.ASCII) or any(
            len(part) > 5 or int(part) >= MAX_CORES for part in re.findall(r"\d+", value[0])
        ):
            raise TopologyError(
                f'"{value[0]}" under {title[0]} of {name}; expected numbers such as 0-3,8', source, number
            )
        tail[title[0]] = value[0]
    matrix.tails[name] = tail


def _check(matrix: _Matrix, source: str) -> None:
    """Refuses what cannot be: an X off the diagonal, a class that differs by direction."""
    for (row, column), (word, line) in matrix.cells.items():
        if (word == "X") != (row == column):
            raise TopologyError(f"{word} where {row} meets {column}", source, line)
        if word.startswith("NV") and (len(word) > 4 or int(word[2:]) > 2 * MAX_PORTS):
            raise TopologyError(f"{word} where {row} meets {column}: no GPU has so many links", source, line)
        back = matrix.cells.get((column, row), (word, 0))[0]
        if word in _CLASSES and back in _CLASSES and _CLASSES[word] != _CLASSES[back]:
            raise TopologyError(f"{row} to {column} is {word}, but {column} to {row} is {back}", source, line)


def _topology(
    matrix: _Matrix,
    status: dict[int, nvidia_smi_nvlink.GpuLinks],
    access: dict[tuple[int, int], bool | None],
    source: str,
) -> Topology:
    gpus = sorted((name for name in matrix.names if name.startswith("GPU")), key=lambda name: int(name[3:]))
    numbers = {int(name[3:]) for name in gpus}
    for told, tool in ((set(status), "nvlink -s"), ({i for pair in access for i in pair}, "topo -p2p")):
        if told and told != numbers:
            raise TopologyError(
                f"topo -m tells of {len(numbers)} GPUs, {tool} of others: not one machine", source
            )
    called = {name: name.lower() for name in gpus}
    called |= {name: f"nic{i}" for i, name in enumerate(n for n in matrix.names if n not in called)}
    classes = {
        (called[row], called[column]): _CLASSES[word]
        for (row, column), (word, _) in matrix.cells.items()
        if word in _CLASSES
    }
    nodes, remarks = [], []
    for name in gpus:
        numa = matrix.tails[name].get("NUMA Affinity", "")
        known = status.get(int(name[3:]))
        model = known.model if known else None
        node = Node(called[name], NodeKind.GPU, numa=int(numa) if numa.isdigit() else None, model=model)
        nodes.append(replace(node, arch=speeds.arch_of(model)))
    places = {node.name: node.numa for node in nodes}
    for name, nic in called.items():
        if name not in gpus:
            # Whatever is nearer than SYS is in one NUMA node with it.
            kinds = ((gpu, classes.get((nic, gpu), classes.get((gpu, nic)))) for gpu in places)
            near = {places[gpu] for gpu, kind in kinds if kind is not None and kind < PathClass.SYS}
            numa_of = near.pop() if len(near) == 1 else None
            nodes.append(Node(nic, NodeKind.NIC, numa=numa_of, label=matrix.legend.get(name, name)))
    counts = {
        (called[row], called[column]): int(word[2:])
        for (row, column), (word, _) in matrix.cells.items()
        if word.startswith("NV") and int(word[2:])
    }
    links, switches = _nvlinks(
        nodes, counts, {f"gpu{i}": known.active for i, known in status.items()}, source
    )
    if switches:
        remarks.append("the text does not name switches: more links to peers than ports on a GPU mean one")
    peers = {(f"gpu{i}", f"gpu{j}"): ok for (i, j), ok in access.items() if ok is not None and i != j}
    return Topology(nodes + switches, links, classes, source, remarks, _host(matrix, gpus, remarks), peers)


def _nvlinks(
    nodes: list[Node], counts: dict[tuple[str, str], int], active: dict[str, int], source: str
) -> tuple[list[Link], list[Node]]:
    """The NVLinks, and the switches which they go through."""
    archs = {node.name: node.arch for node in nodes}
    links: list[Link] = []
    switches: list[Node] = []

    def bundle(a: str, b: str, count: int, gpu: str) -> Link:
        each = speeds.nvlink_gbps(archs[gpu])
        gbps = None if each is None else each * count
        return Link(a, b, LinkKind.NVLINK, count, speeds.nvlink_generation(archs[gpu]), gbps=gbps)

    for (a, b), count in counts.items():
        if a in active and count > active[a]:
            raise TopologyError(
                f"{a} to {b} is NV{count}, but nvlink -s shows {active[a]} active links", source
            )
    for island in sorted(map(sorted, nx.connected_components(nx.Graph(list(counts))))):
        to = {gpu: {b: count for (a, b), count in counts.items() if a == gpu} for gpu in island}
        most = {gpu: max(to[gpu].values(), default=0) for gpu in island}
        ports = {gpu: active.get(gpu) or speeds.nvlink_ports(archs[gpu]) or MAX_PORTS for gpu in island}
        over = any(sum(to[gpu].values()) > ports[gpu] for gpu in island)
        pairs = itertools.permutations(island, 2)
        if over and all(to[a].get(b) == min(most[a], most[b]) for a, b in pairs):
            switch = Node(f"nvswitch{len(switches)}", NodeKind.NVSWITCH)
            switches.append(switch)
            for gpu in island:
                links.append(bundle(gpu, switch.name, most[gpu], gpu))
                links.append(bundle(switch.name, gpu, most[gpu], gpu))
        else:
            links += [bundle(a, b, count, a) for a in island for b, count in to[a].items()]
    return links, switches


def _host(matrix: _Matrix, gpus: list[str], remarks: list[str]) -> Host | None:
    """The NUMA nodes that are told, with the cores that the text says are near them."""
    cores: dict[int, set[tuple[int, ...]]] = {}
    for name in gpus:
        tail = matrix.tails[name]
        if tail.get("NUMA Affinity", "").isdigit():
            near = parse_list(tail.get("CPU Affinity"))
            cores.setdefault(int(tail["NUMA Affinity"]), set()).update({near} if near else set())
    for number, told in cores.items():
        if len(told) > 1:
            remarks.append(f"GPUs of NUMA node {number} differ in CPU affinity; its cores are left out")
    numa = [Numa(n, None, told.pop() if len(told) == 1 else ()) for n, told in sorted(cores.items())]
    return Host(numa=tuple(numa)) if numa else None
