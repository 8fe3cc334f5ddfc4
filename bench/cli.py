"""The command line of the bench: its subjects, and the sweep with flags as users of nccl-tests know them."""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
import time
from collections.abc import Sequence
from typing import Any

from collectives.bench import arguments, report
from collectives.bench.arguments import PROGRAM, at_least, list_of, size_in_bytes
from collectives.bench.cases import (
    COLLECTIVES,
    DTYPES,
    OPS,
    parse_dtype,
    parse_op,
    supports,
    sweep_sizes,
)
from collectives.bench.header import config, header
from collectives.bench.host import environment, gather_ranks, load_average, load_warning
from collectives.bench.peer_mpi import Mpi
from collectives.bench.peer_torch import ThroughTorch
from collectives.bench.peers import Contender, Ours
from collectives.bench.progress import Progress
from collectives.bench.start import StartError, cannot_start, check_algorithm, check_packages, on_ranks
from collectives.bench.sweep import Options, Row, Sweep
from collectives.communicator import Communicator
from collectives.environment import Launch, launched

PEERS = ("gloo", "mpi", "noop")
# Each is a module here with a `main(argv)`, and has a help of its own.
SUBJECTS = {
    "model": "tokens per second of a tensor-parallel Llama",
    "ddp": "training steps under DistributedDataParallel",
    "groups": "what a process group costs in memory, descriptors, threads and time",
    "choice": "the automatic choice of algorithm beside every forced one",
}


def _root(text: str) -> int:
    return -1 if text == "all" else at_least(-1)(text)


def _peer(text: str) -> str:
    if text not in PEERS:
        raise ValueError(f"unknown peer {text!r}; known: {', '.join(PEERS)}")
    return text


def parser(rank: int = 0) -> arguments.Parser:
    """The parser of a sweep; only rank 0's prints complaints."""
    subjects = "\n".join(f"  {PROGRAM} {name:8} {text}" for name, text in SUBJECTS.items())
    p = arguments.parser(
        rank,
        "",
        "Sweep collectives over message sizes, beside their peers, in the manner of nccl-tests.\n"
        "Start it with mpirun, torchrun or srun, or give -np.",
        epilog=f"other subjects, each with a --help of its own:\n{subjects}\n"
        f"a picture from an earlier sweep:\n  {PROGRAM} plot results.json picture.png",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = p.add_argument
    rooted = [name for name, facts in COLLECTIVES.items() if facts.root]
    add(
        "collective", nargs="+", choices=tuple(COLLECTIVES), metavar="COLLECTIVE", help=", ".join(COLLECTIVES)
    )
    arguments.add_world(p)
    add("-b", "--minbytes", type=size_in_bytes, default=8, metavar="SIZE", help="smallest size (8)")
    add("-e", "--maxbytes", type=size_in_bytes, default=64 << 20, metavar="SIZE", help="largest size (64M)")
    add("-f", "--stepfactor", type=at_least(2), default=2, metavar="N", help="factor between sizes (2)")
    add(
        "-i",
        "--stepbytes",
        type=size_in_bytes,
        default=0,
        metavar="SIZE",
        help="fixed step between sizes, instead of -f",
    )
    add("-d", "--datatype", type=list_of(parse_dtype), default=["float32"], metavar="TYPE[,TYPE]|all")
    add(
        "-o",
        "--op",
        type=list_of(parse_op),
        default=["sum"],
        metavar="OP[,OP]|all",
        help=", ".join(OPS),
    )
    add("-r", "--root", type=_root, default=0, metavar="RANK|all", help=f"of {', '.join(rooted)} (0)")
    add("-n", "--iters", type=at_least(1), metavar="N", help="calls per round (as many as fill 5 ms)")
    add("-w", "--warmup_iters", type=at_least(0), default=5, metavar="N", help="calls before timing (5)")
    add("--rounds", type=at_least(1), default=7, metavar="N", help="timed rounds; the median counts (7)")
    add("-c", "--check", type=at_least(0), default=1, metavar="0|1", help="check results (1)")
    add(
        "-a",
        "--average",
        type=int,
        choices=range(4),
        default=1,
        help="time over ranks: 0 rank 0, 1 avg, 2 min, 3 max (1)",
    )
    arguments.add_json(p, "also write JSON with nccl-tests' field names")
    add(
        "--api",
        choices=("communicator", "torch"),
        default="communicator",
        help="how ours is called: by a Communicator's methods, or by torch.distributed (communicator)",
    )
    arguments.add_backend(p)
    add(
        "--peers",
        type=list_of(_peer),
        default=[],
        metavar="gloo,mpi,noop",
        help="measured beside ours; noop, a backend that does nothing, needs --api torch",
    )
    add(
        "--algorithm",
        choices=sorted({name for facts in COLLECTIVES.values() for name in facts.algorithms}),
        help="force an algorithm",
    )
    add("--plot", metavar="FILE", help="also draw latency and bandwidth to a picture")
    return p


def _parse(argv: Sequence[str], launch: Launch) -> argparse.Namespace:
    p = parser(launch.rank)
    args = p.parse_args(argv)
    world_size = arguments.check_world(p, args, launch)
    if args.minbytes > args.maxbytes:
        p.error(f"-b {args.minbytes} is larger than -e {args.maxbytes}")
    if args.root >= world_size:
        p.error(f"-r {args.root}: the ranks are 0 .. {world_size - 1}")
    for collective in args.collective:
        known = COLLECTIVES[collective].algorithms
        if args.algorithm and args.algorithm not in known:
            p.error(f"{collective} has no {args.algorithm}; it has {', '.join(known) or 'one way only'}")
        if not list(combinations(collective, args, world_size)):
            p.error(f"{collective}: none of the operators {args.op} is defined on {args.datatype}")
    args.collective = list(dict.fromkeys(args.collective))
    if args.peers == "all":
        args.peers = [name for name in PEERS if name != "noop" or args.api == "torch"]
    if args.api == "communicator" and "noop" in args.peers:
        p.error("peer noop shows what torch.distributed itself costs: give --api torch")
    if args.api == "torch" and args.algorithm:
        p.error(f"--algorithm {args.algorithm}: torch.distributed has no such argument; leave --api out")
    arguments.check_files(p, args, ("json", "plot"))
    return args


def combinations(collective: str, args: argparse.Namespace, world_size: int) -> list[tuple[str, str, int]]:
    """The (dtype, op, root) to sweep; operators that are not defined on a dtype are left out."""
    facts, roots, ops = COLLECTIVES[collective], [0], ["sum"]
    if facts.root:
        roots = list(range(world_size)) if args.root == -1 else [args.root]
    if facts.reduces:
        ops = list(OPS) if args.op == "all" else args.op
    dtypes = list(DTYPES) if args.datatype == "all" else args.datatype
    return [(d, o, r) for d in dtypes for o in ops if supports(collective, d, o) for r in roots]


def main(argv: Sequence[str]) -> int:
    """Run the bench; the process's exit status: 1 if any result was wrong, 2 if the run could not start."""
    first = argv[0] if argv else ""
    if first == "plot":
        return _plot(argv[1:])
    launch = launched()
    try:
        if first in SUBJECTS:
            subject = importlib.import_module(f"collectives.bench.{first}")
            return int(subject.main(argv, launch))
        return _sweep(argv, launch)
    except StartError as error:
        return cannot_start(error, launch.rank)


def _sweep(argv: Sequence[str], launch: Launch) -> int:
    args = _parse(argv, launch)
    dtypes = list(DTYPES) if args.datatype == "all" else args.datatype
    check_packages(dtypes, args.peers, args.plot, "--api torch" if args.api == "torch" else "")
    run = functools.partial(_run, args=args, argv=argv, launch=launch)
    return on_ranks(argv, args.np or launch.world_size, launch, run, "mpi" in args.peers)


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
        return cannot_start(error, 0)
    return 0


def _contenders(comm: Communicator, args: argparse.Namespace) -> tuple[list[Contender], Any]:
    """Ours, then the peers; and the process groups that they hold, if any."""
    through_torch = args.api == "torch"
    if not through_torch and "gloo" not in args.peers:
        return [Ours(comm, args.algorithm), *(Mpi() for _ in args.peers)], None
    from collectives.bench.process_groups import NOOP, ProcessGroups

    groups = ProcessGroups(comm, args.backend if through_torch else "gloo")
    found: list[Contender] = [Ours(comm, args.algorithm)]
    if through_torch:
        found = [ThroughTorch(args.backend, groups.default)]
    for name in args.peers:
        if name == "mpi":
            found.append(Mpi())
        else:
            backend = NOOP if name == "noop" else name
            found.append(ThroughTorch(name, groups.new(backend), checked=name != "noop"))
    return found, groups


def _run(
    comm: Communicator, yields: bool, args: argparse.Namespace, argv: Sequence[str], launch: Launch
) -> int:
    check_algorithm(comm, args.algorithm)
    start_time = time.strftime(report.TIME_FORMAT)
    say = print if comm.rank == 0 else lambda *text, **options: None
    (ours, *peers), groups = _contenders(comm, args)
    ranks = gather_ranks(comm)
    facts = environment(launch, {one.name: one.version for one in (ours, *peers)})
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
        content = report.document(head, rows, args.peers, time.strftime(report.TIME_FORMAT), loads)
        if args.json:
            report.write_json(args.json, content)
            print(f"# JSON: {args.json}")
        if args.plot:
            from collectives.bench.plot import plot_document

            print(f"# picture: {plot_document(content, args.plot)}")
    comm.barrier()  # the others wait for rank 0's files, so that no launcher takes it down early
    if groups is not None:
        groups.close()
    return 1 if report.summarize(rows, []).out_of_bounds else 0
