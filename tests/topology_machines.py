"""Machines for the tests of topologies: KFD trees by what is in them, and where the recorded machines are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SHARED = Path(__file__).parents[1].parent / "shared" / "topologies"
PREFIX = "/sys/class/kfd/kfd/topology/"


def facts(prefix: str) -> dict[str, dict[str, Any]]:
    """What the index says of the recorded machines whose path begins so; empty where they are absent."""
    index = SHARED / "facts.json"
    if not index.exists():
        return {}
    return {name: told for name, told in json.loads(index.read_text()).items() if name.startswith(prefix)}


def _text(values: Mapping[str, int]) -> str:
    return "".join(f"{key} {value}\n" for key, value in values.items())


def _link(kind: int, start: int, end: int, weight: int, least: int = 0, most: int = 0) -> str:
    return _text(
        {
            "type": kind,
            "node_from": start,
            "node_to": end,
            "weight": weight,
            "min_bandwidth": least,
            "max_bandwidth": most,
        }
    )


def kfd(
    near: Sequence[int],
    xgmi: Mapping[tuple[int, int], tuple[int, int, int]],
    *,
    cpus: int = 1,
    gfx: int = 90402,
    locations: Sequence[int] = (),
    cards: Sequence[int] = (),
    pcie: int = 64000,
    p2p: Mapping[tuple[int, int], int] | None = None,
) -> dict[str, str]:
    """The files of a KFD topology.

    Args:
        near: the CPU of each device.
        xgmi: weight, least and greatest MB/s by pair of devices, told by both.
        locations: of each device; by default bus 16 and on.
        cards: what becomes ``unique_id``; by default each device its own.
        pcie: MB/s to the CPU.
        p2p: weight of PCIe by pair of devices, told by both.
    """
    links: dict[int, list[str]] = {node: [] for node in range(cpus + len(near))}
    detours: dict[int, list[str]] = {node: [] for node in links}
    for a in range(cpus):
        links[a] += [_link(1, a, b, 32) for b in range(cpus) if a != b]
    for gpu, home in enumerate(near):
        links[home].append(_link(2, home, cpus + gpu, 20, 312, pcie))
        links[cpus + gpu].append(_link(2, cpus + gpu, home, 20, 312, pcie))
    for (a, b), (weight, least, most) in xgmi.items():
        links[cpus + a].append(_link(11, cpus + a, cpus + b, weight, least, most))
        links[cpus + b].append(_link(11, cpus + b, cpus + a, weight, least, most))
    for (a, b), weight in (p2p or {}).items():
        detours[cpus + a].append(_link(2, cpus + a, cpus + b, weight))
        detours[cpus + b].append(_link(2, cpus + b, cpus + a, weight))
    files = {}
    for node in links:
        gpu = node - cpus
        values = {"cpu_cores_count": 16 if gpu < 0 else 0, "simd_count": 0 if gpu < 0 else 304}
        values["io_links_count"] = len(links[node])
        if gpu >= 0:
            values |= {"gfx_target_version": gfx, "hive_id": 987654321 if xgmi else 0, "domain": 0}
            values["location_id"] = locations[gpu] if locations else 16 + gpu << 8
            values["unique_id"] = 1000 + (cards[gpu] if cards else gpu)
        files[f"nodes/{node}/properties"] = _text(values)
        files[f"nodes/{node}/name"] = "aqua\n" if gpu >= 0 else "\n"
        for folder, ways in (("io_links", links[node]), ("p2p_links", detours[node])):
            files |= {f"nodes/{node}/{folder}/{i}/properties": way for i, way in enumerate(ways)}
    return files


def joined(files: Mapping[str, str]) -> str:
    """The files as one text."""
    return "".join(f"### {PREFIX}{name}\n{text}" for name, text in files.items())


def written(files: Mapping[str, str], root: Path) -> Path:
    """The files in a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def mesh(count: int, weight: int = 15, least: int = 64000, most: int = 64000) -> dict[tuple[int, int], Any]:
    """xGMI between all pairs."""
    return {(a, b): (weight, least, most) for a in range(count) for b in range(a + 1, count)}


def mi300x_8() -> dict[str, str]:
    """Eight cards, each joined to each by one link, on two sockets."""
    return kfd([0] * 4 + [1] * 4, mesh(8), cpus=2)


def mi210_4() -> dict[str, str]:
    """Four cards under a bridge, one link a pair."""
    return kfd([0] * 4, mesh(4, 15, 50000, 50000), gfx=90010, pcie=32000)


def mi250x_4() -> dict[str, str]:
    """Two packages of two dies: four links within a package, one between neighbours, else a detour."""
    within = (15, 50000, 200000)
    ways = {(0, 1): within, (2, 3): within, (0, 2): (15, 50000, 50000), (1, 3): (15, 50000, 100000)}
    ways |= {(0, 3): (30, 0, 0), (1, 2): (30, 0, 0)}
    return kfd([0, 0, 1, 1], ways, cpus=2, gfx=90010)


def partitioned(cards: int = 2, parts: int = 4, missing: int = 0) -> dict[str, str]:
    """Cards split in several devices each, the last without its last parts."""
    devices = [(card, part) for card in range(cards) for part in range(parts)][: cards * parts - missing]
    ways = {}
    for a, (card, _) in enumerate(devices):
        for b in range(a + 1, len(devices)):
            ways[a, b] = (13, 819200, 819200) if devices[b][0] == card else (41, 0, 0)
    return kfd(
        [0] * len(devices),
        ways,
        locations=[(5 + card << 8) + part for card, part in devices],
        cards=[card for card, _ in devices],
    )


def pcie_4() -> dict[str, str]:
    """Four cards on two sockets without xGMI."""
    p2p = {(0, 1): 40, (2, 3): 40} | {(a, b): 72 for a in (0, 1) for b in (2, 3)}
    return kfd([0, 0, 1, 1], {}, cpus=2, gfx=90006, pcie=16000, p2p=p2p)
