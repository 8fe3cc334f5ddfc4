"""Plans: which algorithm serves a call on a machine, what each would take, and why.

Contract: a plan is a pure function of the topology, the ranks' devices and the call; ranks that hold the same
description make the same plan, to the byte of its JSON. Where they see different machines, one rank makes it
and sends the JSON.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collectives.topology.admissible import level, obstacle
from collectives.topology.call import LEVELS, OPS, check
from collectives.topology.cost import ALGORITHMS, Costs
from collectives.topology.graph import Topology
from collectives.topology.plan_record import Candidate, Plan

__all__ = ["Candidate", "Crossover", "Plan", "Table", "decide", "plan", "table"]

_WHY = {
    "ll": "small: packets that carry their own flags spare the exchange of flags",
    "one_shot": "every byte goes once and directly; a second exchange would cost more than it saves",
    "two_shot": "large: each rank does one part for all, so that less leaves each device",
    "chain": "in the order of the ranks along one way, which spares links that several share",
    "ring": "only neighbours on the best rings send to each other",
    "tree": "few steps, and only neighbours in two trees send to each other",
    "nvls": "the switches add and multicast, so that each device sends its bytes about once",
    "nccl": "predicted faster than all of ours",
}


def decide(candidates: Iterable[Candidate]) -> Candidate | None:
    """The fastest admissible one, of equals the first; None if there is none."""
    able = [c for c in candidates if c.obstacle is None and c.microseconds is not None]
    return min(able, key=lambda c: c.microseconds or 0.0, default=None)


def plan(
    topology: Topology | Costs,
    collective: str,
    nbytes: int,
    dtype: str = "float32",
    world: int | None = None,
    order: str | None = None,
    *,
    op: str = "sum",
    devices: Sequence[int] | None = None,
) -> Plan:
    """The plan for a call.

    Args:
        topology: the machine, or its :class:`~collectives.topology.cost.Costs` where they are at hand.
        collective, nbytes, dtype: as ``cost.Costs.predict`` takes them.
        world: ranks; by default one on each device.
        order: ``rank``, ``same`` or ``any``: the level that the result must have at least. By default the
            strongest that an algorithm of ours can hold, and NCCL where none of ours can serve.
        op: ``sum``, ``avg``, ``min``, ``max`` or ``product``.
        devices: device numbers by rank; by default the first `world`.

    Returns:
        A plan without a choice if nothing holds the order that was asked for.

    Raises:
        ValueError: a name that is none, negative bytes, or ranks that the machine has no devices for.
    """
    if isinstance(topology, Costs):
        if devices is not None or world not in (None, topology.world):
            raise ValueError("the costs' ranks are given already: leave out world and devices")
        costs = topology
    else:
        costs = Costs(topology, world, devices)
    check(collective, nbytes, dtype)
    if order is not None and order not in LEVELS:
        raise ValueError(f'no order level "{order}": expected one of {", ".join(LEVELS)}')
    if op not in OPS:
        raise ValueError(f'no reduction "{op}": expected one of {", ".join(OPS)}')

    def at(asked: str) -> tuple[Candidate, ...]:
        found = []
        for name in ALGORITHMS:
            us = costs.predict(name, collective, nbytes, dtype)
            why = obstacle(costs, name, collective, dtype, op, asked)
            found.append(Candidate(name, None if us is None else round(us, 3), why))
        return tuple(found)

    candidates = at(order or LEVELS[0])
    if order is None:
        for weaker in LEVELS[1:]:
            if any(c.obstacle is None and c.algorithm != "nccl" for c in candidates):
                break
            candidates = at(weaker)
    chosen = decide(candidates)
    choice = chosen.algorithm if chosen else None
    gpus = costs.topology.gpus
    return Plan(
        collective,
        nbytes,
        dtype,
        op,
        order,
        tuple(gpu.name for gpu in gpus),
        costs.fingerprint,
        candidates,
        choice,
        level(choice, collective, dtype, op) if choice else None,
        _reason(candidates, chosen, order),
        _layout(costs, choice),
        tuple(costs.routes.remarks),
    )


def _layout(costs: Costs, choice: str | None) -> tuple[tuple[int, ...], ...]:
    if choice == "ring":
        return costs.rings
    if choice == "tree":
        return tuple(tuple(-1 if up is None else up for up in tree.parents) for tree in costs.trees)
    return ()


def _reason(candidates: Sequence[Candidate], chosen: Candidate | None, order: str | None) -> str:
    """Why the chosen one: what it has before the next, and which faster ones are not admissible."""
    if chosen is None:
        return (
            f"nothing holds order level {order} here; ask for a weaker one, or leave it open to fall back. "
            + "; ".join(f"{c.algorithm}: {c.obstacle}" for c in candidates if c.obstacle)
        )
    mine = chosen.microseconds or 0.0
    others = [c for c in candidates if c is not chosen]
    able = decide(others)
    if chosen.algorithm == "nccl" and able is None:
        why = "; ".join(dict.fromkeys(c.obstacle for c in others if c.obstacle))
        return f"nccl, the fallback, predicted at {mine:.1f} us: none of ours can serve ({why})"
    words = f"{chosen.algorithm} at {mine:.1f} us: {_WHY[chosen.algorithm]}"
    if able is not None:
        words += f". Next is {able.algorithm} at {able.microseconds:.1f} us"
    barred = [c for c in others if c.obstacle and c.microseconds is not None and c.microseconds < mine]
    for c in sorted(barred, key=lambda c: c.microseconds or 0.0)[:1]:
        words += f". {c.algorithm} would take {c.microseconds:.1f} us, but {c.obstacle}"
    return words


@dataclass(frozen=True)
class Crossover:
    """Where the choice changes.

    Attributes:
        nbytes: from this size on.
        before, after: the choices below, and from there.
    """

    nbytes: int
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Table:
    """Plans over a range of sizes.

    Attributes:
        plans: one for each size, ascending.
        crossovers: all changes of the choice between the first size and the last, to the byte.
    """

    plans: tuple[Plan, ...]
    crossovers: tuple[Crossover, ...]


def table(
    topology: Topology | Costs,
    collective: str,
    sizes: Iterable[int],
    dtype: str = "float32",
    world: int | None = None,
    order: str | None = None,
    *,
    op: str = "sum",
    devices: Sequence[int] | None = None,
) -> Table:
    """Plans for several sizes; arguments and errors are those of :func:`plan`."""
    costs = topology if isinstance(topology, Costs) else Costs(topology, world, devices)

    def at(nbytes: int) -> Plan:
        return plan(costs, collective, nbytes, dtype, order=order, op=op)

    plans = [at(nbytes) for nbytes in sorted(set(sizes))]
    found = []
    for low, high in itertools.pairwise(plans):
        first, last = low.nbytes, high.nbytes
        before = low.choice
        while before != high.choice:
            bottom, top = first, last
            while top - bottom > 1:
                middle = (bottom + top) // 2
                bottom, top = (middle, top) if at(middle).choice == before else (bottom, middle)
            after = at(top).choice
            found.append(Crossover(top, before, after))
            first, before = top, after
    return Table(tuple(plans), tuple(found))
