"""What the collectives must return, bit for bit: a reference in NumPy that shares nothing with the library.

Floating sums, averages and products accumulate in rank order in fp32 (fp64 for fp64) and are rounded once at
the end; premul_sum multiplies each rank's input by its factor, rounded to the accumulator's type, before it
adds; complex numbers are pairs of reals; integers wrap in their own type; an average of integers accumulates in
64 bits and truncates toward zero.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

FLOATS = ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
DTYPES = (*FLOATS, *INTEGERS, "bool", *COMPLEX)
OPS = ("sum", "avg", "min", "max", "product", "band", "bor", "bxor")

Array = np.ndarray[Any, Any]


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name) if name.startswith(("bfloat", "float8")) else name)


def operators(dtype: str) -> tuple[str, ...]:
    if dtype in COMPLEX:
        return ("sum", "avg", "premul_sum")
    if dtype == "bool":
        return tuple(op for op in OPS if op != "avg")
    return OPS if dtype in INTEGERS else (*OPS[:5], "premul_sum")


def reduce(rows: Sequence[Array], op: str, factors: Sequence[float] = ()) -> Array:
    """The rank-order reduction of one array per rank; `factors` are those of premul_sum."""
    dtype = rows[0].dtype
    if dtype.kind == "c":
        part = np.float32 if dtype == np.complex64 else np.float64
        return reduce([np.ascontiguousarray(row).view(part) for row in rows], op, factors).view(dtype)
    with np.errstate(all="ignore"):
        if dtype == np.bool_:
            return _reduce_bools(rows, op)
        if dtype.kind in "iu":
            return _reduce_integers(rows, op)
        wide = np.float64 if dtype == np.float64 else np.float32
        terms = [row.astype(wide) for row in rows]
        if op == "premul_sum":
            terms = [term * wide(factor) for term, factor in zip(terms, factors, strict=True)]
        total = terms[0]
        for term in terms[1:]:
            total = _combine(total, term, op)
        if op == "avg":
            total = total / wide(len(rows))
        return round_to(total, dtype)


def _combine(total: Array, row: Array, op: str) -> Array:
    if op in ("sum", "avg", "premul_sum"):
        return total + row
    if op == "product":
        return total * row
    if op == "max":
        return np.where((total >= row) | (total != total), total, row)
    assert op == "min"
    return np.where((total <= row) | (total != total), total, row)


def _reduce_bools(rows: Sequence[Array], op: str) -> Array:
    function = np.logical_or
    if op in ("product", "min", "band"):
        function = np.logical_and
    elif op == "bxor":
        function = np.logical_xor
    return functools.reduce(function, rows).copy()


def _reduce_integers(rows: Sequence[Array], op: str) -> Array:
    dtype = rows[0].dtype
    bitwise = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
    if op in bitwise:
        return functools.reduce(bitwise[op], rows).copy()
    if op == "avg":
        wide = np.uint64 if dtype == np.uint64 else np.int64
        total = functools.reduce(np.add, (row.astype(wide) for row in rows))
        quotient = total // wide(len(rows))  # rounds down, which for a negative value is one too low
        quotient += ((total < 0) & (quotient * wide(len(rows)) != total)).astype(wide)
        return quotient.astype(dtype)
    total = rows[0].copy()
    for row in rows[1:]:
        total = _combine(total, row, op)
    return total


def round_to(values: Array, dtype: np.dtype[Any]) -> Array:
    """Round fp32 or fp64 values to `dtype` as torch's cast does."""
    if dtype == values.dtype:
        return values
    if dtype.name.startswith("float8"):
        return _round_to_float8(values, dtype)
    return values.astype(dtype)


def _round_to_float8(values: Array, dtype: np.dtype[Any]) -> Array:
    try:
        import torch
    except ImportError:
        if dtype.name == "float8_e4m3fn":
            limit = float(ml_dtypes.finfo(dtype).max)
            values = np.where(np.isnan(values), values, np.clip(values, -limit, limit))
        return values.astype(dtype)
    flat = torch.from_numpy(np.ascontiguousarray(values).reshape(-1))
    bits = flat.to(getattr(torch, dtype.name)).view(torch.uint8).numpy()
    return bits.view(dtype).reshape(values.shape)


def same_bits(got: Array, want: Array) -> bool:
    return difference(got, want) == ""


def difference(got: Array, want: Array) -> str:
    """Empty if the arrays hold the same bits (any NaN equals any NaN), else where and how they differ."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"got {got.dtype}{got.shape}, want {want.dtype}{want.shape}"
    if got.tobytes() == want.tobytes():
        return ""
    if got.dtype.kind == "c":
        part = np.float32 if got.dtype == np.complex64 else np.float64
        got, want = np.ascontiguousarray(got).view(part), np.ascontiguousarray(want).view(part)
    size = got.dtype.itemsize
    differ = (_bits(got) != _bits(want)).reshape(-1, size).any(axis=1)
    if not differ.any():
        return ""
    got, want = got.reshape(-1), want.reshape(-1)
    if got.dtype.kind not in "iub":
        with np.errstate(invalid="ignore"):
            differ &= ~((got != got) & (want != want))
    where = np.flatnonzero(differ)
    if not len(where):
        return ""
    i = where[0]
    return (
        f"{len(where)} of {got.size} differ, first at {i}: got {got[i]!r} ({_bits(got[i : i + 1])}), "
        f"want {want[i]!r} ({_bits(want[i : i + 1])})"
    )


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
