"""What a file says of a machine: matrix, islands, rings and what looks broken.

The same printer serves the command without arguments, of this machine.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import Any

from collectives.topology.commands import screen
from collectives.topology.commands.arguments import add_file, add_json, read_file
from collectives.topology.commands.description import describe

_WORDS = {
    "NV": "NV#: NVLink, that many links",
    "XG": "XG#: xGMI, that many links",
    "PIX": "PIX: at most one PCIe bridge",
    "PXB": "PXB: several PCIe bridges",
    "PHB": "PHB: a PCIe host bridge",
    "NODE": "NODE: between host bridges of one NUMA node",
    "SYS": "SYS: between NUMA nodes",
    "?": "?: unknown",
}
_MOST_ORDERS = 16


def add(command: argparse.ArgumentParser) -> None:
    """The options."""
    add_file(command)
    add_json(command)


def run(options: argparse.Namespace) -> None:
    """Prints it. TopologyError: the file cannot be used."""
    data = describe(read_file(options.file))
    if options.json:
        screen.as_json(data)
    else:
        screen.facts([("source", data["source"]), ("fingerprint", data["fingerprint"])])
        print_machine(data)


def print_machine(data: dict[str, Any]) -> None:
    """Prints what :func:`description.describe` found."""
    if data["host"]:
        _print_host(data["host"])
    _print_devices(data["devices"])
    _print_nics(data["nics"])
    _print_matrix(data)
    if data["devices"]:
        _print_shape(data)
    if data["findings"]:
        screen.heading("Findings")
        for found in data["findings"]:
            screen.line(f"{found['severity']}: {found['words']}", screen.STYLES.get(found["severity"], ""))
    elif data["devices"]:
        screen.heading("Findings")
        screen.line("none: nothing looks broken")


def _or(value: object, text: str = "?") -> str:
    return text if value is None else str(value)


def _megabytes(nbytes: int | None) -> str:
    if nbytes is None:
        return "of unknown size"
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _print_host(host: dict[str, Any]) -> None:
    screen.heading("Host")
    cores = host["cores"]
    usable = f"{len(cores)} usable ({screen.numbers(cores)})" if cores else "not told"
    facts = [("model", _or(host["model"], "unknown")), ("cores", usable)]
    if host["quota"] is not None:
        facts.append(("time quota", f"{host['quota']:g} cores' worth, by control groups"))
    caches = Counter((len(group["cores"]), group["bytes"]) for group in host["last_level_caches"])
    if caches:
        words = [
            f"{times} of {_megabytes(nbytes)}, shared by {_plural(cores_of, 'usable core')}"
            for (cores_of, nbytes), times in caches.items()
        ]
        facts.append(("last-level caches", "; ".join(words)))
    screen.facts(facts)
    numa = host["numa"]
    far = [node["number"] for node in numa if len(numa) > 1 and node["distances"]]
    rows = [
        [
            str(node["number"]),
            _or(node["package"]),
            screen.numbers(node["cores"]),
            *(str(node["distances"].get(str(other), "?")) for other in far),
        ]
        for node in numa
    ]
    if rows:
        screen.line("")
        screen.table(
            ["NUMA node", "package", "usable cores", *(f"to {other}" for other in far)], rows, left=(2,)
        )


def _print_devices(devices: Sequence[dict[str, Any]]) -> None:
    screen.heading("Devices")
    if not devices:
        screen.line("no GPU")
        return
    fields = [
        (name, key)
        for name, key in (
            ("model", "model"),
            ("arch", "arch"),
            ("PCI address", "bus"),
            ("NUMA", "numa"),
            ("group", "group"),
            ("card", "card"),
        )
        if any(device[key] is not None for device in devices)
    ]
    names = ["device", *(name for name, _ in fields)]
    rows = [[device["name"], *(_or(device[key]) for _, key in fields)] for device in devices]
    if any(device["nearest_nics"] for device in devices):
        names.append("nearest NICs")
        for row, device in zip(rows, devices, strict=True):
            row.append(f"{' '.join(device['nearest_nics'])} ({device['nearest_class']})")
    screen.table(names, rows, left=range(len(names)))


def _print_nics(nics: Sequence[dict[str, Any]]) -> None:
    if not nics:
        return
    screen.heading("Network cards")
    rows = [
        [
            nic["name"],
            _or(nic["label"]),
            _or(nic["bus"]),
            _or(nic["numa"]),
            "?" if nic["gbps"] is None else f"{nic['gbps'] * 8:g} Gbit/s",
        ]
        for nic in nics
    ]
    screen.table(["card", "name", "PCI address", "NUMA", "port"], rows, left=range(5))


def _print_matrix(data: dict[str, Any]) -> None:
    names, cells = data["matrix"]["names"], data["matrix"]["cells"]
    if len(names) < 2:
        return
    screen.heading("Matrix")
    numa = {node["name"]: _or(node["numa"]) for node in (*data["devices"], *data["nics"])}
    rows = [[name, *row, numa[name]] for name, row in zip(names, cells, strict=True)]
    screen.table(["", *names, "NUMA"], rows)
    seen = {word[:2] if word[:2] in ("NV", "XG") else word for row in cells for word in row}
    screen.line("X: itself; " + "; ".join(text for word, text in _WORDS.items() if word in seen))


def _order(order: Sequence[int]) -> str:
    return " ".join(map(str, order))


def _gbps(value: float | None) -> str:
    return "an unknown speed" if value is None else f"{value:g} GB/s"


def _print_shape(data: dict[str, Any]) -> None:
    islands, rings = data["islands"], data["rings"]
    if len(data["devices"]) == 1:
        return
    screen.heading("Islands and rings")
    if data["fully_connected"]:
        shape = "one, fully connected by links of its own"
    elif len(islands) == 1:
        shape = "one, not every pair has a link"
    elif all(len(island) == 1 for island in islands):
        unknown = any("?" in row for row in data["matrix"]["cells"])
        shape = "none known" if unknown else "none: no device has NVLink or xGMI to another"
    else:
        shape = f"{len(islands)}: " + " | ".join(screen.numbers(island) for island in islands)
    best = rings["best"]
    how = best["class"]
    if how == "LINK":
        how = "fast links" if best["links"] is None else _plural(best["links"], "fast link")
    facts = [
        ("islands", shape),
        ("best ring", _order(best["order"])),
        ("its narrowest hop", f"{how}, {_gbps(best['gbps'])}"),
        ("ring set", f"{_plural(rings['count'], 'ring')} side by side, {_gbps(rings['gbps'])} in all"),
        ("search", "complete: none is better" if rings["exact"] else "bounded: better ones may exist"),
    ]
    screen.facts(facts)
    orders = Counter(map(tuple, rings["orders"] or ()))
    if len(orders) > 1:
        for order, times in list(orders.items())[:_MOST_ORDERS]:
            screen.line(f"  {_order(order)}" + (f"  ({times} times)" if times > 1 else ""))
        if len(orders) > _MOST_ORDERS:
            screen.line(f"  and {len(orders) - _MOST_ORDERS} more")
