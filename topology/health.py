"""What looks broken in a machine: devices beside their peers, links beside their way back."""

from __future__ import annotations

import enum
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from collectives.topology.graph import FAST, Link, LinkKind, Node, NodeKind, Topology

_K = TypeVar("_K")


class Severity(str, enum.Enum):
    """How bad it is."""

    ERROR = "error"  # devices cannot work together as they should, or the description contradicts itself
    WARNING = "warning"  # they can, slower than their peers
    NOTE = "note"  # odd, and perhaps meant


@dataclass(frozen=True)
class Finding:
    """One thing that looks broken.

    Attributes:
        severity: how bad it is.
        kind: which of the checks found it, a word for programs.
        words: what it is, a sentence for people.
        nodes: names of the nodes that it is about.
    """

    severity: Severity
    kind: str
    words: str
    nodes: tuple[str, ...] = ()


def findings(topology: Topology) -> list[Finding]:
    """Everything that looks broken, the worst first; empty if nothing does."""
    checks = (_own_gpu, _one_way, _addresses, _lost_links, _inactive, _no_weights, _partitions, _pcie)
    found = [finding for check in checks for finding in check(topology)]
    found += [_remark(remark) for remark in topology.remarks if not _all_up(remark)]
    return sorted(found, key=lambda finding: list(Severity).index(finding.severity))


_NVLINKS = re.compile(r"(gpu\d+): (\d+) of (\d+) NVLinks up")  # what nvidia-smi nvlink -s is remarked for


def _all_up(remark: str) -> bool:
    match = _NVLINKS.match(remark)
    return match is not None and match[2] == match[3]


def _remark(remark: str) -> Finding:
    match = _NVLINKS.match(remark)
    if match:
        return Finding(Severity.WARNING, "inactive", remark, (match[1],))
    return Finding(Severity.NOTE, "remark", remark)


def _usual(values: Mapping[str, _K]) -> _K | None:
    """The value that more than half of the peers have; None if there is none."""
    if len(values) < 2:
        return None
    value, times = Counter(values.values()).most_common(1)[0]
    return value if 2 * times > len(values) else None


def _plural(number: object, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _fast(topology: Topology) -> list[Link]:
    return [link for link in topology.links if link.kind in FAST]


def _own_gpu(topology: Topology) -> Iterable[Finding]:
    own = list(dict.fromkeys(link.source for link in _fast(topology) if link.source == link.target))
    if own:
        yield Finding(
            Severity.ERROR,
            "own-gpu",
            f"links of {', '.join(own)} name their own GPU as the other end: whom they join is not known",
            tuple(own),
        )


def _one_way(topology: Topology) -> Iterable[Finding]:
    counts: dict[tuple[str, str], int | None] = defaultdict(int)
    for link in _fast(topology):
        if link.source != link.target:
            before = counts[link.source, link.target]
            counts[link.source, link.target] = (
                None if before is None or link.count is None else before + link.count
            )
    for (a, b), there in counts.items():
        back = counts.get((b, a), 0)
        if there != 0 and back == 0:
            yield Finding(
                Severity.ERROR,
                "one-way",
                f"{a} has a link to {b}, which has none back: nobody can count on it",
                (a, b),
            )
        elif there is not None and back is not None and a < b and there != back:
            yield Finding(
                Severity.WARNING,
                "uneven",
                f"{_plural(there, 'link')} from {a} to {b}, but {back} back: only the smaller number counts",
                (a, b),
            )


def _addresses(topology: Topology) -> Iterable[Finding]:
    places: dict[str, list[str]] = defaultdict(list)
    for gpu in topology.gpus:
        if gpu.bus:
            places[gpu.bus].append(gpu.name)
    for bus, names in places.items():
        if len(names) > 1:
            yield Finding(
                Severity.ERROR,
                "same-address",
                f"{', '.join(names)} have one PCI address, {bus}: perhaps one device, listed twice",
                tuple(names),
            )


def _totals(topology: Topology) -> dict[str, int]:
    """Fast links that leave each device; devices of which it is not known are left out."""
    found = {}
    for gpu in topology.gpus:
        links = [
            link for link in topology.links_from(gpu.name) if link.kind in FAST and link.target != gpu.name
        ]
        if all(link.count is not None for link in links):
            found[gpu.name] = sum(link.count or 0 for link in links)
    return found


def _alike(topology: Topology) -> list[list[Node]]:
    """The devices by architecture and product: only those are each other's peers."""
    kinds: dict[tuple[str | None, str | None], list[Node]] = defaultdict(list)
    for gpu in topology.gpus:
        kinds[gpu.arch, gpu.model].append(gpu)
    return list(kinds.values())


def _lost_links(topology: Topology) -> Iterable[Finding]:
    totals = _totals(topology)
    for peers in _alike(topology):
        known = {gpu.name: totals[gpu.name] for gpu in peers if gpu.name in totals}
        linked = [name for name, total in known.items() if total]
        usual = _usual(known)
        for name, total in known.items():
            if total == 0 and len(linked) > len(known) - len(linked):
                yield Finding(
                    Severity.ERROR,
                    "lost-links",
                    f"{name} has no fast link, but {len(linked)} of its peers have: look at its bridge, its "
                    "seating and the driver's log",
                    (name,),
                )
            elif usual is not None and 0 < total < usual:
                yield Finding(
                    Severity.WARNING,
                    "fewer-links",
                    f"{name} has {_plural(total, 'fast link')}, its peers have {usual}",
                    (name,),
                )


def _inactive(topology: Topology) -> Iterable[Finding]:
    down = [
        link
        for link in _fast(topology)
        if link.count == 0 and (link.kind == LinkKind.NVLINK or not link.weight or link.gbps == 0.0)
    ]
    for name in dict.fromkeys(link.source for link in down):
        ends = [link.target for link in down if link.source == name]
        yield Finding(
            Severity.WARNING,
            "inactive",
            f"links of {name} are there, but not active (to {', '.join(ends)})",
            (name, *ends),
        )


def _no_weights(topology: Topology) -> Iterable[Finding]:
    weights = [
        link.weight
        for link in topology.links
        if link.source != link.target
        and topology.node(link.source).kind == topology.node(link.target).kind == NodeKind.GPU
    ]
    if weights and all(weight == 0 for weight in weights):
        yield Finding(
            Severity.WARNING,
            "no-weights",
            "all weights between devices are 0: the driver tells nothing of distances",
            tuple(gpu.name for gpu in topology.gpus),
        )


def _partitions(topology: Topology) -> Iterable[Finding]:
    parts: dict[str, list[str]] = defaultdict(list)
    for gpu in topology.gpus:
        if gpu.parent:
            parts[gpu.parent].append(gpu.name)
    usual = _usual({card: len(names) for card, names in parts.items()})
    # A card of which one part is left looks like one that is not split.
    for card, names in parts.items():
        if usual is not None and len(names) < usual:
            whole = usual * len(parts)
            yield Finding(
                Severity.WARNING,
                "missing-partition",
                f"the card at {card} shows {_plural(len(names), 'partition')}, the others {usual}: "
                f"{sum(map(len, parts.values()))} devices of {whole}",
                tuple(names),
            )
    unsplit = [gpu.name for gpu in topology.gpus if not gpu.parent]
    if usual is not None and unsplit:
        yield Finding(
            Severity.NOTE,
            "unsplit",
            f"{', '.join(unsplit)} show one partition, the other cards {usual}",
            tuple(unsplit),
        )


def _pcie(topology: Topology) -> Iterable[Finding]:
    groups = [*_alike(topology), list(topology.nics)]
    for peers in groups:
        ways: dict[str, tuple[int | None, int | None, float | None]] = {}
        for node in peers:
            for link in topology.links_from(node.name):
                if link.kind == LinkKind.PCIE and topology.node(link.target).kind != NodeKind.GPU:
                    ways[node.name] = (link.generation, link.width, link.gbps)
        for index, word in enumerate(("generation", "width", "GB/s")):
            usual = _usual({name: way[index] for name, way in ways.items()})
            for name, way in ways.items():
                value = way[index]
                # Where width and generation are told, the speed that follows from them says nothing new.
                repeated = index == 2 and None not in way[:2]
                if usual is not None and value is not None and value < usual and not repeated:
                    yield Finding(
                        Severity.WARNING,
                        "pcie",
                        f"{name} is on PCIe with {word} {value:g}, its peers with {usual:g}: look at its "
                        "slot, riser and power state",
                        (name,),
                    )
