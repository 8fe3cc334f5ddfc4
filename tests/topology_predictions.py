"""The table of predictions against published measurements in docs/topology_predictions.md.

python tests/topology_predictions.py        prints it
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from statistics import median
from typing import Any

from topology_fleet import MACHINES, published

from collectives.topology.cost import Costs

NAMES = {
    "h100": "H100, NVSwitch",
    "a100_board": "A100, 4 links a pair",
    "mi300x": "MI300X, xGMI mesh",
    "mi355x": "MI355X, xGMI mesh",
    "v100_pcie": "V100, PCIe switch",
    "gb300": "GB300, NVSwitch",
    "rtx5070ti": "RTX 5070 Ti, no P2P",
}


def predicted(entries: list[dict[str, Any]]) -> list[float]:
    """Microseconds for each entry, with the constants of the package."""
    costs: dict[tuple[str, int], Costs] = {}
    found = []
    for entry in entries:
        key = entry["machine"], entry["world"]
        costs[key] = costs.get(key) or Costs(MACHINES[key[0]](), key[1])
        us = costs[key].predict(entry["algorithm"], entry["collective"], entry["bytes"], entry["dtype"])
        assert us is not None
        found.append(us)
    return found


def errors(held_out: bool) -> list[float]:
    """|predicted / measured - 1| of the entries held out, or of the others."""
    entries = [entry for entry in published() if entry["held_out"] == held_out]
    return [abs(us / entry["us"] - 1) for entry, us in zip(entries, predicted(entries), strict=True)]


def rule(entries: list[dict[str, Any]]) -> set[str]:
    """Which entries the rule of published.json holds out, by their keys."""
    of_source = defaultdict(list)
    for entry in entries:
        of_source[entry["source"]].append(key(entry))
    chosen = [
        sorted(keys, key=lambda text: hashlib.sha256(text.encode()).hexdigest())[: math.ceil(len(keys) / 10)]
        for keys in of_source.values()
        if len(keys) > 1
    ]
    return {text for some in chosen for text in some}


def key(entry: dict[str, Any]) -> str:
    """What the rule hashes."""
    return "|".join(str(entry[name]) for name in ("source", "machine", "algorithm", "world", "bytes"))


def size(nbytes: int) -> str:
    for unit, factor in (("M", 1 << 20), ("K", 1 << 10)):
        if nbytes % factor == 0:
            return f"{nbytes // factor} {unit}"
    return f"{nbytes / 1e6:g} MB" if nbytes >= 1e6 else str(nbytes)


def rows() -> list[str]:
    """The rows of the table, those held out first."""
    entries = sorted(published(), key=lambda entry: not entry["held_out"])
    found = []
    for entry, us in zip(entries, predicted(entries), strict=True):
        found.append(
            f"| {NAMES[entry['machine']]} | {entry['world']} | {entry['algorithm']} | {size(entry['bytes'])} "
            f"| {entry['us']:g} | {us:.1f} | {100 * (us / entry['us'] - 1):+.0f} % "
            f"| {'held out' if entry['held_out'] else ''} | {entry['source']} |"
        )
    return found


if __name__ == "__main__":
    print("| machine | ranks | algorithm | bytes | measured us | predicted us | error | | source |")
    print("|---|---|---|---|---|---|---|---|---|")
    print("\n".join(rows()))
    for held_out in (True, False):
        some = errors(held_out)
        print(f"held out {held_out}: {len(some)}, median {median(some):.1%}, largest {max(some):.0%}")
