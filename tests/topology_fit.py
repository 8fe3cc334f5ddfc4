"""Fits those constants of the cost model that are called fitted to the published measurements not held out.

    python tests/topology_fit.py [--write | --sources]

Coordinate search in factors on the mean |log(predicted / published)|; every source counts as the square root
of its entries, so that none outvotes the rest. Prints the constants; --write puts them into constants.json.
--sources instead fits as often as there are sources, each time without one of them, and predicts that one.
"""

from __future__ import annotations

import copy
import json
import math
import re
import sys
from functools import cache
from statistics import median
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


def blind(start: Data, source: str) -> tuple[Data, list[str]]:
    """The constants without those fitted to one source alone, whose architecture is then like another; and
    those that cannot be left out, as there is nothing else to take."""
    data, bound = copy.deepcopy(start), []
    everyone = {entry["source"] for entry in published()}
    for path in fitted(start):
        if {name for name in everyone if name in at(start, path)["source"]} == {source}:
            if "like" in at(start, path[:-1]):
                del at(data, path[:-1])[path[-1]]
            else:
                bound.append(".".join(path))
    return data, bound


def without_each_source(start: Data, entries: list[Data]) -> None:
    """Prints how well each source's entries are predicted from the others' alone."""
    everything = []
    for source in dict.fromkeys(entry["source"] for entry in entries):
        data, bound = blind(start, source)
        if bound:
            print(f"{source}: the only one for {', '.join(bound)}")
            continue
        its = [entry for entry in entries if entry["source"] == source]
        done = fit(data, [entry for entry in entries if entry["source"] != source])
        errors = [abs(us / entry["us"] - 1) for entry, us in zip(its, predictions(done, its), strict=True)]
        everything += errors
        print(f"{source}: {len(its)} entries, median error {median(errors):.0%}, largest {max(errors):.0%}")
    print(f"all {len(everything)}: median error {median(everything):.0%}")


if __name__ == "__main__":
    entries = [entry for entry in published() if not entry["held_out"]]
    start = json.loads(constants.FILE.read_text(encoding="utf-8"))
    if "--sources" in sys.argv:
        without_each_source(start, published())
        sys.exit()
    done = fit(start, entries)
    for path in fitted(done):
        print(".".join(path), at(done, path)["value"])
    print(f"mean |log|: {loss(start, entries):.3f} before, {loss(done, entries):.3f} now")
    if "--write" in sys.argv:
        text = re.sub(
            r'\{\s*("value": [^\n]*)\n\s*("source": [^\n]*)\s*\}', r"{\1 \2}", json.dumps(done, indent=1)
        )
        constants.FILE.write_text(text + "\n", encoding="utf-8")
