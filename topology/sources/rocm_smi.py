"""``rocm-smi --showtopo``, its text and its ``--json``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from collectives.topology.graph import Node, NodeKind, Topology, TopologyError
from collectives.topology.sources.amd_pairs import Pair, matrix, number, topology
from collectives.topology.text_lines import clean

_TITLE = re.compile(r"^=+ ?(.*?) ?=+$")
_TABLES = {
    "weight between two gpus": "weight",
    "hops between two gpus": "hops",
    "link type between two gpus": "kind",
    "link accessibility between two gpus": "enabled",
}
_NUMA = re.compile(r"^GPU\[(\d{1,5})\]\s*:\s*\(Topology\) Numa (Node|Affinity): (\S+)$")
_GPU = re.compile(r"^GPU(\d{1,5})$")
_PAIR = re.compile(
    r"^\(Topology\) (Weight|Hops|Link type|Link accessibility) between DRM devices (\d{1,5}) and (\d{1,5})$"
)
_FIELDS = {"Weight": "weight", "Hops": "hops", "Link type": "kind", "Link accessibility": "enabled"}
_BEGIN, _END = "ROCm System Management Interface", "End of ROCm SMI Log"


def _with(pair: Pair, field: str, text: str, source: str, line: int | None) -> Pair:
    if field == "kind":
        return replace(pair, kind=text)
    if field == "enabled":
        if text.lower() not in ("true", "false", "n/a"):
            raise TopologyError(f"{text!r} under link accessibility: expected True or False", source, line)
        return replace(pair, enabled={"true": True, "false": False}.get(text.lower()))
    value = number(text, source, line)
    return replace(pair, weight=value) if field == "weight" else replace(pair, hops=value)


def _nodes(numbers: list[int], numa: Mapping[int, int | None]) -> tuple[list[Node], list[Node]]:
    """Devices by their numbers, and the NUMA nodes that they hang on."""
    gpus = [Node(f"gpu{n}", NodeKind.GPU, numa=numa.get(n)) for n in numbers]
    found = sorted({gpu.numa for gpu in gpus if gpu.numa is not None})
    return gpus, [Node(f"numa{n}", NodeKind.NUMA, numa=n) for n in found]


def _numa_number(text: str, source: str, line: int | None) -> int | None:
    return None if text == "-1" else number(text, source, line)


def read_text(text: str | bytes, source: str = "") -> Topology:
    """The topology that the text shows.

    Raises:
        TopologyError: truncated, no table of link types, tables that do not fit each other, or unknown words.
    """
    lines = clean(text, source)
    titles = [match[1] for line in lines if (match := _TITLE.match(line.strip()))]
    if any(_BEGIN in title for title in titles) and not any(_END in title for title in titles):
        raise TopologyError(f"truncated: expected a line with {_END!r} at the end", source, len(lines))
    pairs: dict[tuple[int, int], Pair] = {}
    numbers: list[int] = []
    seen: set[str] = set()
    numa: dict[int, int | None] = {}
    at = 0
    while at < len(lines):
        line, here = lines[at].strip(), at
        at += 1
        title = _TITLE.match(line)
        field = _TABLES.get(title[1].lower()) if title else None
        if field:
            if field in seen:
                raise TopologyError(f"a second table {title[1] if title else ''!r}", source, at)
            seen.add(field)
            names, rows, at = matrix(lines, at, source)
            of = [int(match[1]) if (match := _GPU.match(name)) else -1 for name in names]
            if -1 in of:
                raise TopologyError("expected GPU0, GPU1 and so on over the table", source, here + 2)
            if numbers and of != numbers:
                raise TopologyError("the tables are not of the same devices", source, here + 2)
            numbers = of
            for i, row in enumerate(rows):
                for j, cell in enumerate(row):
                    if i != j or cell.upper() in ("XGMI", "PCIE"):
                        pair = pairs.get((i, j), Pair())
                        pairs[i, j] = _with(pair, field, cell, source, here + 3 + i)
        elif match := _NUMA.match(line):
            node = _numa_number(match[3], source, at)
            if match[2] == "Node":
                numa[int(match[1])] = node
        elif line.startswith("GPU["):
            raise TopologyError(
                "expected '(Topology) Numa Node: N' or '(Topology) Numa Affinity: N'", source, at
            )
    if "kind" not in seen:
        raise TopologyError("no table 'Link Type between two GPUs': expected rocm-smi --showtopo", source)
    _check_numa(numa, numbers, source)
    gpus, numa_nodes = _nodes(numbers, numa)
    return topology(gpus, pairs, source, numa_nodes)


def _check_numa(numa: Mapping[int, int | None], numbers: list[int], source: str) -> None:
    if numa and sorted(numa) != sorted(numbers):
        raise TopologyError("the NUMA nodes are not those of the devices in the tables", source)


def read_json(data: object, source: str = "") -> Topology:
    """The topology of parsed ``rocm-smi --showtopo --json``; a pair that it tells once is told for both ways.

    Raises:
        TopologyError: not of that shape, or pairs are missing.
    """
    if not isinstance(data, Mapping) or not any(re.match(r"card\d+$|system$", str(key)) for key in data):
        raise TopologyError("expected an object with 'system' and 'card0', 'card1' and so on", source)
    system = data.get("system", {})
    if not isinstance(system, Mapping):
        raise TopologyError("'system' is no object", source)
    numbers, numa = _cards(data, source)
    pairs: dict[tuple[int, int], Pair] = {}
    for key, value in system.items():
        match = _PAIR.match(str(key))
        if not match:
            continue
        a, b = int(match[2]), int(match[3])
        for number_ in (a, b):
            if number_ not in numbers:
                numbers.append(number_)
        ways = [(a, b)] if a == b else [(a, b), (b, a)]
        for way in ways:
            pairs[way] = _with(pairs.get(way, Pair()), _FIELDS[match[1]], str(value), source, None)
    if not numbers:
        raise TopologyError("no pairs and no cards: expected rocm-smi --showtopo --json", source)
    numbers.sort()
    place = {n: i for i, n in enumerate(numbers)}
    missing = [
        f"{a} and {b}" for a in numbers for b in numbers if a < b and pairs.get((a, b), Pair()).kind is None
    ]
    if missing:
        raise TopologyError(f"no link type between DRM devices {missing[0]}", source)
    gpus, numa_nodes = _nodes(numbers, numa)
    return topology(gpus, {(place[a], place[b]): pair for (a, b), pair in pairs.items()}, source, numa_nodes)


def _cards(data: Mapping[str, object], source: str) -> tuple[list[int], dict[int, int | None]]:
    numbers, numa = [], {}
    for key, value in data.items():
        match = re.match(r"card(\d{1,5})$", str(key))
        if not match:
            continue
        if not isinstance(value, Mapping):
            raise TopologyError(f"'{key}' is no object", source)
        numbers.append(int(match[1]))
        if "(Topology) Numa Node" in value:
            numa[numbers[-1]] = _numa_number(str(value["(Topology) Numa Node"]), source, None)
    return numbers, numa
