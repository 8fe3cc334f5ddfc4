"""The text of ``nvidia-smi topo -p2p r`` or ``w``: which GPU may reach which other's memory by itself."""

from __future__ import annotations

import re

from collectives.topology import text_lines
from collectives.topology.graph import Node, NodeKind, Topology, TopologyError

_STATUS: dict[str, bool | None] = {
    "OK": True,
    "CNS": False,  # the chipset does not support it
    "GNS": False,  # the GPU
    "TNS": False,  # the topology
    "NS": False,
    "DR": False,  # disabled by a registry key
    "U": None,
}
_HEADER = re.compile(r"\s*GPU\d{1,5}(?:\s+GPU\d{1,5})*\s*$", re.ASCII)


def parse(text: str | bytes, source: str = "nvidia-smi topo -p2p") -> dict[tuple[int, int], bool | None]:
    """Whether the first GPU reaches the second, by their numbers; None if the driver does not know.

    A machine of one GPU is the pair of it with itself.

    Raises:
        TopologyError: no table in it; a row that is missing, cut off or stands twice; an unknown status.
    """
    lines = text_lines.clean(text, source)
    start = next((i for i, line in enumerate(lines) if _HEADER.match(line)), None)
    if start is None:
        if any("No devices were found" in line for line in lines):
            return {}
        raise TopologyError("no line of GPU names; expected what nvidia-smi topo -p2p r prints", source)
    columns = [int(word[3:]) for word in lines[start].split()]
    found: dict[tuple[int, int], bool | None] = {}
    missing = list(columns)
    for number, line in enumerate(lines[start + 1 :], start + 2):
        words = line.split()
        if not missing or not words or not re.fullmatch(r"GPU\d{1,5}", words[0], re.ASCII):
            continue
        row = int(words[0][3:])
        if row not in missing:
            raise TopologyError(f"a row for GPU{row}; expected one for each column", source, number)
        missing.remove(row)
        if len(words) != len(columns) + 1:
            raise TopologyError(f"{len(words) - 1} cells, expected {len(columns)}", source, number)
        for column, word in zip(columns, words[1:], strict=True):
            if (word == "X") != (row == column) or (word != "X" and word not in _STATUS):
                raise TopologyError(
                    f'"{word}" where GPU{row} meets GPU{column}; expected X for itself, else one of '
                    + ", ".join(_STATUS),
                    source,
                    number,
                )
            found[row, column] = True if word == "X" else _STATUS[word]
    if missing or len(set(columns)) != len(columns):
        raise TopologyError("not one row for each column", source, start + 1)
    return found


def read(text: str | bytes, source: str = "nvidia-smi topo -p2p") -> Topology:
    """The GPUs, and who may reach whom; what links them is unknown."""
    found = parse(text, source)
    nodes = [Node(f"gpu{i}", NodeKind.GPU) for i in sorted({i for i, _ in found})]
    peers = {(f"gpu{i}", f"gpu{j}"): ok for (i, j), ok in found.items() if ok is not None and i != j}
    return Topology(nodes, source=source, peers=peers)
