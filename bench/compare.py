"""One piece of work with several backends beside the same work without communication.

The variants take turns in every round, so that a drift of the machine meets them alike. A variant's time in
a round is the mean over ranks; what is reported is the median over rounds. Communication is the time beyond
that of the variant without it in the same round: waiting for a rank that is late counts.
"""

from __future__ import annotations

import gc
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from collectives.bench import report
from collectives.bench.arguments import OWN_BACKEND
from collectives.bench.process_groups import NOOP, ProcessGroups
from collectives.bench.progress import Progress
from collectives.bench.sweep import timed
from collectives.communicator import Communicator

OURS, GLOO, NONE = "ours", "gloo", "none"
VARIANTS = (OURS, GLOO, NONE)


def groups_of(groups: ProcessGroups) -> dict[str, Any]:
    """The process group of each variant; that of `NONE` does nothing."""
    return {OURS: groups.default, GLOO: groups.new("gloo"), NONE: groups.new(NOOP)}


def gathered(comm: Communicator, value: float) -> list[float]:
    """The value of every rank."""
    everyone = np.empty(comm.world_size)
    comm.all_gather(np.array([value]), everyone)
    return [float(one) for one in everyone]


class Step(Protocol):
    """What one variant does in a round."""

    def prepare(self) -> None:
        """What is not timed."""

    def work(self) -> None:
        """What is."""


def measure(comm: Communicator, steps: Mapping[str, Step], rounds: int, unit: int) -> dict[str, list[float]]:
    """Seconds of each variant in each round, divided by `unit`, the mean over ranks; all ranks call it alike.

    Args:
        comm: carries the barriers between variants and the mean.
        steps: the work of one round.
        rounds: how many.
        unit: how many units of what is reported a round is.
    """
    progress = Progress(comm.rank == 0 and sys.stderr.isatty())
    times: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    gc.collect()
    gc.disable()  # a collection in one variant's round would be charged to it
    try:
        for number in range(rounds):
            for name in order:
                progress(f"round {number + 1}/{rounds} {name}")
                steps[name].prepare()
                comm.barrier()
                seconds = timed(steps[name].work, 1)
                times[name].append(statistics.fmean(gathered(comm, seconds)) / unit)
            order = order[1:] + order[:1]  # nobody always follows the same one
            gc.collect()
    finally:
        gc.enable()
        progress.clear()
    return times


@dataclass(frozen=True)
class Outcome:
    """What is reported of one variant; times in milliseconds.

    Attributes:
        name: one of VARIANTS.
        time: of the unit of work.
        communication: the part of `time` that the variant without communication does not take.
        speed: that variant's time over this one's: 1 if communication cost nothing.
        to_gloo: this variant's communication over Gloo's; None where that is nothing.
        rounds: the single times.
    """

    name: str
    time: float
    communication: float
    speed: float
    to_gloo: float | None
    rounds: list[float]


def outcomes(times: Mapping[str, Sequence[float]]) -> list[Outcome]:
    """What is reported, from the seconds of each of VARIANTS in each round."""
    nothing = times[NONE]
    communication = {
        name: statistics.median(mine - none for mine, none in zip(series, nothing, strict=True))
        for name, series in times.items()
    }
    return [
        Outcome(
            name,
            statistics.median(series) * 1e3,
            communication[name] * 1e3,
            statistics.median(none / mine for mine, none in zip(series, nothing, strict=True)),
            communication[name] / communication[GLOO] if communication[GLOO] > 0 else None,
            [seconds * 1e3 for seconds in series],
        )
        for name, series in times.items()
    ]


def method(rounds: int) -> str:
    """How it is measured, for the header."""
    return f"method: {rounds} rounds, each of all variants in turn; median over rounds of the mean over ranks"


def table(results: Sequence[Outcome], backend: str, unit: str) -> list[str]:
    """The lines of the table; `unit` is what a time is of."""
    time = f"(ms/{unit})"
    lines = [
        f"# {'backend':>16}  {'time':>10}  {'communication':>13}  {'speed':>8}  {'communication':>13}",
        f"# {'':>16}  {time:>10}  {time:>13}  {'(x none)':>8}  {'(x Gloo)':>13}",
    ]
    for one in results:
        name = one.name if one.name != OURS else f"{backend} (ours)" if backend == OWN_BACKEND else backend
        ratio = report.NOT_MEASURED if one.to_gloo is None else f"{one.to_gloo:.3f}"
        lines.append(
            f"  {name:>16}  {one.time:>10.3f}  {one.communication:>13.3f}  {one.speed:>8.3f}  {ratio:>13}"
        )
    return lines
