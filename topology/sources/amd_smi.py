"""AMD SMI: ``amd-smi topology`` as text and in both shapes of ``--json``, and AMD's library."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from collectives.topology.graph import Node, NodeKind, Topology, TopologyError
from collectives.topology.sources.amd_pairs import Pair, matrix, number, topology
from collectives.topology.text_lines import clean

_TITLE = re.compile(r"^([A-Z][A-Z -]*) TABLE:$")
_TABLES = {
    "ACCESS": "enabled",
    "WEIGHT": "weight",
    "HOPS": "hops",
    "LINK TYPE": "kind",
    "NUMA BW": "bandwidth",
}
_BUS = re.compile(r"^[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$")
_RANGE = re.compile(r"^([0-9]{1,9})-([0-9]{1,9})$")
_ENABLED = {"ENABLED": True, "DISABLED": False}

# The fields of a pair by their names in JSON: in the shape of ROCm 6.2 and later, and in the one before.
_NEW = {
    "weight": "weight",
    "link_status": "enabled",
    "link_type": "kind",
    "num_hops": "hops",
    "bandwidth": "bandwidth",
}
_OLD = {
    "weight": "weight",
    "link_accessibility": "enabled",
    "link_type": "kind",
    "hops": "hops",
    "numa_bandwidth": "bandwidth",
}


def _with(pair: Pair, field: str, text: str, source: str, line: int | None) -> Pair:
    """The pair with one more field."""
    if field == "kind":
        return replace(pair, kind=text)
    if field == "enabled":
        if text.upper() not in (*_ENABLED, "N/A"):
            raise TopologyError(f"{text!r}: expected ENABLED or DISABLED", source, line)
        return replace(pair, enabled=_ENABLED.get(text.upper()))
    if field == "bandwidth":
        match = _RANGE.match(text)
        if match:
            return replace(pair, least=int(match[1]), most=int(match[2]))
        if text.upper() != "N/A":
            raise TopologyError(
                f"{text!r}: expected the least and the greatest MB/s, as 50000-100000", source, line
            )
        return pair
    value = number(text, source, line)
    return replace(pair, weight=value) if field == "weight" else replace(pair, hops=value)


def read_text(text: str | bytes, source: str = "") -> Topology:
    """The topology that the text shows.

    Raises:
        TopologyError: no table of link types, tables that are cut or do not fit each other, or unknown words.
    """
    lines = clean(text, source)
    pairs: dict[tuple[int, int], Pair] = {}
    buses: list[str] = []
    seen: set[str] = set()
    for at, line in enumerate(lines):
        title = _TITLE.match(line.strip())
        if not title:
            continue
        names, rows, _ = matrix(lines, at + 1, source)
        if not all(_BUS.match(name) for name in names):
            raise TopologyError("expected PCI addresses over the table, as 0000:0c:00.0", source, at + 2)
        if buses and names != buses:
            raise TopologyError("the tables are not of the same devices", source, at + 2)
        if title[1] in seen:
            raise TopologyError(f"a second table {title[1]}", source, at + 1)
        seen.add(title[1])
        buses = names
        field = _TABLES.get(title[1])
        if field is None:  # coherence, atomics, DMA: nothing that the graph holds
            continue
        for i, row in enumerate(rows):
            for j, cell in enumerate(row):
                pairs[i, j] = _with(pairs.get((i, j), Pair()), field, cell, source, at + 3 + i)
    if "LINK TYPE" not in seen:
        raise TopologyError("no 'LINK TYPE TABLE:': expected amd-smi topology", source)
    return topology(_gpus(buses), _apart(pairs), source)


def _gpus(buses: Sequence[str | None]) -> list[Node]:
    return [Node(f"gpu{i}", NodeKind.GPU, bus=bus.lower() if bus else None) for i, bus in enumerate(buses)]


def _apart(pairs: Mapping[tuple[int, int], Pair]) -> dict[tuple[int, int], Pair]:
    """Without what a device is told to be to itself, unless that is a link."""
    return {(i, j): pair for (i, j), pair in pairs.items() if i != j or (pair.kind or "").upper() == "XGMI"}


def read_json(data: object, source: str = "") -> Topology:
    """The topology of parsed ``amd-smi topology --json``.

    Raises:
        TopologyError: not of that shape, or pairs are missing.
    """
    if not isinstance(data, Sequence) or isinstance(data, str) or not data:
        raise TopologyError("expected a list of GPUs", source)
    numbers: list[int] = []
    buses: list[str | None] = []
    for entry in data:
        if not isinstance(entry, Mapping) or not _is_number(entry.get("gpu")):
            raise TopologyError("expected an object with 'gpu', a number, for each GPU", source)
        numbers.append(entry["gpu"])
        bus = entry.get("bdf")
        if bus is not None and not (isinstance(bus, str) and _BUS.match(bus)):
            raise TopologyError(f"GPU {entry['gpu']}: {bus!r} is no PCI address", source)
        buses.append(bus)
    if len(set(numbers)) != len(numbers):
        raise TopologyError("two GPUs of one number", source)
    place = {n: i for i, n in enumerate(numbers)}
    pairs: dict[tuple[int, int], Pair] = {}
    for i, entry in enumerate(data):
        found = _new_shape(entry, source) if "links" in entry else _old_shape(entry, source)
        if sorted(found) != sorted(numbers):
            raise TopologyError(
                f"GPU {numbers[i]} tells of its links to GPUs {sorted(found)}, expected {sorted(numbers)}",
                source,
            )
        pairs.update({(i, place[n]): pair for n, pair in found.items()})
    return topology(_gpus(buses), _apart(pairs), source)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 16


def _new_shape(entry: Mapping[str, Any], source: str) -> dict[int, Pair]:
    """``"links": [{"gpu": 1, "weight": 15, ...}, ...]``."""
    if not isinstance(entry["links"], Sequence) or isinstance(entry["links"], str):
        raise TopologyError(f"GPU {entry['gpu']}: 'links' is no list", source)
    found: dict[int, Pair] = {}
    for link in entry["links"]:
        if not isinstance(link, Mapping) or not _is_number(link.get("gpu")):
            raise TopologyError(f"GPU {entry['gpu']}: expected a link with 'gpu', a number", source)
        if "link_type" not in link:
            raise TopologyError(f"GPU {entry['gpu']}: a link without 'link_type'", source)
        if link["gpu"] in found:
            raise TopologyError(f"GPU {entry['gpu']}: two links to GPU {link['gpu']}", source)
        pair = Pair()
        for key, field in _NEW.items():
            if key in link:
                pair = _with(pair, field, str(link[key]), source, None)
        found[link["gpu"]] = pair
    return found


def _old_shape(entry: Mapping[str, Any], source: str) -> dict[int, Pair]:
    """``"weight": {"gpu_0": 0, "gpu_1": 15}`` and so on."""
    if "link_type" not in entry:
        raise TopologyError(f"GPU {entry['gpu']}: neither 'links' nor 'link_type'", source)
    found: dict[int, Pair] = {}
    for key, field in _OLD.items():
        cells = entry.get(key, {})
        if not isinstance(cells, Mapping):
            raise TopologyError(f"GPU {entry['gpu']}: {key!r} is no object", source)
        for name, value in cells.items():
            match = re.fullmatch(r"gpu_([0-9]{1,5})", str(name))
            if not match:
                raise TopologyError(
                    f"GPU {entry['gpu']}: {name!r} in {key!r}, expected gpu_0 and so on", source
                )
            peer = int(match[1])
            found[peer] = _with(found.get(peer, Pair()), field, str(value), source, None)
    return found


def read(module: Any = None) -> Topology:
    """The topology of this machine by AMD's library.

    Args:
        module: ``amdsmi``, or what behaves like it; None imports it.

    Raises:
        TopologyError: the library is not there, does not start, or knows no GPU.
    """
    source = "AMD SMI"
    if module is None:
        try:
            module = importlib.import_module("amdsmi")
        except Exception as error:  # it loads a library, which fails in its own ways
            raise TopologyError(f"the module amdsmi cannot be used: {error}", source) from error
    fault = getattr(module, "AmdSmiException", Exception)
    try:
        module.amdsmi_init()
    except fault as error:
        raise TopologyError(f"it does not start: {error}", source) from error
    try:
        handles = list(module.amdsmi_get_processor_handles())
        if not handles:
            raise TopologyError("it knows no GPU", source)

        def ask(call: str, *handles: object) -> Any:
            """What a function answers; None if this version has none or does not know."""
            function: Callable[..., Any] | None = getattr(module, call, None)
            try:
                return None if function is None else function(*handles)
            except fault:
                return None

        return _live(handles, ask, source)
    except fault as error:
        raise TopologyError(f"it does not tell the GPUs: {error}", source) from error
    finally:
        try:
            module.amdsmi_shut_down()
        except fault:
            pass  # nothing of it is used any more


def _live(handles: Sequence[object], ask: Callable[..., Any], source: str) -> Topology:
    gpus = []
    hives: dict[object, str] = {}
    for index, handle in enumerate(handles):
        about = ask("amdsmi_get_gpu_asic_info", handle) or {}
        bus = ask("amdsmi_get_gpu_device_bdf", handle)
        numa = ask("amdsmi_topo_get_numa_node_number", handle)
        hive = (ask("amdsmi_get_xgmi_info", handle) or {}).get("xgmi_hive_id")
        gpus.append(
            Node(
                f"gpu{index}",
                NodeKind.GPU,
                bus=bus.lower() if isinstance(bus, str) and _BUS.match(bus) else None,
                numa=numa if _is_number(numa) else None,
                model=_word(about.get("market_name")),
                arch=_arch(about.get("target_graphics_version")),
                group=hives.setdefault(hive, f"hive{len(hives)}") if hive and _is_id(hive) else None,
            )
        )
    kinds = {0: "INTERNAL", 1: "PCIE", 2: "XGMI"}
    pairs = {}
    for i, a in enumerate(handles):
        for j, b in enumerate(handles):
            if i == j:
                continue
            told = ask("amdsmi_topo_get_link_type", a, b) or {}
            bandwidth = ask("amdsmi_get_minmax_bandwidth_between_processors", a, b) or {}
            weight, enabled = ask("amdsmi_topo_get_link_weight", a, b), ask("amdsmi_is_P2P_accessible", a, b)
            pairs[i, j] = Pair(
                kinds.get(int(told["type"])) if _is_id(told.get("type")) else None,
                weight if _is_id(weight) else None,
                told.get("hops") if _is_id(told.get("hops")) else None,
                bandwidth.get("min_bandwidth") if _is_id(bandwidth.get("min_bandwidth")) else None,
                bandwidth.get("max_bandwidth") if _is_id(bandwidth.get("max_bandwidth")) else None,
                enabled if isinstance(enabled, bool) else None,
            )
    numbers = sorted({gpu.numa for gpu in gpus if gpu.numa is not None})
    return topology(
        _partitions(gpus), pairs, source, [Node(f"numa{n}", NodeKind.NUMA, numa=n) for n in numbers]
    )


def _partitions(gpus: Sequence[Node]) -> list[Node]:
    """The devices, with the card of those that share a PCI slot: the functions of a slot are its parts."""
    slots = [gpu.bus.rpartition(".")[0] if gpu.bus else None for gpu in gpus]
    return [
        replace(gpu, parent=f"{slot}.0") if slot and slots.count(slot) > 1 else gpu
        for gpu, slot in zip(gpus, slots, strict=True)
    ]


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and value.strip() and value.upper() != "N/A" else None


def _arch(value: object) -> str | None:
    return value if isinstance(value, str) and re.fullmatch(r"gfx[0-9a-f]{3,4}", value) else None
