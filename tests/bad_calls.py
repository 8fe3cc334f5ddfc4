"""Wrong calls by name, for test_bad_input.py: what ranks disagree on, and what one rank must refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
from numpy.lib.stride_tricks import as_strided

# name: (the call of most ranks, how that of one rank differs, words that the error must hold)
MISMATCHES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "op": ({"op": "sum"}, {"op": "max"}, ("sum", "max")),
    "dtype": ({"dtype": "float32"}, {"dtype": "float16"}, ("float32", "float16")),
    "dtype of one size": ({"dtype": "int32"}, {"dtype": "float32"}, ("int32", "float32")),
    "count": ({"count": 100}, {"count": 200}, ("100", "200")),
    "count and algorithm": ({"count": 5}, {"count": 500_000}, ("5", "500000")),
    "empty": ({"count": 0}, {"count": 7}, ("0", "7")),
    "root": ({"collective": "broadcast", "root": 0}, {"root": 1}, ("broadcast", "0", "1")),
    "root of reduce": ({"collective": "reduce", "root": 0}, {"root": 1}, ("reduce", "root 0", "root 1")),
    "root of gather": ({"collective": "gather", "root": 0}, {"root": 1}, ("root 0", "root 1")),
    "root of scatter": (
        {"collective": "scatter", "root": 1, "count": 70_000},
        {"root": 0},
        ("root 0", "root 1"),
    ),
    "reduce and all_reduce": ({"count": 8}, {"collective": "reduce"}, ("all_reduce", "root 0")),
    "count of gather": ({"collective": "gather", "count": 9000}, {"count": 9001}, ("9000", "9001")),
    "count of all_to_all": (
        {"collective": "all_to_all", "count": 300},
        {"count": 600},
        ("all_to_all", "elements"),
    ),
    "premul_sum and sum": (
        {"op": "premul_sum", "factor": 2.0},
        {"op": "sum", "factor": None},
        ("premul_sum",),
    ),
    "collective": ({"count": 8}, {"collective": "all_gather"}, ("all_reduce", "all_gather")),
    "barrier": ({"count": 8}, {"collective": "barrier"}, ("all_reduce", "barrier")),
    "algorithm": (
        {"count": 5000, "algorithm": "one_shot"},
        {"algorithm": "two_shot"},
        ("one_shot", "two_shot"),
    ),
    "large": ({"count": 300_000, "op": "min"}, {"op": "product"}, ("min", "product")),
    "shard": (
        {"collective": "reduce_scatter", "count": 120, "op": "sum"},
        {"count": 240},
        ("reduce_scatter",),
    ),
}


def read_only() -> np.ndarray[Any, Any]:
    x = np.zeros(10, np.float32)
    x.flags.writeable = False
    return x


def f32(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.float32)


class Unexportable:
    """Looks like an array, but its memory cannot be had."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("no")

    def __dlpack_device__(self) -> Any:
        return (1, 0)


def overlapping(comm: Any) -> Any:
    base = f32(20)
    return comm.all_reduce(base[:10], base[5:15])


def overlapping_gather(comm: Any) -> Any:
    base = f32(10 * comm.world_size + 1)
    start = comm.rank * 10 + 1
    return comm.all_gather(base[start : start + 10], base[:-1])


def overlapping_itself(comm: Any) -> Any:
    window = as_strided(f32(20), (4, 4), (4, 4))
    return comm.all_reduce(window)


def overlapping_gather_to_root(comm: Any) -> Any:
    base = f32(10 * comm.world_size + 1)
    start = comm.rank * 10 + 1
    return comm.gather(base[start : start + 10], comm.rank, base[:-1])


def counted(comm: Any, send_counts: Any, recv_counts: Any, out: Any = None) -> Any:
    """all_to_all of an array with one row for each rank."""
    return comm.all_to_all(f32(comm.world_size), out, send_counts=send_counts, recv_counts=recv_counts)


def counted_in_place(comm: Any) -> Any:
    x = f32(comm.world_size)
    ones = [1] * comm.world_size
    return comm.all_to_all(x, x, send_counts=ones, recv_counts=ones)


Bad = Callable[[Any], Any]
TYPE, VALUE, EITHER = ("TypeError",), ("ValueError",), ("TypeError", "ValueError")
# name: (the bad call, the errors it may raise, the collective that the other ranks call meanwhile)
BAD_CALLS: dict[str, tuple[Bad, tuple[str, ...], str]] = {
    "object dtype": (lambda c: c.all_reduce(np.array([None] * 10)), TYPE, "all_reduce"),
    "datetime64": (lambda c: c.all_reduce(np.zeros(10, "datetime64[s]")), TYPE, "all_reduce"),
    "string dtype": (lambda c: c.all_reduce(np.array(["a"] * 10)), TYPE, "all_reduce"),
    "bytes dtype": (lambda c: c.all_reduce(np.array([b"a"] * 10)), TYPE, "all_reduce"),
    "structured": (lambda c: c.all_reduce(np.zeros(10, [("a", "f4"), ("b", "i4")])), TYPE, "all_reduce"),
    "long double": (lambda c: c.all_reduce(np.zeros(10, np.longdouble)), TYPE, "all_reduce"),
    "big endian": (lambda c: c.all_reduce(np.zeros(10, ">f4")), TYPE, "all_reduce"),
    "no array": (lambda c: c.all_reduce("text"), TYPE, "all_reduce"),
    "None": (lambda c: c.all_reduce(None), TYPE, "all_reduce"),
    "a list": (lambda c: c.all_reduce([1.0, 2.0]), TYPE, "all_reduce"),
    "a number": (lambda c: c.all_reduce(1.0), TYPE, "all_reduce"),
    "unexportable": (lambda c: c.all_reduce(Unexportable()), EITHER, "all_reduce"),
    "unknown op": (lambda c: c.all_reduce(f32(10), op="mean"), VALUE, "all_reduce"),
    "op of a wrong type": (lambda c: c.all_reduce(f32(10), op=3), EITHER, "all_reduce"),
    "op with NUL": (lambda c: c.all_reduce(f32(10), op="sum\0"), VALUE, "all_reduce"),
    "unknown algorithm": (lambda c: c.all_reduce(f32(10), algorithm="ring"), VALUE, "all_reduce"),
    "inline too large": (lambda c: c.all_reduce(f32(11), algorithm="inline"), VALUE, "all_reduce"),
    "two_shot all_gather": (lambda c: c.all_gather(f32(10), algorithm="two_shot"), VALUE, "all_gather"),
    "one_shot reduce_scatter": (
        lambda c: c.reduce_scatter(f32(10 * c.world_size), algorithm="one_shot"),
        VALUE,
        "reduce_scatter",
    ),
    "two_shot broadcast": (lambda c: c.broadcast(f32(10), algorithm="two_shot"), VALUE, "broadcast"),
    "band on floats": (lambda c: c.all_reduce(f32(10), op="band"), EITHER, "all_reduce"),
    "bxor on bfloat16": (
        lambda c: c.all_reduce(np.zeros(10, oracle.numpy_dtype("bfloat16")), op="bxor"),
        EITHER,
        "all_reduce",
    ),
    "avg on bool": (lambda c: c.all_reduce(np.zeros(10, bool), op="avg"), EITHER, "all_reduce"),
    "complex product": (lambda c: c.all_reduce(np.zeros(10, "c8"), op="product"), VALUE, "all_reduce"),
    "complex128 max": (
        lambda c: c.reduce_scatter(np.zeros(10 * c.world_size, "c16"), op="max"),
        EITHER,
        "reduce_scatter",
    ),
    "read-only in place": (lambda c: c.all_reduce(read_only()), VALUE, "all_reduce"),
    "read-only out": (lambda c: c.all_reduce(f32(10), read_only()), VALUE, "all_reduce"),
    "read-only broadcast": (
        lambda c: c.broadcast(read_only(), (c.rank + 1) % c.world_size),
        VALUE,
        "broadcast",
    ),
    "bytes": (lambda c: c.all_reduce(b"0123456789"), EITHER, "all_reduce"),
    "overlap": (overlapping, VALUE, "all_reduce"),
    "overlap of all_gather": (overlapping_gather, VALUE, "all_gather"),
    "self-overlap": (overlapping_itself, VALUE, "all_reduce"),
    "stride 0 in place": (lambda c: c.all_reduce(np.broadcast_to(f32(1), (10,))), VALUE, "all_reduce"),
    "stride 0 out": (
        lambda c: c.all_reduce(f32(10), as_strided(f32(1), (10,), (0,))),
        VALUE,
        "all_reduce",
    ),
    "small out": (lambda c: c.all_reduce(f32(10), f32(9)), VALUE, "all_reduce"),
    "large out": (lambda c: c.all_reduce(f32(10), f32(11)), VALUE, "all_reduce"),
    "out of another shape": (lambda c: c.all_reduce(f32(2, 5), f32(5, 2)), VALUE, "all_reduce"),
    "out of another dtype": (lambda c: c.all_reduce(f32(10), np.zeros(10)), EITHER, "all_reduce"),
    "small all_gather out": (
        lambda c: c.all_gather(f32(10), f32(10 * c.world_size - 1)),
        VALUE,
        "all_gather",
    ),
    "large reduce_scatter out": (
        lambda c: c.reduce_scatter(f32(10 * c.world_size), f32(11)),
        VALUE,
        "reduce_scatter",
    ),
    "indivisible": (lambda c: c.reduce_scatter(f32(10 * c.world_size + 1)), VALUE, "reduce_scatter"),
    "0-d reduce_scatter": (lambda c: c.reduce_scatter(np.float32(1).reshape(())), VALUE, "reduce_scatter"),
    "root too large": (lambda c: c.broadcast(f32(10), c.world_size), VALUE, "broadcast"),
    "negative root": (lambda c: c.broadcast(f32(10), -1), VALUE, "broadcast"),
    "huge root": (lambda c: c.broadcast(f32(10), 2**70), VALUE, "broadcast"),
    "root of a wrong type": (lambda c: c.broadcast(f32(10), "0"), EITHER, "broadcast"),
    "premul_sum without factor": (lambda c: c.all_reduce(f32(10), op="premul_sum"), VALUE, "all_reduce"),
    "factor of a sum": (lambda c: c.all_reduce(f32(10), factor=2.0), VALUE, "all_reduce"),
    "factor of a wrong type": (
        lambda c: c.all_reduce(f32(10), op="premul_sum", factor="2"),
        TYPE,
        "all_reduce",
    ),
    "premul_sum of integers": (
        lambda c: c.all_reduce(np.zeros(10, np.int32), op="premul_sum", factor=2),
        VALUE,
        "all_reduce",
    ),
    "inline premul_sum": (
        lambda c: c.all_reduce(f32(2), op="premul_sum", factor=2, algorithm="inline"),
        VALUE,
        "all_reduce",
    ),
    "timeout of zero": (lambda c: c.all_reduce(f32(10), timeout=0), VALUE, "all_reduce"),
    "timeout that never ends": (lambda c: c.broadcast(f32(10), timeout=float("inf")), VALUE, "broadcast"),
    "timeout of a wrong type": (lambda c: c.barrier(timeout="1 s"), TYPE, "barrier"),
    "negative timeout": (lambda c: c.barrier(timeout=-1), VALUE, "barrier"),
    "read-only reduce": (lambda c: c.reduce(read_only(), root=c.rank), VALUE, "reduce"),
    "small reduce out": (lambda c: c.reduce(f32(10), c.rank, out=f32(9)), VALUE, "reduce"),
    "root of reduce": (lambda c: c.reduce(f32(10), c.world_size), VALUE, "reduce"),
    "two_shot gather": (lambda c: c.gather(f32(10), algorithm="two_shot"), VALUE, "gather"),
    "large gather out": (
        lambda c: c.gather(f32(10), c.rank, f32(10 * c.world_size + 1)),
        VALUE,
        "gather",
    ),
    "overlap of gather": (overlapping_gather_to_root, VALUE, "gather"),
    "scatter without out": (lambda c: c.scatter(None, root=(c.rank + 1) % c.world_size), VALUE, "scatter"),
    "scatter of nothing": (lambda c: c.scatter(None, f32(10), c.rank), TYPE, "scatter"),
    "indivisible scatter": (lambda c: c.scatter(f32(10 * c.world_size + 1), root=c.rank), VALUE, "scatter"),
    "large scatter out": (
        lambda c: c.scatter(f32(10 * c.world_size), f32(11), c.rank),
        VALUE,
        "scatter",
    ),
    "indivisible all_to_all": (lambda c: c.all_to_all(f32(10 * c.world_size + 1)), VALUE, "all_to_all"),
    "0-d all_to_all": (lambda c: c.all_to_all(np.float32(1).reshape(())), VALUE, "all_to_all"),
    "small all_to_all out": (
        lambda c: c.all_to_all(f32(10 * c.world_size), f32(10 * c.world_size - 1)),
        VALUE,
        "all_to_all",
    ),
    "one side's counts": (
        lambda c: c.all_to_all(f32(c.world_size), send_counts=[1] * c.world_size),
        VALUE,
        "all_to_all_v",
    ),
    "too few counts": (
        lambda c: counted(c, [1] * (c.world_size - 1), [1] * c.world_size),
        VALUE,
        "all_to_all_v",
    ),
    "negative count": (lambda c: counted(c, [-1] * c.world_size, [1] * c.world_size), VALUE, "all_to_all_v"),
    "count of a wrong type": (
        lambda c: counted(c, [1.5] * c.world_size, [1] * c.world_size),
        VALUE,
        "all_to_all_v",
    ),
    "counts of a wrong type": (lambda c: counted(c, 1, [1] * c.world_size), TYPE, "all_to_all_v"),
    "counts beyond x": (lambda c: counted(c, [2] * c.world_size, [1] * c.world_size), VALUE, "all_to_all_v"),
    "counts beyond memory": (
        lambda c: counted(c, [1] * c.world_size, [2**62] * c.world_size),
        VALUE,
        "all_to_all_v",
    ),
    "counts beyond out": (
        lambda c: counted(c, [1] * c.world_size, [2] * c.world_size, f32(c.world_size)),
        VALUE,
        "all_to_all_v",
    ),
    "all_to_all_v in place": (counted_in_place, VALUE, "all_to_all_v"),
}


# In a world of one these are right: rank 0 is the root, and everything divides by 1.
NEED_PEERS = {
    "read-only broadcast",
    "indivisible",
    "scatter without out",
    "indivisible scatter",
    "indivisible all_to_all",
}
