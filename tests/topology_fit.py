"""Fits those constants of the cost model that are called fitted to the published measurements not held out.

    python tests/topology_fit.py [--write]

Coordinate search in factors on the mean |log(predicted / published)|; every source counts as the square root
of its entries, so that none outvotes the rest. Prints the constants; --write puts them into constants.json.
"""

from __future__ import annotations

import copy
import json
import math
import sys
from functools import cache
from typing import Any

from topology_fleet import MACHINES, published

from collectives.topology import constants
from collectives.topology.cost import Costs

Data = dict[str, Any]


def fitted(data: Data, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where the constants stand that are called fitted."""
    found = []
    for key, value in data.items():
        if isinstance(value, dict):
            found += fitted(value, (*prefix, key))
        elif key == "source" and str(value).startswith("fitted"):
            found.append(prefix)
    return found


def at(data: Data, path: tuple[str, ...]) -> Data:
    for key in path:
        data = data[key]
    return data


@cache
def machine(name: str, world: int) -> Costs:
    """The machine with the ranks; its rings are searched for once."""
    costs = Costs(MACHINES[name](), world)
    assert costs.rings
    return costs


def predictions(data: Data, entries: list[Data]) -> list[float]:
    """Microseconds of every entry."""
    numbers = constants.parse(data, "fit")
    found = []
    for entry in entries:
        costs = machine(entry["machine"], entry["world"]).with_constants(numbers)
        us = costs.predict(entry["algorithm"], entry["collective"], entry["bytes"], entry["dtype"])
        assert us is not None
        found.append(us)
    return found


def loss(data: Data, entries: list[Data]) -> float:
    of_source: dict[str, int] = {}
    for entry in entries:
        of_source[entry["source"]] = of_source.get(entry["source"], 0) + 1
    total = weights = 0.0
    for entry, us in zip(entries, predictions(data, entries), strict=True):
        weight = of_source[entry["source"]] ** -0.5
        total += weight * abs(math.log(us / entry["us"]))
        weights += weight
    return total / weights


def fit(data: Data, entries: list[Data]) -> Data:
    data = copy.deepcopy(data)
    paths = fitted(data)
    best = loss(data, entries)
    step = 1.3
    while step > 1.01:
        improved = False
        for path in paths:
            figure = at(data, path)
            for factor in (step, 1 / step):
                old = figure["value"]
                new = old * factor
                if "efficiency" in path[-1]:
                    new = min(new, 1.0)
                figure["value"] = new
                now = loss(data, entries)
                if now < best - 1e-6:
                    best, improved = now, True
                    break
                figure["value"] = old
        if not improved:
            step = math.sqrt(step)
    for path in paths:
        figure = at(data, path)
        figure["value"] = float(f"{figure['value']:.2g}")
    return data


if __name__ == "__main__":
    entries = [entry for entry in published() if not entry["held_out"]]
    start = json.loads(constants.FILE.read_text(encoding="utf-8"))
    done = fit(start, entries)
    for path in fitted(done):
        print(".".join(path), at(done, path)["value"])
    print(f"mean |log|: {loss(start, entries):.3f} before, {loss(done, entries):.3f} now")
    if "--write" in sys.argv:
        constants.FILE.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
