"""What a run says about itself before its tables, and as the configuration in its JSON."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from collectives.bench.sweep import FEWEST_ITERATIONS, ROUND_SECONDS

_AVERAGES = ("rank 0", "mean", "minimum", "maximum")


def config(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of a run in nccl-tests' words."""
    step = {"step_bytes": args.stepbytes} if args.stepbytes else {"step_factor": args.stepfactor}
    return {
        "nthreads": 1,
        "ngpus": 0,
        "minimum_bytes": args.minbytes,
        "maximum_bytes": args.maxbytes,
        **step,
        "warmup_iters": args.warmup_iters,
        "iterations": args.iters,
        "rounds": args.rounds,
        "aggregated_iterations": 1,
        "validation": args.check,
        "average": args.average,
        "api": args.api,
        "backend": args.backend if args.api == "torch" else None,
        "algorithm": args.algorithm,
        "peers": args.peers,
    }


def machine(environment: dict[str, Any]) -> list[str]:
    """Versions, host and world: the first lines of every run, without their ``#``."""
    return [
        "versions: " + "; ".join(f"{name} {text}" for name, text in environment["versions"].items()),
        f"host {environment['host']}: {environment['cpu']}, {environment['cores']:g} usable cores",
        f"world size {environment['world_size']}, started by {environment['launcher']}",
    ]


def ranks_and_load(environment: dict[str, Any], ranks: Sequence[dict[str, Any]], yields: bool) -> list[str]:
    """The last lines of every header: what disturbs the run, and who the ranks are."""
    lines = []
    load = environment["load_average"]
    if load > environment["cores"]:
        lines.append(
            f"WARNING: load average {load:.1f}: other programs want the cores too. "
            "These times are no evidence: a peer that spins while it waits suffers most"
        )
    if yields:
        lines.append("more ranks than cores: Open MPI and MPICH are told to yield while they wait")
    lines.append("Using ranks")
    return lines + [f" Rank {r['rank']:2} Pid {r['pid']:6} on {r['hostname']}" for r in ranks]


def header(
    args: argparse.Namespace, environment: dict[str, Any], ranks: Sequence[dict[str, Any]], yields: bool
) -> list[str]:
    """The lines above the tables of a sweep, without their ``#``."""
    step = f"{args.stepbytes}(bytes)" if args.stepbytes else f"{args.stepfactor}(factor)"
    iterations = (
        f"{args.iters} calls"
        if args.iters
        else f"as many calls as fill {ROUND_SECONDS * 1e3:g} ms, at least {FEWEST_ITERATIONS},"
    )
    dtypes = "all" if args.datatype == "all" else ",".join(args.datatype)
    lines = [
        *machine(environment),
        f"minBytes {args.minbytes} maxBytes {args.maxbytes} step: {step} warmup iters: {args.warmup_iters} "
        f"iters: {args.iters or 'adaptive'} rounds: {args.rounds} check: {args.check} datatypes: {dtypes}",
        f"method: {iterations} in each of {args.rounds} rounds between barriers, ours and the peers in turn; "
        f"time is the median over rounds of the {_AVERAGES[args.average]} over ranks",
    ]
    if args.api == "torch":
        lines.append(f"api: ours is torch.distributed's backend {args.backend}, one thread per rank")
    if args.peers:
        lines.append(
            "ratio: the peer's time over ours, median over rounds (above 1 ours is faster); out of place "
            "where the peer has that form, else in place"
        )
    if "noop" in args.peers:
        lines.append(
            'noop: PyTorch\'s C++ backend "fake", whose all_reduce, reduce, broadcast and messages return a '
            "completed Work at once (the others copy the rank's own part); its results are not checked"
        )
    return lines + ranks_and_load(environment, ranks, yields)
