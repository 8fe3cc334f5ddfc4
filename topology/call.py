"""What can be asked for: collectives, element types, reductions, order levels."""

from __future__ import annotations

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")

SIZES = {
    **dict.fromkeys(("bool", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes of an element by its type's name."""

OPS = ("sum", "avg", "min", "max", "product")

LEVELS = ("rank", "same", "any")
"""Order levels, strongest first: as if added by rank; equal bits on all ranks and in all runs of one plan;
neither."""


def check(collective: str, nbytes: int, dtype: str) -> None:
    """Raises ValueError for names that are none, and negative bytes."""
    if collective not in COLLECTIVES:
        raise ValueError(f'no collective "{collective}": expected one of {", ".join(COLLECTIVES)}')
    if dtype not in SIZES:
        raise ValueError(f'no element type "{dtype}": expected one of {", ".join(SIZES)}')
    if nbytes < 0:
        raise ValueError(f"{nbytes} bytes: expected 0 or more")
