"""What AMD's tools tell of pairs of devices, and what follows: shared by KFD, ROCm SMI and AMD SMI.

The tools print what the kernel driver has put into its topology, so its rules explain the figures:

* xGMI weighs 15 for each link on the way; 13 within a package that is split in several devices; 13 more at
  each end that is such a part, so 41 = 13 + 15 + 13 is one link between parts of two packages;
* a pair's least bandwidth is that of one link, its greatest that of all links of the pair;
* "hops" counts no links: 1 is xGMI on whatever way, 2 goes through the CPU of both, 3 through two CPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from collectives.topology.graph import Link, LinkKind, Node, PathClass, Topology, TopologyError
from collectives.topology.links import xgmi_gbps

_XGMI_WEIGHT = 15
_PART_WEIGHT = 13
_TELLS_NOTHING = frozenset({"", "N/A", "XXXX", "UNKNOWN", "NONE", "UNDEFINED"})


@dataclass(frozen=True)
class Pair:
    """What a tool says of one direction of a pair; None where it says nothing.

    Attributes:
        kind: "XGMI", "PCIE", "SELF" or what else the tool writes.
        weight: the driver's measure of distance.
        hops: the tool's count (see above).
        least, most: MB/s of one link and of all links.
        enabled: whether the devices may reach each other's memory.
    """

    kind: str | None = None
    weight: int | None = None
    hops: int | None = None
    least: int | None = None
    most: int | None = None
    enabled: bool | None = None


def xgmi_links(weight: int | None, least: int | None = None, most: int | None = None) -> int | None:
    """How many xGMI links two devices have of their own.

    Returns:
        0 if their traffic is routed through other devices; None if the figures do not say.
    """
    if least and most and most >= least:
        return most // least
    if weight is None or weight <= 0:
        return None
    if weight in (_PART_WEIGHT, _XGMI_WEIGHT):
        return 1
    for ends in (0, _PART_WEIGHT, 2 * _PART_WEIGHT):
        if weight > ends and (weight - ends) % _XGMI_WEIGHT == 0:
            return 1 if weight - ends == _XGMI_WEIGHT else 0
    return None


def xgmi_link(
    source: Node, target: Node, weight: int | None, least: int | None = None, most: int | None = None
) -> Link:
    """The link of one direction, with usable GB/s where the architecture's are known."""
    count = xgmi_links(weight, least, most)
    single = xgmi_gbps(source.arch) if source.arch == target.arch else None
    if weight == _PART_WEIGHT:
        # Parts of one package: no xGMI cable, and only the driver knows how wide their way is.
        gbps = most / 1000 if most else None
    else:
        gbps = None if count is None or single is None else count * single
    return Link(source.name, target.name, LinkKind.XGMI, count, gbps=gbps, weight=weight)


def host_class(hops: int | None, weight: int | None) -> PathClass | None:
    """The class of a path over PCIe: through one CPU or two; None if neither figure tells."""
    if hops in (2, 3):
        return PathClass.NODE if hops == 2 else PathClass.SYS
    if weight is not None and weight > 0:
        return PathClass.NODE if weight <= 40 else PathClass.SYS
    return None


def topology(
    gpus: Sequence[Node],
    pairs: Mapping[tuple[int, int], Pair],
    source: str,
    numa_nodes: Iterable[Node] = (),
    remarks: Iterable[str] = (),
) -> Topology:
    """A topology of devices and what is told of their pairs, by position in `gpus`.

    A pair over PCIe becomes a link without count or speed that carries the weight, and a path class: it is no
    wire of its own.

    Raises:
        TopologyError: a pair's kind is no word of these tools, or a weight is negative.
    """
    links, said = [], list(remarks)
    peers: dict[tuple[str, str], bool] = {}
    classes: dict[tuple[str, str], PathClass] = {}
    for (i, j), pair in sorted(pairs.items()):
        a, b = gpus[i], gpus[j]
        kind = (pair.kind or "").upper()
        if pair.enabled is not None and i != j:
            peers[a.name, b.name] = pair.enabled
        if (pair.weight or 0) < 0:
            raise TopologyError(
                f"the weight from {a.name} to {b.name} is {pair.weight}: expected 0 or more", source
            )
        if kind == "XGMI":
            link = xgmi_link(a, b, pair.weight, pair.least, pair.most)
            links.append(replace(link, count=0, gbps=0.0) if pair.enabled is False else link)
        elif kind in ("PCIE", "PCI") and i != j:
            links.append(Link(a.name, b.name, LinkKind.PCIE, None, weight=pair.weight))
            found = host_class(pair.hops, pair.weight)
            if found is not None:
                classes[a.name, b.name] = found
        elif i == j or kind in ("SELF", "INTERNAL"):
            continue
        elif kind in _TELLS_NOTHING:
            said.append(f"what joins {a.name} to {b.name} is not told")
        else:
            raise TopologyError(
                f"{a.name} to {b.name} is called {pair.kind!r}: expected XGMI, PCIE, SELF or N/A", source
            )
    return Topology([*gpus, *numa_nodes], links, classes, source, said, peers=peers)


def matrix(lines: Sequence[str], start: int, source: str) -> tuple[list[str], list[list[str]], int]:
    """A square table: a line of names, then for each name a line with it and one cell for each name.

    Args:
        lines: of the whole text.
        start: where the line of names is.
        source: for errors.

    Returns:
        The names, the cells by row, and the first line after the table.

    Raises:
        TopologyError: a row is missing, too short, too long or of another name.
    """
    names = lines[start].split() if start < len(lines) else []
    if not names:
        raise TopologyError("expected the names of the devices over a table", source, start + 1)
    if len(set(names)) != len(names):
        raise TopologyError("a device's name is twice over a table", source, start + 1)
    rows = []
    for row, name in enumerate(names, start + 1):
        words = lines[row].split() if row < len(lines) else []
        if not words or words[0] != name:
            found = f"{words[0]!r}" if words else "nothing"
            raise TopologyError(f"expected the row of {name}, found {found}: truncated?", source, row + 1)
        if len(words) != len(names) + 1:
            raise TopologyError(
                f"the row of {name} has {len(words) - 1} cells, expected {len(names)}", source, row + 1
            )
        rows.append(words[1:])
    return names, rows, start + 1 + len(names)


def number(text: str, source: str, line: int | None) -> int | None:
    """A cell's number; None where the tool knows none.

    Raises:
        TopologyError: it is neither.
    """
    if text.upper() in _TELLS_NOTHING:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise TopologyError(f"{text!r} is no number: expected digits or N/A", source, line)
    return int(text)
