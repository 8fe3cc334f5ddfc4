"""Inputs whose reduction is exact in every order, so that ``#wrong`` counts real errors and never rounding.

Each element comes from a hash of (seed, rank, index). For floating sums the summands of one element are
small integers times one power of two, so that every partial sum is representable; products are powers of
two with one full significand among them; sums and products of integers do not overflow; minimum, maximum
and moves take any finite value.

The index is taken modulo a prime larger than any chunk: data that arrives at a wrong offset differs, and a
gigabyte is filled and checked from a table of a few hundred thousand elements that stays in cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from collectives.bench.cases import COLLECTIVES, INTEGERS, Array, Case, numpy_dtype

PERIOD = 262139  # prime
_WINDOW = 6  # factors other than one in a floating product: 2^-6 .. 2^6 is normal in every dtype
_PRECISION = {  # bits of the significand, the implicit one included
    "float64": 53,
    "float32": 24,
    "float16": 11,
    "bfloat16": 8,
    "float8_e4m3fn": 4,
    "float8_e5m2": 3,
}
_REALS = {"complex64": "float32", "complex128": "float64"}  # what each half is
_LOGICAL = {
    "sum": "or",
    "max": "or",
    "bor": "or",
    "product": "and",
    "min": "and",
    "band": "and",
    "bxor": "xor",
}
_ELEMENTWISE: dict[str, Callable[[Any, Any], Any]] = {
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def _hash(seed: int, rank: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """64 mixed bits for each index below `count` (a multiply-xorshift mixer over a counter)."""
    key = (seed * 0x9E3779B97F4A7C15 + (rank + 1) * 0xD1B54A32D192ED03) & (2**64 - 1)
    z = np.arange(count, dtype=np.uint64) * np.uint64(0x2545F4914F6CDD1D) + np.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    return z ^ (z >> np.uint64(31))


def _signed(bits: Array, bound: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Integers in [-bound, bound] from hashed bits."""
    return (bits % np.uint64(2 * bound + 1)).astype(np.int64) - bound


def _finite(bits: Array, dtype: str) -> Array:
    """Any bit pattern of `dtype` but zeros (of two that are equal either may win), infinities and NaN."""
    kind = numpy_dtype(dtype)
    values = bits.astype(np.dtype(f"u{kind.itemsize}")).view(kind)
    with np.errstate(invalid="ignore"):  # signalling NaN among the patterns
        usable = np.isfinite(values) & (values != 0)
    return np.asarray(np.where(usable, values, np.ones_like(values)))


def _summands(seed: int, rank: int, world_size: int, dtype: str, count: int) -> Array:
    """Integers times a power of two that all ranks share; W of the largest still fit the significand."""
    room = 1 << _PRECISION[dtype]
    bound = max(1, room // world_size)
    shared = _hash(seed, -1, count)
    value = _signed(_hash(seed, rank, count) >> np.uint64(8), bound)
    # More ranks than the significand can count: only `room` of them, another set for each element, are not
    # zero.
    place = (shared >> np.uint64(8)) % np.uint64(world_size)
    value[(place + np.uint64(rank)) % np.uint64(world_size) >= np.uint64(room)] = 0
    scale = (shared % np.uint64(7)).astype(np.int64) - 3
    return np.asarray(np.ldexp(value.astype(np.float64), scale))


def _factors(seed: int, rank: int, world_size: int, dtype: str, count: int) -> Array:
    """Signed powers of two from 1/2 to 2; one rank of each element also brings a random significand."""
    bits, shared = _hash(seed, rank, count), _hash(seed, -1, count)
    place = ((shared >> np.uint64(8)) + np.uint64(rank)) % np.uint64(world_size)
    exponent = (bits % np.uint64(3)).astype(np.int64) - 1
    exponent[place >= np.uint64(_WINDOW)] = 0
    fraction = bits >> np.uint64(64 - (_PRECISION[dtype] - 1))
    significand = 1.0 + np.ldexp(fraction.astype(np.float64), 1 - _PRECISION[dtype])
    significand[place != 0] = 1.0
    sign = np.where(bits & np.uint64(8), -1.0, 1.0)
    return sign * np.ldexp(significand, exponent)


def _integers(seed: int, rank: int, world_size: int, dtype: str, op: str, count: int) -> Array:
    """Integers whose sum or product fits: what happens beyond that is not agreed on between peers."""
    kind = numpy_dtype(dtype)
    most = min(int(np.iinfo(kind).max), 1 << 62)
    bits = _hash(seed, rank, count)
    place = ((_hash(seed, -1, count) >> np.uint64(8)) + np.uint64(rank)) % np.uint64(world_size)
    if op == "product":
        # One odd factor for each element, up to three twos, and signs.
        odd = (bits >> np.uint64(8)) % np.uint64(most // 16) * np.uint64(2) + np.uint64(1)
        two = np.where(place < 4, np.uint64(1) + (bits & np.uint64(1)), np.uint64(1))
        value = np.where(place == 0, odd, two).astype(np.int64)
        return np.where(bits & np.uint64(2), -value if kind.kind == "i" else value, value).astype(kind)
    bound = max(1, most // world_size)
    value = _signed(bits, bound) if kind.kind == "i" else (bits % np.uint64(bound + 1)).astype(np.int64)
    value[place >= np.uint64(most)] = 0
    return value.astype(kind)


def table(
    collective: str, dtype: str, op: str, rank: int, world_size: int, seed: int, count: int = PERIOD
) -> Array:
    """What `rank` contributes at indices 0 .. count - 1, as an array of `dtype`."""
    kind = numpy_dtype(dtype)
    if dtype in _REALS:  # pairs of reals, which no complex operator mixes
        return table(collective, _REALS[dtype], op, rank, world_size, seed, 2 * count).view(kind)
    reduces = COLLECTIVES[collective].reduces
    bits = _hash(seed, rank, count)
    if dtype == "bool":
        return (bits & np.uint64(1)).astype(np.bool_)
    if dtype in INTEGERS and reduces and op in ("sum", "avg", "product"):
        return _integers(seed, rank, world_size, dtype, op, count)
    if dtype in INTEGERS:
        return bits.astype(np.dtype(f"u{kind.itemsize}")).view(kind)
    if reduces and op in ("sum", "avg"):
        return _summands(seed, rank, world_size, dtype, count).astype(kind)
    if reduces and op == "product":
        return _factors(seed, rank, world_size, dtype, count).astype(kind)
    return _finite(bits, dtype)


def reduced_table(dtype: str, op: str, world_size: int, seed: int, count: int = PERIOD) -> Array:
    """The one correct reduction of all ranks' tables, as an array of `dtype`."""
    kind = numpy_dtype(dtype)
    if dtype in _REALS:
        return reduced_table(_REALS[dtype], op, world_size, seed, 2 * count).view(kind)
    inputs = [table("all_reduce", dtype, op, rank, world_size, seed, count) for rank in range(world_size)]
    combine: Callable[[Any, Any], Any]
    if dtype == "bool":
        combine = {"or": np.logical_or, "and": np.logical_and, "xor": np.logical_xor}[_LOGICAL[op]]
        return np.asarray(reduce(combine, inputs))
    if op in _ELEMENTWISE:
        return np.asarray(reduce(_ELEMENTWISE[op], inputs))
    combine = np.multiply if op == "product" else np.add
    if dtype in INTEGERS:
        if op == "avg":
            total = reduce(np.add, [x.astype(np.int64) for x in inputs])
            return np.asarray(np.sign(total) * (np.abs(total) // world_size)).astype(kind)
        return np.asarray(reduce(combine, inputs))
    exact = reduce(combine, [x.astype(np.float64) for x in inputs])
    if op == "avg":
        # The sum is exact in the accumulator; the division rounds there, and once more to the dtype.
        accumulator = np.dtype(np.float64 if dtype == "float64" else np.float32)
        exact = np.divide(exact.astype(accumulator), np.array(world_size, accumulator))
    return np.asarray(exact).astype(kind)


def fill(destination: Array, source: Array, start: int = 0) -> None:
    """Write the periodic sequence of `source` to 1-d `destination`, whose first element has index `start`."""
    period, position = len(source), 0
    while position < len(destination):
        phase = (start + position) % period
        length = min(period - phase, len(destination) - position)
        destination[position : position + length] = source[phase : phase + length]
        position += length


def count_wrong(result: Array, source: Array, start: int = 0) -> int:
    """Elements of 1-d `result` whose bits differ from the periodic sequence of `source` from `start` on."""
    # Complex has no unsigned integer of its size: compare its halves.
    width = result.dtype.itemsize
    word = np.dtype(f"u{min(width, 8)}")
    seen, wanted = result.view(word), source.view(word)
    lanes = width // word.itemsize
    period, position, wrong = len(source), 0, 0
    while position < len(result):
        phase = (start + position) % period
        length = min(period - phase, len(result) - position)
        differs = (
            seen[position * lanes : (position + length) * lanes]
            != wanted[phase * lanes : (phase + length) * lanes]
        )
        wrong += int(np.count_nonzero(differs.reshape(length, lanes).any(axis=1) if lanes > 1 else differs))
        position += length
    return wrong


class Verifier:
    """Fills the input and judges the output of one case on one rank.

    Args:
        case: the call; the contents of its arrays do not matter.
        rank, world_size: of the caller.
        seed: another seed gives other data, so that a stale result does not pass.
    """

    def __init__(self, case: Case, rank: int, world_size: int, seed: int) -> None:
        self._case, facts = case, COLLECTIVES[case.collective]
        length = min(PERIOD, max(1, len(case.x), len(case.out)))

        def contribution(r: int) -> Array:
            return table(case.collective, case.dtype, case.op, r, world_size, seed, length)

        self._own = contribution(rank)
        # What the output is made of, in order. Of inputs with a part for each rank it is this rank's.
        self._expected: list[Array] = []
        if facts.reduces:
            self._expected = [reduced_table(case.dtype, case.op, world_size, seed, length)]
        elif facts.gets(rank, case.root):
            self._expected = [contribution(r) for r in facts.senders(rank, world_size, case.root)]
        self._looks = facts.gets(rank, case.root)
        self._start = rank * (len(case.x) // world_size) if facts.parts_in else 0

    def prepare(self) -> None:
        """Write a fresh input, and garbage to what else the output covers."""
        self._case.out.view(np.uint8).fill(0x5A)
        fill(self._case.x, self._own)

    def wrong(self) -> int:
        """How many elements of the output are not what the collective promises; 0 where it promises none."""
        if not self._looks:
            return 0
        blocks = np.split(self._case.out, len(self._expected))
        pairs = zip(blocks, self._expected, strict=True)
        return sum(count_wrong(block, expected, self._start) for block, expected in pairs)
