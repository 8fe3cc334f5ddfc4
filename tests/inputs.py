"""Inputs that show the order and the place of every rounding, the same in every process.

Each element belongs, alike on all ranks, to one family: full mantissas in a narrow range of exponents, or in
all of it; values that cancel between ranks; values whose partial sums overflow a narrow type though the
average does not; subnormals; zeros, infinities and NaNs. Exactly summable inputs could not see the order of
a sum, so there are none.

A row is a window, chosen by the seed, of an endless repetition of one page per dtype and rank: cheap, and
with a prime period, so that no two chunks are alike.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from oracle import numpy_dtype

Array = np.ndarray[Any, Any]


class Format(NamedTuple):
    """The bit layout of a floating type; `top` is the largest finite exponent field."""

    bits: type[np.unsignedinteger[Any]]
    exponent: int
    mantissa: int
    top: int


FORMATS = {
    "float32": Format(np.uint32, 8, 23, 254),
    "float64": Format(np.uint64, 11, 52, 2046),
    "float16": Format(np.uint16, 5, 10, 30),
    "bfloat16": Format(np.uint16, 8, 7, 254),
    "float8_e4m3fn": Format(np.uint8, 4, 3, 14),
    "float8_e5m2": Format(np.uint8, 5, 2, 30),
}
PERIOD = 8191
PLAIN, WIDE, CANCELLING, HUGE, TINY, SPECIAL = range(6)


def row(dtype: str, count: int, rank: int, seed: int) -> Array:
    """The `count` elements of one rank."""
    return window(page(dtype, rank), count, seed)


def window(twice: Array, count: int, seed: int) -> Array:
    """A new array of `count` elements from a place that the seed says; `twice` is a page repeated once."""
    start = seed * 7919 % PERIOD
    if count > PERIOD:
        return np.resize(twice[start : start + PERIOD], count)
    return twice[start : start + count].copy()


@functools.cache
def page(dtype: str, rank: int) -> Array:
    """The elements of one rank, repeated once so that every window of PERIOD elements is a slice."""
    return np.tile(_page(dtype, PERIOD, rank), 2)


def _page(dtype: str, count: int, rank: int) -> Array:
    shared = np.random.default_rng(1)
    own = np.random.default_rng([2, rank])
    if dtype in FORMATS:
        return _floats(dtype, count, rank, shared, own)
    if dtype.startswith("complex"):
        part = "float32" if dtype == "complex64" else "float64"
        return _floats(part, 2 * count, rank, shared, own).view(numpy_dtype(dtype))
    if dtype == "bool":
        return own.integers(0, 2, count).astype(np.bool_)
    return _integers(numpy_dtype(dtype), count, shared, own)


def rows(dtype: str, count: int, world: int, seed: int) -> list[Array]:
    return [row(dtype, count, rank, seed) for rank in range(world)]


def _patterns(
    form: Format, rng: np.random.Generator, count: int, low: int, high: int, *, positive: bool
) -> Array:
    """Random sign and mantissa under an exponent field within [low, high], as unsigned integers."""
    exponent = rng.integers(max(low, 0), min(high, form.top), count, dtype=np.uint64, endpoint=True)
    mantissa = rng.integers(0, 2**form.mantissa, count, dtype=np.uint64)
    sign = rng.integers(0, 2, count, dtype=np.uint64) * np.uint64(not positive)
    shift = np.uint64(form.mantissa)
    return ((sign << np.uint64(form.exponent + form.mantissa)) | (exponent << shift) | mantissa).astype(
        form.bits
    )


def _floats(
    dtype: str, count: int, rank: int, shared: np.random.Generator, own: np.random.Generator
) -> Array:
    form = FORMATS[dtype]
    middle = form.top // 2
    spread = min(6, form.exponent - 1)
    family = shared.choice(6, count, p=[0.4, 0.15, 0.2, 0.1, 0.1, 0.05])
    base = _patterns(form, shared, count, middle - spread, middle + spread, positive=False)
    values = _patterns(form, own, count, middle - spread, middle + spread, positive=False)

    wide = _patterns(form, own, count, 1, form.top - 1, positive=False)
    values = np.where(family == WIDE, wide, values)

    # Rank 1 is rank 0 negated but for its last bits; later ranks are small against the two.
    sign = form.bits(1 << (form.exponent + form.mantissa))
    near = base ^ own.integers(0, 4, count).astype(form.bits) ^ (sign if rank % 2 else form.bits(0))
    small = _patterns(form, own, count, middle - 3 * spread, middle - spread, positive=False)
    values = np.where(family == CANCELLING, near if rank < 2 else small, values)

    huge = _patterns(form, own, count, form.top, form.top, positive=True)
    values = np.where(family == HUGE, huge, values)
    values = np.where(family == TINY, _patterns(form, own, count, 0, 1, positive=False), values)
    values = values.astype(form.bits).view(numpy_dtype(dtype))

    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0], np.float32).astype(numpy_dtype(dtype))
    with np.errstate(invalid="ignore"):
        return np.where(family == SPECIAL, special[own.integers(0, len(special), count)], values)


def _integers(
    dtype: np.dtype[Any], count: int, shared: np.random.Generator, own: np.random.Generator
) -> Array:
    limits = np.iinfo(dtype)
    family = shared.choice(3, count, p=[0.4, 0.3, 0.3])
    values = np.frombuffer(own.bytes(count * dtype.itemsize), dtype)
    extremes = np.array(
        [limits.min, limits.max, limits.min + 1, limits.max - 1, 0, 1, limits.max // 2], dtype
    )
    small = own.integers(-9 if limits.min < 0 else 0, 9, count, endpoint=True).astype(dtype)
    values = np.where(family == 1, extremes[own.integers(0, len(extremes), count)], values)
    return np.where(family == 2, small, values)
