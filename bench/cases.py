"""What is measured: collectives, element types, operators, message sizes, and how bytes become bandwidth.

Sizes and factors follow nccl-tests: the size of a row is the larger of a rank's input and output, and busbw
is what the links of a ring would have carried. What the bench has to know of a collective is in COLLECTIVES.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def _once(world_size: int) -> float:
    return 1.0


def _to_others(world_size: int) -> float:
    return (world_size - 1) / world_size


def _twice_to_others(world_size: int) -> float:
    return 2 * (world_size - 1) / world_size


@dataclass(frozen=True)
class Collective:
    """What the bench has to know of a collective.

    Attributes:
        algorithms: those that ``--algorithm`` may force.
        factor: busbw over algbw for a world size, as nccl-tests defines it.
        reduces: takes an operator; the others only move data.
        root: "source" where one rank alone has the input, "destination" where one alone gets the output.
        parts_in: the input holds a part for each rank.
        parts_out: the output holds a part from each rank.
        out_of_place: has a form whose output lies apart from the input.
        in_place: has a form whose output overlaps the input: the smaller is the rank's part of the larger,
            or both are one.
    """

    algorithms: tuple[str, ...]
    factor: Callable[[int], float]
    reduces: bool = False
    root: Literal["source", "destination"] | None = None
    parts_in: bool = False
    parts_out: bool = False
    out_of_place: bool = True
    in_place: bool = True

    @property
    def repeatable_in_place(self) -> bool:
        """Whether a second call in place, with the results of the first, gives the same once more."""
        return not self.reduces and not (self.parts_in and self.parts_out)

    def gets(self, rank: int, root: int) -> bool:
        """Whether `rank` has an output."""
        return self.root != "destination" or rank == root

    def senders(self, rank: int, world_size: int, root: int) -> list[int]:
        """Of a collective that moves data: the ranks whose data make up the output of `rank`, in order."""
        if self.parts_out:
            return list(range(world_size))
        return [root if self.root else before(rank, world_size)]


def after(rank: int, world_size: int) -> int:
    """To whom `rank` sends in a ring shift."""
    return (rank + 1) % world_size


def before(rank: int, world_size: int) -> int:
    """From whom `rank` receives in a ring shift."""
    return (rank - 1) % world_size


_MOVES = ("inline", "one_shot", "direct")
COLLECTIVES = {
    "all_reduce": Collective(("inline", "one_shot", "two_shot"), _twice_to_others, reduces=True),
    "reduce": Collective(("inline", "one_shot", "two_shot"), _once, reduces=True, root="destination"),
    "all_gather": Collective(_MOVES, _to_others, parts_out=True),
    "gather": Collective(_MOVES, _to_others, root="destination", parts_out=True),
    "reduce_scatter": Collective(("inline", "two_shot"), _to_others, reduces=True, parts_in=True),
    "scatter": Collective(_MOVES, _to_others, root="source", parts_in=True),
    "all_to_all": Collective(_MOVES, _to_others, parts_in=True, parts_out=True),
    "broadcast": Collective(_MOVES, _once, root="source", out_of_place=False),
    # A ring shift: every rank sends to the next and receives from the one before.
    "sendrecv": Collective((), _once, in_place=False),
}

OPS = ("sum", "avg", "min", "max", "product", "band", "bor", "bxor")
BITWISE = ("band", "bor", "bxor")
# The table speaks nccl-tests' dialect where it has a word for the thing.
NCCL_OPS = {"product": "prod"}
NCCL_DTYPES = {
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
FLOATS = ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
EXTENDED = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # of ml_dtypes
COMPLEX = ("complex64", "complex128")
DTYPES = FLOATS + INTEGERS + ("bool",) + COMPLEX

_OP_ALIASES = {alias: op for op, alias in NCCL_OPS.items()}
_DTYPE_ALIASES = {alias: dtype for dtype, alias in NCCL_DTYPES.items()}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def supports(collective: str, dtype: str, op: str) -> bool:
    """Whether `op` is defined on elements of `dtype`; for a collective that only moves data, always."""
    if not COLLECTIVES[collective].reduces:
        return True
    if dtype in COMPLEX:
        return op in ("sum", "avg")
    if dtype == "bool":
        return op != "avg"
    return op not in BITWISE or dtype in INTEGERS


def parse_size(text: str) -> int:
    """Bytes from ``8``, ``1K``, ``64M``, ``1G``; a unit is a power of 1024. ValueError otherwise."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 8, 1K, 64M or 1G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def parse_op(text: str) -> str:
    """Our name of an operator given by our name or that of nccl-tests. ValueError for an unknown one."""
    op = _OP_ALIASES.get(text, text)
    if op not in OPS:
        raise ValueError(f"unknown operator {text!r}; known: {', '.join(OPS)}")
    return op


def parse_dtype(text: str) -> str:
    """Our name of a dtype given by our name or that of nccl-tests. ValueError for an unknown one."""
    dtype = _DTYPE_ALIASES.get(text, text)
    if dtype not in DTYPES:
        raise ValueError(f"unknown datatype {text!r}; known: {', '.join(DTYPES + tuple(_DTYPE_ALIASES))}")
    return dtype


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of our `name`; bfloat16 and float8 are those of ml_dtypes."""
    if name in EXTENDED:
        import ml_dtypes

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return extended
    return np.dtype(name)


def sweep_sizes(minimum: int, maximum: int, factor: int = 2, step: int = 0) -> Iterator[int]:
    """Bytes from `minimum` up to `maximum` at most: times `factor`, or plus `step` where that is not 0."""
    size = minimum
    while size <= maximum:
        yield size
        size = size + step if step else max(size * factor, size + 1)


@dataclass(frozen=True)
class Shape:
    """Element counts of one call.

    Attributes:
        send: elements of each rank's input.
        receive: elements of each rank's output.
        count: what the count column shows (nccl-tests: the count argument of the call).
    """

    send: int
    receive: int
    count: int

    @property
    def total(self) -> int:
        """Elements that the size column stands for."""
        return max(self.send, self.receive)


def shape_of(collective: str, size: int, itemsize: int, world_size: int) -> Shape:
    """The largest call of at most `size` bytes; where a side has a part for each rank, all are equal.

    (nccl-tests also rounds each rank's part down to 16 bytes, so that its small rows are empty.)
    """
    facts = COLLECTIVES[collective]
    count = size // itemsize
    if facts.parts_in or facts.parts_out:
        count //= world_size
    return Shape(
        send=count * world_size if facts.parts_in else count,
        receive=count * world_size if facts.parts_out else count,
        count=count,
    )


def bus_factor(collective: str, world_size: int) -> float:
    """busbw = algbw times this, as nccl-tests defines it."""
    return COLLECTIVES[collective].factor(world_size)


@dataclass(frozen=True)
class Case:
    """One call to be bound, checked and timed, on one rank.

    Attributes:
        collective: one of `COLLECTIVES`.
        x: the input, 1-d, contiguous; on every rank, also where only the root's is looked at.
        out: the output, 1-d, contiguous; overlaps `x` (as the collective's in-place form wants it) when
            `in_place`. On every rank, also where only the root gets it.
        dtype, op: our names.
        root: the rank that has the input or gets the output, where that is one.
    """

    collective: str
    x: Array
    out: Array
    in_place: bool
    dtype: str
    op: str = "sum"
    root: int = 0
