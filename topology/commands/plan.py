"""Which algorithm serves a collective, at what predicted time, and why: for a range of sizes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from collectives.topology.call import COLLECTIVES, LEVELS, OPS, SIZES
from collectives.topology.commands import screen
from collectives.topology.commands.arguments import (
    add_file,
    add_json,
    add_sizes,
    at_least,
    read_file,
    sizes,
)
from collectives.topology.cost import ALGORITHMS
from collectives.topology.graph import TopologyError
from collectives.topology.plan import Table, table
from collectives.topology.plan_record import Plan


def _devices(text: str) -> list[int]:
    """The type of device numbers."""
    whole = at_least(0)
    return [whole(part) for part in text.split(",")]


def add(command: argparse.ArgumentParser) -> None:
    """The options."""
    add_file(command)
    command.add_argument("collective", choices=COLLECTIVES, help=", ".join(COLLECTIVES), metavar="COLLECTIVE")
    add_sizes(command, "1K", "1G")
    ranks = command.add_mutually_exclusive_group()
    ranks.add_argument("-n", "--ranks", type=at_least(1), metavar="N", help="ranks (one a device)")
    ranks.add_argument("--devices", type=_devices, metavar="N,N", help="the device of each rank (the first)")
    command.add_argument("--dtype", choices=SIZES, default="float32", metavar="TYPE", help="(float32)")
    command.add_argument("--op", choices=OPS, default="sum", help="(sum)")
    command.add_argument(
        "--order", choices=LEVELS, help="what the result must hold (the strongest that ours can)"
    )
    add_json(command)


def run(options: argparse.Namespace) -> None:
    """Prints it. TopologyError: the file cannot be used, or has no devices for the ranks."""
    topology = read_file(options.file)
    if not topology.gpus:
        raise TopologyError(
            "no device to plan for: what ranks on CPUs do, Communicator.explain says", topology.source
        )
    try:
        found = table(
            topology,
            options.collective,
            sizes(options),
            options.dtype,
            options.ranks,
            options.order,
            op=options.op,
            devices=options.devices,
        )
    except ValueError as error:
        if isinstance(error, TopologyError):
            raise
        raise TopologyError(str(error), topology.source) from error
    if options.json:
        screen.as_json(
            {
                "version": 1,
                "source": topology.source,
                "plans": [json.loads(plan.to_json()) for plan in found.plans],
                "crossovers": [
                    {"nbytes": c.nbytes, "before": c.before, "after": c.after} for c in found.crossovers
                ],
            }
        )
        return
    _print(found, topology.source)


def _print(found: Table, source: str) -> None:
    first = found.plans[0]
    call = f"{first.collective}, {first.dtype}"
    if first.collective in ("all_reduce", "reduce_scatter"):
        call += f", {first.op}, order {first.order or 'as strong as ours can hold'}"
    screen.facts(
        [
            ("source", source),
            ("call", call),
            ("ranks", f"{first.world} on {' '.join(first.devices)}"),
            ("fingerprint", first.fingerprint),
            *(("remark", remark) for remark in first.remarks),
        ]
    )
    names = [name for name in ALGORITHMS if any(_time(plan, name) != "-" for plan in found.plans)]
    screen.heading("Predicted microseconds (in brackets: not admissible)")
    rows = [
        [
            screen.size(plan.nbytes),
            *(_time(plan, name) for name in names),
            plan.choice or "none",
            plan.level or "-",
        ]
        for plan in found.plans
    ]
    screen.table(["bytes", *names, "choice", "order"], rows, left=(0, len(names) + 1, len(names) + 2))
    if found.crossovers:
        screen.heading("The choice changes")
        for change in found.crossovers:
            screen.line(f"from {change.nbytes} bytes: {change.before or 'none'} to {change.after or 'none'}")
    screen.heading("Why")
    _print_reasons(found.plans)
    barred = {
        candidate.algorithm: candidate.obstacle
        for plan in found.plans
        for candidate in plan.candidates
        if candidate.obstacle
    }
    if barred:
        screen.heading("Not admissible")
        screen.facts([(name, why) for name, why in barred.items() if why])


def _time(plan: Plan, algorithm: str) -> str:
    candidate = next(c for c in plan.candidates if c.algorithm == algorithm)
    if candidate.microseconds is None:
        return "-"
    time = f"{candidate.microseconds:.1f}"
    return f"({time})" if candidate.obstacle else time


def _print_reasons(plans: Sequence[Plan]) -> None:
    """The reason of each choice, at the first size of those at which it is taken."""
    seen: set[str | None] = set()
    for plan in plans:
        if plan.choice not in seen:
            seen.add(plan.choice)
            screen.line(f"{screen.size(plan.nbytes)}: {plan.reason}")
