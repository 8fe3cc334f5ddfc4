"""What a process group costs: memory, descriptors, threads and time, of the first and of each further one.

``mpirun -n 4 python -m collectives.bench groups``. A group counts from the call that makes it to the end of
its first all_reduce of 8 bytes, because some backends connect only then. What PyTorch itself needs for a
group shows in the row of its no-op backend.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from collectives.bench import arguments, compare, report
from collectives.bench.process_groups import NOOP, ProcessGroups, check_backend
from collectives.bench.run import Run
from collectives.bench.start import check_package, communicator_source, let_mpi_yield, on_ranks
from collectives.communicator import Communicator
from collectives.environment import Launch

COMMUNICATOR = "communicator"


def main(argv: Sequence[str], launch: Launch) -> int:
    """Run ``bench groups``; the exit status."""
    p = arguments.parser(
        launch.rank, "groups", "What a process group costs: the first one of all ranks, and each further one."
    )
    arguments.add_world(p)
    arguments.add_backend(p)
    p.add_argument("--groups", type=arguments.at_least(1), default=64, metavar="N", help="further ones (64)")
    arguments.add_json(p)
    args = p.parse_args(argv[1:])
    world_size = arguments.check_world(p, args, launch)
    arguments.check_files(p, args, ["json"])
    check_package("bench groups", "torch", "torch")
    before = None
    if launch.launcher != "none":
        # What the first communicator brings should not count what is imported with it.
        import torch.distributed  # noqa: F401

        let_mpi_yield(launch.world_size)
        communicator_source(launch, wants_mpi=False)
        before = Usage.now()
    run = functools.partial(_run, args=args, argv=argv, launch=launch, before=before)
    return on_ranks(argv, world_size, launch, run)


@dataclass(frozen=True)
class Usage:
    """What a process holds, or a difference or mean of that; memory in KiB.

    Attributes:
        rss: resident memory.
        pss: the same, where pages that several processes map are shared out among them.
        memfd: the part of `pss` that is shared through a memfd.
        descriptors, threads: how many.
    """

    rss: float
    pss: float
    memfd: float
    descriptors: float
    threads: float

    @staticmethod
    def now() -> Usage:
        """That of this process."""
        gc.collect()
        rss = pss = memfd = 0
        shared = False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            name, _, value = line.partition(":")
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                shared = "/memfd:" in line
            elif name == "Rss":
                rss += int(value.split()[0])
            elif name == "Pss":
                pss += int(value.split()[0])
                memfd += int(value.split()[0]) if shared else 0
        return Usage(rss, pss, memfd, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))

    def since(self, before: Usage, parts: int, comm: Communicator) -> Usage:
        """One of equal parts of what has come to it since `before`, the mean over ranks."""
        return Usage(
            *(
                statistics.fmean(compare.gathered(comm, (now - then) / parts))
                for then, now in zip(astuple(before), astuple(self), strict=True)
            )
        )


@dataclass(frozen=True)
class Cost:
    """Of one group on one rank; `microseconds` is None where it was not measured."""

    usage: Usage
    microseconds: float | None


def _cost(comm: Communicator, make: Callable[[], None], count: int) -> Cost:
    """Of each of `count` groups that `make` makes and keeps."""
    comm.barrier()
    before, start = Usage.now(), perf_counter()
    for _ in range(count):
        make()
    seconds = (perf_counter() - start) / count
    usage = Usage.now()
    comm.barrier()
    return Cost(usage.since(before, count, comm), statistics.fmean(compare.gathered(comm, seconds)) * 1e6)


@contextmanager
def _communicators(comm: Communicator, groups: ProcessGroups) -> Iterator[Callable[[], None]]:
    """Makes communicators, and closes them in the end."""
    import torch.distributed as dist

    made: list[Communicator] = []

    def make() -> None:
        store = dist.PrefixStore(f"communicator {len(made)}", groups.store)
        made.append(Communicator((store, comm.rank, comm.world_size)))
        made[-1].all_reduce(np.zeros(2, np.float32))

    yield make
    comm.barrier()
    for one in made:
        one.close()


@contextmanager
def _groups(comm: Communicator, groups: ProcessGroups, backend: str) -> Iterator[Callable[[], None]]:
    """Makes process groups of `backend`, and destroys them in the end."""
    import torch
    import torch.distributed as dist

    made: list[Any] = []

    def make() -> None:
        made.append(groups.new(backend))
        dist.all_reduce(torch.zeros(2), group=made[-1])

    yield make
    comm.barrier()
    for one in made:
        dist.destroy_process_group(one)


def _table(results: dict[tuple[str, str], Cost]) -> list[str]:
    """Markdown, for the documentation."""
    lines = [
        "| what | | RSS, KiB | PSS, KiB | of it memfd | descriptors | threads | us |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (name, which), cost in results.items():
        time = report.NOT_MEASURED if cost.microseconds is None else f"{cost.microseconds:.0f}"
        numbers = " | ".join(f"{number:.1f}" for number in astuple(cost.usage))
        lines.append(f"| {name} | {which} | {numbers} | {time} |")
    return lines


def _run(
    comm: Communicator,
    yields: bool,
    args: argparse.Namespace,
    argv: Sequence[str],
    launch: Launch,
    before: Usage | None,
) -> int:
    assert before is not None
    comm.all_reduce(np.zeros(2, np.float32))
    # No time: the ranks were not there at the same moment.
    results = {(COMMUNICATOR, "first"): Cost(Usage.now().since(before, 1, comm), None)}
    about = [
        f"work: a group of all {comm.world_size} ranks with its first all_reduce of 8 bytes, then "
        f"{args.groups} more groups of the same ranks",
        "method: what a rank holds after less what it held before, the mean over ranks; kind after kind, in "
        "processes that have imported torch",
        f"{COMMUNICATOR}: ours without torch.distributed; the first connects the processes, also for all "
        "later groups of ours",
        f"{NOOP}: PyTorch's no-op backend: what PyTorch itself takes for a group",
    ]
    run = Run(comm, launch, yields, args, argv, about, {"groups": args.groups})
    check_backend(args.backend)
    # The default group is one that holds nothing, so that the first of each kind is the first.
    with ProcessGroups(comm, NOOP) as groups:
        names = dict.fromkeys((args.backend, "gloo", NOOP))
        kinds = {COMMUNICATOR: _communicators(comm, groups)}
        kinds |= {name: _groups(comm, groups, name) for name in names}
        for name, kind in kinds.items():
            with kind as make:
                if name != COMMUNICATOR:
                    results[name, "first"] = _cost(comm, make, 1)
                results[name, f"each of {args.groups} more"] = _cost(comm, make, args.groups)
        rows = [
            {"name": name, "which": which, **vars(cost.usage), "microseconds": cost.microseconds}
            for (name, which), cost in results.items()
        ]
        return run.finish(_table(results), rows)
