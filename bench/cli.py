"""The command line of the bench: flags as users of nccl-tests know them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from collectives.bench import report
from collectives.bench.cases import (
    ALGORITHMS,
    COLLECTIVES,
    DTYPES,
    OPS,
    REDUCTIONS,
    parse_dtype,
    parse_op,
    parse_size,
    supports,
    sweep_sizes,
)
from collectives.bench.header import config, header
from collectives.bench.host import environment, gather_ranks, load_average, load_warning
from collectives.bench.peers import Contender, Gloo, Mpi, Ours
from collectives.bench.progress import Progress
from collectives.bench.start import (
    StartError,
    check_algorithm,
    check_packages,
    communicator_source,
    let_mpi_yield,
)
from collectives.bench.sweep import Options, Row, Sweep
from collectives.communicator import Communicator
from collectives.environment import Launch, launched

PEERS = ("gloo", "mpi")
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"


class _Parser(argparse.ArgumentParser):
    """Of all ranks that were given the same bad line, one complains."""

    rank = 0

    def error(self, message: str) -> NoReturn:
        if self.rank == 0:
            self.print_usage(sys.stderr)
            print(f"{self.prog}: error: {message}", file=sys.stderr)
        raise SystemExit(2)


def _list_of(parse: Any, everything: Sequence[str]) -> Any:
    def convert(text: str) -> list[str] | str:
        try:
            return "all" if text == "all" else list(dict.fromkeys(parse(part) for part in text.split(",")))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _at_least(minimum: int) -> Any:
    def convert(text: str) -> int:
        if not text.lstrip("-").isdigit() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {minimum} up")
        return int(text)

    return convert


def _root(text: str) -> int:
    return -1 if text == "all" else _at_least(-1)(text)


def _peer(text: str) -> str:
    if text not in PEERS:
        raise ValueError(f"unknown peer {text!r}; known: {', '.join(PEERS)}")
    return text


def parser(rank: int = 0) -> argparse.ArgumentParser:
    """The parser of the command line; only rank 0's prints complaints."""
    p = _Parser(
        prog="python -m collectives.bench",
        allow_abbrev=False,
        description="Sweep collectives over message sizes, beside their peers, in the manner of nccl-tests. "
        "Start it with mpirun, torchrun or srun, or give -np.",
        epilog="A picture from an earlier run: python -m collectives.bench plot results.json picture.png",
    )
    p.rank = rank
    add = p.add_argument
    add("collective", nargs="+", choices=COLLECTIVES, metavar="COLLECTIVE", help=", ".join(COLLECTIVES))
    add("-np", "--np", type=_at_least(1), metavar="N", help="start N ranks here, without a launcher")
    add("-b", "--minbytes", type=_size, default=8, metavar="SIZE", help="smallest size (8)")
    add("-e", "--maxbytes", type=_size, default=64 << 20, metavar="SIZE", help="largest size (64M)")
    add("-f", "--stepfactor", type=_at_least(2), default=2, metavar="N", help="factor between sizes (2)")
    add(
        "-i",
        "--stepbytes",
        type=_size,
        default=0,
        metavar="SIZE",
        help="fixed step between sizes, instead of -f",
    )
    add(
        "-d", "--datatype", type=_list_of(parse_dtype, DTYPES), default=["float32"], metavar="TYPE[,TYPE]|all"
    )
    add(
        "-o",
        "--op",
        type=_list_of(parse_op, OPS),
        default=["sum"],
        metavar="OP[,OP]|all",
        help=", ".join(OPS),
    )
    add("-r", "--root", type=_root, default=0, metavar="RANK|all", help="source of a broadcast (0)")
    add("-n", "--iters", type=_at_least(1), metavar="N", help="calls per round (as many as fill 5 ms)")
    add("-w", "--warmup_iters", type=_at_least(0), default=5, metavar="N", help="calls before timing (5)")
    add("--rounds", type=_at_least(1), default=7, metavar="N", help="timed rounds; the median counts (7)")
    add("-c", "--check", type=_at_least(0), default=1, metavar="0|1", help="check results (1)")
    add(
        "-a",
        "--average",
        type=int,
        choices=range(4),
        default=1,
        help="time over ranks: 0 rank 0, 1 avg, 2 min, 3 max (1)",
    )
    add("-J", "--json", metavar="FILE", help="also write JSON with nccl-tests' field names")
    add("--peers", type=_list_of(_peer, PEERS), default=[], metavar="gloo,mpi", help="measured beside ours")
    add(
        "--algorithm",
        choices=sorted({a for names in ALGORITHMS.values() for a in names}),
        help="force an algorithm",
    )
    add("--plot", metavar="FILE", help="also draw latency and bandwidth to a picture")
    return p


def _parse(argv: Sequence[str], launch: Launch) -> argparse.Namespace:
    p = parser(launch.rank)
    args = p.parse_args(argv)
    if args.np is not None and launch.launcher != "none" and args.np != launch.world_size:
        p.error(f"-np {args.np}, but {launch.launcher} has started {launch.world_size} ranks; leave -np out")
    if args.np is None and launch.launcher == "none":
        p.error(
            "one process alone measures nothing: start it with mpirun -n 2, torchrun or srun, or give -np 2"
        )
    if args.minbytes > args.maxbytes:
        p.error(f"-b {args.minbytes} is larger than -e {args.maxbytes}")
    world_size = args.np or launch.world_size
    if args.root >= world_size:
        p.error(f"-r {args.root}: the ranks are 0 .. {world_size - 1}")
    for collective in args.collective:
        if args.algorithm and args.algorithm not in ALGORITHMS[collective]:
            p.error(f"{collective} has no {args.algorithm}; it has {', '.join(ALGORITHMS[collective])}")
        if not list(combinations(collective, args, world_size)):
            p.error(f"{collective}: none of the operators {args.op} is defined on {args.datatype}")
    args.collective = list(dict.fromkeys(args.collective))
    if args.peers == "all":
        args.peers = list(PEERS)
    for name in ("json", "plot"):
        # Not after the sweep, which may have taken an hour.
        try:
            if getattr(args, name):
                Path(getattr(args, name)).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            p.error(f"--{name}: {error}")
    return args


def combinations(collective: str, args: argparse.Namespace, world_size: int) -> list[tuple[str, str, int]]:
    """The (dtype, op, root) to sweep; operators that are not defined on a dtype are left out."""
    ops = (list(OPS) if args.op == "all" else args.op) if collective in REDUCTIONS else ["sum"]
    roots = range(world_size) if collective == "broadcast" and args.root == -1 else [max(args.root, 0)]
    dtypes = list(DTYPES) if args.datatype == "all" else args.datatype
    return [(d, o, r) for d in dtypes for o in ops if supports(collective, d, o) for r in roots]


def main(argv: Sequence[str]) -> int:
    """Run the bench; the process's exit status: 1 if any element was wrong, 2 if the run could not start."""
    if argv and argv[0] == "plot":
        return _plot(argv[1:])
    launch = launched()
    args = _parse(argv, launch)
    try:
        check_packages(list(DTYPES) if args.datatype == "all" else args.datatype, args.peers, args.plot)
        if launch.launcher == "none":
            if "mpi" in args.peers:
                communicator_source(launch, wants_mpi=True)
            from collectives.launch import spawn

            return spawn([sys.executable, "-m", "collectives.bench", *argv], args.np)
        yields = let_mpi_yield(launch.world_size)
        source = communicator_source(launch, "mpi" in args.peers)
    except StartError as error:
        return _cannot_start(error, launch.rank)
    comm = Communicator(source)
    try:
        check_algorithm(comm, args.algorithm)
        status = _run(comm, args, argv, launch, yields)
    except StartError as error:  # on all ranks alike
        status = _cannot_start(error, comm.rank)
    except BaseException:
        comm.abort()  # the other ranks would wait for this one
        raise
    comm.close()
    return status


def _cannot_start(error: StartError, rank: int) -> int:
    if rank == 0:
        print(f"collectives.bench: {error}", file=sys.stderr)
    return 2


def _plot(argv: Sequence[str]) -> int:
    p = argparse.ArgumentParser(
        prog="python -m collectives.bench plot", description="Draw the JSON of an earlier run."
    )
    p.add_argument("results", help="file that -J wrote")
    p.add_argument("picture", help="file to write; its ending names the format")
    args = p.parse_args(argv)
    from collectives.bench.plot import plot_file

    try:
        check_packages(picture=args.picture)
        print(plot_file(args.results, args.picture))
    except (OSError, ValueError, KeyError) as error:
        p.error(f"cannot draw {args.results}: {error!r}")
    except StartError as error:
        return _cannot_start(error, 0)
    return 0


def _run(
    comm: Communicator, args: argparse.Namespace, argv: Sequence[str], launch: Launch, yields: bool
) -> int:
    start_time = time.strftime(TIME_FORMAT)
    say = print if comm.rank == 0 else lambda *text, **options: None
    ours = Ours(comm, args.algorithm)
    peers: list[Contender] = [Gloo(comm) if name == "gloo" else Mpi() for name in args.peers]
    ranks = gather_ranks(comm)
    facts = environment(launch, [ours, *peers])
    for line in header(args, facts, ranks, yields):
        say("# " + line)
    options = Options(args.iters, args.warmup_iters, args.rounds, args.check > 0, args.average)
    progress = Progress(comm.rank == 0 and sys.stderr.isatty())
    sweep = Sweep(comm, ours, peers, options, args.maxbytes, progress)
    rows: list[Row] = []
    loads: dict[str, dict[str, float]] = {}
    for collective in args.collective:
        say(f"#\n# {collective}")
        say(report.column_heads(args.peers), flush=True)
        first, load = len(rows), loads.setdefault(collective, {"start": load_average()})
        for dtype, op, root in combinations(collective, args, comm.world_size):
            for size in sweep_sizes(args.minbytes, args.maxbytes, args.stepfactor, args.stepbytes):
                rows.append(sweep.row(collective, size, dtype, op, root))
                progress.clear()
                say(report.table_line(rows[-1], args.peers), flush=True)
        load["end"] = load_average()
        warning = load_warning(load.values(), facts)
        say(report.footer(report.summarize(rows[first:], args.peers), args.peers, warning), flush=True)
    if comm.rank == 0:
        head = {
            "version": report.JSON_VERSION,
            "start_time": start_time,
            "args": ["collectives.bench", *argv],
            "config": {**config(args), "devices": ranks},
            "environment": facts,
        }
        content = report.document(head, rows, args.peers, time.strftime(TIME_FORMAT), loads)
        if args.json:
            report.write_json(args.json, content)
            print(f"# JSON: {args.json}")
        if args.plot:
            from collectives.bench.plot import plot_document

            print(f"# picture: {plot_document(content, args.plot)}")
    comm.barrier()  # the others wait for rank 0's files, so that no launcher takes it down early
    for peer in peers:
        peer.close()
    return 1 if report.summarize(rows, []).out_of_bounds else 0
