"""Which algorithms may serve a call on a machine, and why others may not.

Order levels, the strongest first. A result of level *rank* is that of adding by rank, whatever computed it;
*same* means equal bits on all ranks and in all runs of one plan; *any* promises neither. What adds nothing,
integers, and least and greatest values have no order to keep: every algorithm of ours holds *rank* for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from collectives.topology.access import multicast, refused
from collectives.topology.call import LEVELS
from collectives.topology.cost import Costs

MOST_RANKS = 16
"""Of our kernels, whose number of ranks is a constant of their compilation."""

_LEVEL = {
    **dict.fromkeys(("ll", "one_shot", "two_shot", "chain"), "rank"),
    **dict.fromkeys(("ring", "tree"), "same"),
    **dict.fromkeys(("nvls", "nccl"), "any"),
}
_ORDER = {
    "ring": "ring sums each part from another rank on",
    "tree": "tree sums by pairs of subtrees",
    "nvls": "nvls sums in the switches, in an order that is theirs",
    "nccl": "nccl sums in the order of what it chooses",
}
_REDUCED = ("float32", "float16", "bfloat16", "int32", "int64")
_FLOATS = ("float32", "float16", "bfloat16")
_NCCL = (*_REDUCED, "int8", "uint8", "uint32", "uint64", "float64", "float8_e4m3fn", "float8_e5m2")


def level(algorithm: str, collective: str, dtype: str, op: str) -> str:
    """The order level of an algorithm's results for a call."""
    if collective in ("all_gather", "broadcast"):
        return "rank"
    whole = dtype.startswith(("int", "uint", "bool"))
    if algorithm == "nccl":  # its averages of integers and its NaN are not ours
        return "rank" if whole and op != "avg" else "any"
    return "rank" if whole or op in ("min", "max") else _LEVEL[algorithm]


def obstacle(costs: Costs, algorithm: str, collective: str, dtype: str, op: str, order: str) -> str | None:
    """Why an algorithm may not serve a call; None if it may.

    Args:
        costs: the machine and its ranks.
        algorithm, collective, dtype: as in ``cost``.
        op: of ``call.OPS``; of no matter where nothing is reduced.
        order: the level that the result must have, of ``call.LEVELS``.
    """
    if costs.world == 1:
        return None if algorithm == "one_shot" else "one rank: nothing is exchanged, a copy serves"
    reduces = collective in ("all_reduce", "reduce_scatter")
    found = _form(costs, algorithm, collective)
    if found is None and reduces:
        found = _types(algorithm, dtype, op)
    if found is None and algorithm != "nccl":
        if costs.world > MOST_RANKS:
            found = f"our kernels are built for 2 to {MOST_RANKS} ranks, not {costs.world}"
        else:
            found = _access(costs, algorithm)
    has = level(algorithm, collective, dtype, op)
    if found is None and LEVELS.index(has) > LEVELS.index(order):
        found = f"{_ORDER[algorithm]}: order level {has}, asked for is {order}"
    return found


def _form(costs: Costs, algorithm: str, collective: str) -> str | None:
    if algorithm == "nvls":
        if not multicast(costs.topology):
            archs = sorted({gpu.arch or "of unknown architecture" for gpu in costs.topology.gpus})
            return f"nvls needs sm_90 or later and NVSwitches; the devices are {_row(archs)}"
        if costs.switched is None:
            return "nvls needs NVSwitches, and not all devices are seen to hang on such"
    if costs.predict(algorithm, collective, 0) is not None:
        return None
    if algorithm == "two_shot":
        return f"{collective} is one exchange: that is one_shot"
    return f"there is no {algorithm} for {collective}"


def _types(algorithm: str, dtype: str, op: str) -> str | None:
    served = {"nvls": _FLOATS, "nccl": _NCCL}.get(algorithm, _REDUCED)
    if dtype not in served:
        return f"{algorithm} reduces {_row(served)}, not {dtype}"
    if algorithm == "nvls" and op not in ("sum", "avg"):
        return f"nvls forms sums and averages, not {op}"
    return None


def _access(costs: Costs, algorithm: str) -> str | None:
    gpus = costs.topology.gpus
    for i, j in sorted(costs.pairs_used(algorithm)):
        if refused(costs.topology, i, j):
            return f"P2P is refused between {gpus[i].name} and {gpus[j].name}"
    return None


def _row(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
