"""Sets and matrices of distances in hwloc's XML."""

from __future__ import annotations

import re
from dataclasses import dataclass

from collectives.topology.markup import Element

MAX_OBJECTS = 4096
_MEANS_LATENCY = 4  # a bit of "kind"


@dataclass
class Distances:
    """A square matrix, row after row.

    Attributes:
        name: such as ``NVLinkBandwidth``; None in old files.
        latency: whether values are relative latencies.
        objects: of rows and columns.
        values: of MB/s, or of latency with 10 for local.
    """

    name: str | None
    latency: bool
    objects: list[Element]
    values: list[int]


def bits(element: Element, name: str) -> int | None:
    """A set in an attribute: words of 32 bits in hexadecimal, the highest first; None if it is absent.

    Raises:
        TopologyError: it is not written so, or infinite.
    """
    text = element.get(name)
    if text is None:
        return None
    if len(text) > 16384 or not re.fullmatch(r"(0x[0-9a-fA-F]{1,8})?(,(0x[0-9a-fA-F]{1,8})?)*", text):
        raise element.fail(f'{name}="{text[:60]}" is not a set such as 0x000000ff,0xffffffff')
    value = 0
    for word in text.split(","):
        value = value << 32 | int(word or "0", 16)
    return value


def _numbers(element: Element, tag: str) -> list[str]:
    return [word for child in element.all(tag) for word in child.text.split()]


def matrices(root: Element) -> list[Distances]:
    """Every matrix of the file.

    Raises:
        TopologyError: one whose size is not the square of its objects, or that names an object that is not
            there.
    """
    objects = [element for element in root.walk() if element.tag == "object"]
    by_gp = {o.get("gp_index"): o for o in objects if o.get("gp_index")}
    by_os = {(o.get("type"), o.get("os_index")): o for o in objects if o.get("os_index")}
    found = []
    for element in root.walk():
        if element.tag in ("distances2", "distances2hetero"):
            kind, by_number = element.get("type"), element.get("indexing") == "os"
            members = []
            for index in _numbers(element, "indexes"):
                own, _, number = index.rpartition(":")
                member = by_os.get((own or kind, number)) if by_number else by_gp.get(number)
                if member is None:
                    raise element.fail(f'a matrix of distances has "{index}", which is no object of the file')
                members.append(member)
            words = _numbers(element, "u64values")
            bad = next((word for word in words if not re.fullmatch(r"\d{1,20}", word, re.ASCII)), None)
            if bad is not None:
                raise element.fail(f'"{bad}" in a matrix of distances is not a number')
            latency = bool((element.integer("kind") or 0) & _MEANS_LATENCY)
            found.append(Distances(element.get("name"), latency, members, [int(word) for word in words]))
        elif element.tag == "distances":  # version 1: latencies of NUMA nodes, relative to a base
            found += _old(element, [o for o in objects if o.get("type") == "NUMANode"])
            continue
        else:
            continue
        size = len(found[-1].objects)
        if size > MAX_OBJECTS or len(found[-1].values) != size * size:
            raise element.fail(f"{len(found[-1].values)} distances of {size} objects, expected {size * size}")
    return found


def _old(element: Element, numa: list[Element]) -> list[Distances]:
    number = r"\d{1,6}(\.\d{1,12})?"
    texts = [element.get("latency_base") or "1", *(x.need("value") for x in element.all("latency"))]
    for text in texts:
        if not re.fullmatch(number, text, re.ASCII):
            raise element.fail(f'"{text}" in a matrix of distances is not a number')
    base, *values = (float(text) for text in texts)
    if element.need_integer("nbobjs") != len(numa):
        return []  # of other objects
    if len(values) != len(numa) ** 2:
        raise element.fail(f"{len(values)} distances of {len(numa)} objects, expected {len(numa) ** 2}")
    return [Distances(None, True, numa, [round(value * base) for value in values])]
