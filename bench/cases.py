"""What is measured: collectives, element types, operators, message sizes, and how bytes become bandwidth.

Sizes and factors follow nccl-tests: the size of a row is the larger of a rank's input and output, and busbw
is what the links of a ring would have carried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

ALGORITHMS = {
    "all_reduce": ("inline", "one_shot", "two_shot"),
    "all_gather": ("inline", "one_shot", "direct"),
    "reduce_scatter": ("inline", "two_shot"),
    "broadcast": ("inline", "one_shot", "direct"),
}
COLLECTIVES = tuple(ALGORITHMS)
REDUCTIONS = ("all_reduce", "reduce_scatter")

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
    if collective not in REDUCTIONS:
        return True
    if dtype in COMPLEX:
        return False
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
    """The largest call of at most `size` bytes; all_gather and reduce_scatter share it out evenly.

    (nccl-tests also rounds each rank's part down to 16 bytes, so that its small rows are empty.)
    """
    count = size // itemsize
    part = count // world_size
    if collective == "all_gather":
        return Shape(send=part, receive=part * world_size, count=part)
    if collective == "reduce_scatter":
        return Shape(send=part * world_size, receive=part, count=part)
    return Shape(send=count, receive=count, count=count)


def bus_factor(collective: str, world_size: int) -> float:
    """busbw = algbw times this, as nccl-tests defines it."""
    if collective == "all_reduce":
        return 2 * (world_size - 1) / world_size
    if collective == "broadcast":
        return 1.0
    return (world_size - 1) / world_size


@dataclass(frozen=True)
class Case:
    """One call to be bound, checked and timed, on one rank.

    Attributes:
        collective: one of `COLLECTIVES`.
        x: the input, 1-d, contiguous.
        out: the output, 1-d, contiguous; overlaps `x` (as the collective's in-place form wants it) when
            `in_place`.
        dtype, op: our names.
        root: the source of a broadcast, 0 otherwise.
    """

    collective: str
    x: Array
    out: Array
    in_place: bool
    dtype: str
    op: str = "sum"
    root: int = 0
