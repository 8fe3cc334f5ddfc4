"""How good the choice of algorithm is: the automatic one beside each forced one, size by size.

``mpirun -n 2 python -m collectives.bench choice all_reduce -e 64M``. All take turns in every round, so what
the choice costs against the best is a ratio of the same run.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collectives.bench import arguments, report
from collectives.bench.cases import COLLECTIVES, sweep_sizes
from collectives.bench.peers import Ours
from collectives.bench.run import Run
from collectives.bench.start import communicator_source, on_ranks
from collectives.bench.sweep import Options, Row, Sweep
from collectives.communicator import Communicator
from collectives.environment import Launch

WORTH = 1.10
"""A choice that takes up to this many times the best algorithm's time is a good one."""


class Forced(Ours):
    """This library with one algorithm."""

    def __init__(self, comm: Communicator, algorithm: str) -> None:
        super().__init__(comm, algorithm)
        self.name = algorithm


@dataclass(frozen=True)
class Choice:
    """One size: seconds of the automatic call and of each algorithm (None: it does not serve the call).

    `loss` is the automatic call's time over the best algorithm's, the median over rounds.
    """

    collective: str
    size: int
    algorithm: str | None
    form: str
    time: float
    forced: dict[str, float | None]
    best: str
    loss: float

    @classmethod
    def of(cls, row: Row, form: str) -> Choice | None:
        """From a row of a sweep; None where the form was not measured."""
        measured = getattr(row, form)
        if measured is None or measured.time is None:
            return None
        ratios = {name: peer.ratio for name, peer in measured.peers.items() if peer.ratio is not None}
        best = min(ratios, key=lambda name: ratios[name])
        forced = {name: peer.time for name, peer in measured.peers.items()}
        return cls(
            row.collective, row.size, measured.algorithm, form, measured.time, forced, best, 1 / ratios[best]
        )


def main(argv: Sequence[str], launch: Launch) -> int:
    """Run ``bench choice``; the exit status is 1 where a result was wrong."""
    p = arguments.parser(launch.rank, "choice", "The automatic choice beside every forced algorithm.")
    known = [name for name, facts in COLLECTIVES.items() if len(facts.algorithms) > 1]
    p.add_argument("collective", nargs="+", choices=known, metavar="COLLECTIVE", help=", ".join(known))
    arguments.add_world(p)
    size = arguments.size_in_bytes
    p.add_argument("-b", "--minbytes", type=size, default=8, metavar="SIZE", help="smallest size (8)")
    p.add_argument("-e", "--maxbytes", type=size, default=64 << 20, metavar="SIZE", help="largest (64M)")
    p.add_argument("-f", "--stepfactor", type=arguments.at_least(2), default=2, metavar="N", help="(2)")
    p.add_argument("--rounds", type=arguments.at_least(1), default=7, metavar="N", help="timed rounds (7)")
    arguments.add_json(p)
    args = p.parse_args(argv[1:])
    world_size = arguments.check_world(p, args, launch)
    arguments.check_files(p, args, ["json"])
    if launch.launcher != "none":
        communicator_source(launch, wants_mpi=False)
    return on_ranks(argv, world_size, launch, functools.partial(_run, args=args, argv=argv, launch=launch))


def _run(comm: Communicator, yields: bool, args: Any, argv: Sequence[str], launch: Launch) -> int:
    args.backend = None  # nothing of this goes through torch
    about = [f"each algorithm in turn: {args.rounds} rounds, medians; float32, sum"]
    run = Run(comm, launch, yields, args, argv, about, {"rounds": args.rounds})
    found, wrong = [], 0
    for collective in args.collective:
        peers = [Forced(comm, name) for name in COLLECTIVES[collective].algorithms]
        sweep = Sweep(comm, Ours(comm), peers, Options(rounds=args.rounds), args.maxbytes)
        for size in sweep_sizes(args.minbytes, args.maxbytes, args.stepfactor):
            row = sweep.row(collective, size, "float32", "sum", 0)
            for form in ("out_of_place", "in_place"):
                choice = Choice.of(row, form)
                if choice is not None:
                    found.append(choice)
                    wrong += getattr(row, form).nwrong or 0
    check = {
        "okay": wrong == 0,
        "wrong": wrong,
        "good": sum(one.loss <= WORTH for one in found),
        "of": len(found),
    }
    return run.finish(table(found), [vars(one) for one in found], check)


def table(found: Sequence[Choice]) -> list[str]:
    """One line a size and form: the choice, every algorithm's time, what the choice loses."""
    names = list(dict.fromkeys(name for one in found for name in one.forced))
    heads = "".join(f"  {name:>9}" for name in names)
    lines = [
        f"# {'collective':>14}  {'size':>10}  {'form':>12}  {'chosen':>9}"
        f"  {'time':>9}{heads}  {'best':>9}  {'loss':>5}",
        f"# {'':>14}  {'(B)':>10}  {'':>12}  {'':>9}  {'(us)':>9}{'       (us)' * len(names)}"
        f"  {'':>9}  {'(x)':>5}",
    ]
    for one in found:
        times = [one.forced.get(name) for name in names]
        cells = "".join(f"  {report.NOT_MEASURED if t is None else f'{t * 1e6:.2f}':>9}" for t in times)
        lines.append(
            f"  {one.collective:>14}  {one.size:>10}  {one.form:>12}  {one.algorithm or '':>9}"
            f"  {one.time * 1e6:>9.2f}{cells}  {one.best:>9}  {one.loss:>5.2f}"
        )
    good = sum(one.loss <= WORTH for one in found)
    worst = max(found, key=lambda one: one.loss)
    lines.append(
        f"# {'within 10 %':<20} : {good} of {len(found)} choices; the worst takes {worst.loss:.2f} x the best"
    )
    return lines
