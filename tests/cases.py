"""One collective call as data: how to make its arrays, how to perform it, and what it must give."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import time
from dataclasses import dataclass
from typing import Any

import inputs
import numpy as np
import oracle

Array = np.ndarray[Any, Any]
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


@functools.cache
def may_pull() -> bool:
    """Whether this system lets a process read another one's memory, which the algorithm `direct` needs."""
    libc = ctypes.CDLL(None, use_errno=True)
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    word = ctypes.create_string_buffer(b"word")
    into = ctypes.create_string_buffer(4)

    class Span(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    here, there = Span(ctypes.addressof(into), 4), Span(ctypes.addressof(word), 4)
    moved = libc.process_vm_readv(child, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return bool(moved == 4)


DIRECT = ("direct",) if may_pull() else ()
ALGORITHMS = {
    "all_reduce": ("inline", "one_shot", "two_shot"),
    "all_gather": ("inline", "one_shot", *DIRECT),
    "reduce_scatter": ("inline", "two_shot"),
    "broadcast": ("inline", "one_shot", *DIRECT),
}
INLINE_BYTES = 40
GUARD = 96


@dataclass(frozen=True)
class Case:
    """`count` elements per rank: of the tensor, or of one rank's shard for all_gather and reduce_scatter."""

    collective: str
    dtype: str
    count: int
    op: str = "sum"
    algorithm: str | None = None
    in_place: bool = False
    offset: int = 0
    out_offset: int = 0
    root: int = 0
    seed: int = 0
    symmetric: bool = False

    def input_count(self, world: int) -> int:
        return self.count * world if self.collective == "reduce_scatter" else self.count

    def output_count(self, world: int) -> int:
        return self.count * world if self.collective == "all_gather" else self.count

    def payload(self, world: int) -> int:
        """The bytes that one rank contributes, by which the library chooses an algorithm."""
        return self.input_count(world) * oracle.numpy_dtype(self.dtype).itemsize


class Guarded:
    """An array that starts at any byte, with guard bytes around it."""

    def __init__(self, dtype: str, count: int, offset: int, symmetric: bool = False):
        import collectives

        size = count * oracle.numpy_dtype(dtype).itemsize
        self.buffer = (collectives.empty if symmetric else np.empty)(size + 2 * GUARD + offset, np.uint8)
        self.buffer[:] = 0xA5
        # The base of the buffer is 16-byte aligned at best by chance: count the offset from a 64-byte line.
        start = GUARD - 63 + (-(self.buffer.ctypes.data + GUARD - 63)) % 64 + offset
        self.inside = slice(start, start + size)
        self.array = self.buffer[self.inside].view(oracle.numpy_dtype(dtype))

    def check(self) -> None:
        outside = np.ones(len(self.buffer), bool)
        outside[self.inside] = False
        written = np.flatnonzero((self.buffer != 0xA5) & outside)
        assert not len(written), f"bytes {written[:8]} outside of the array {self.inside} were written"


def perform(comm: Any, case: Case) -> Array:
    """Make this rank's arrays, call, check guards, inputs and receipt, and return a copy of the output."""
    world, rank = comm.world_size, comm.rank
    source = inputs.row(case.dtype, case.input_count(world), rank, case.seed)
    x = Guarded(case.dtype, len(source), case.offset, case.symmetric)
    out = Guarded(case.dtype, case.output_count(world), case.out_offset, case.symmetric)
    call = getattr(comm, case.collective)
    forced = {"algorithm": case.algorithm}
    reduces = {"op": case.op} if case.collective in ("all_reduce", "reduce_scatter") else {}

    if case.collective == "broadcast":
        out = x
        out.array[:] = source
        result = call(out.array, case.root, **forced)
    elif case.collective == "all_reduce" and case.in_place:
        out = x
        out.array[:] = source
        result = call(out.array, **reduces, **forced)
    elif case.in_place and case.collective == "all_gather":
        shard = out.array[rank * case.count : (rank + 1) * case.count]
        shard[:] = source
        result = call(shard, out.array, **forced)
    elif case.in_place and case.collective == "reduce_scatter":
        x.array[:] = source
        shard = x.array[rank * case.count : (rank + 1) * case.count]
        result = call(x.array, shard, **reduces, **forced)
        x.check()
        _check_receipt(comm, case)
        assert result is shard
        return shard.copy()
    else:
        x.array[:] = source
        result = call(x.array, out.array, **reduces, **forced)
        assert oracle.difference(x.array, source) == "", "the input of an out-of-place call changed"
        x.check()
    assert result is out.array
    out.check()
    _check_receipt(comm, case)
    return out.array.copy()


def _check_receipt(comm: Any, case: Case) -> None:
    receipt = comm.last_receipt()
    assert receipt.collective == case.collective and receipt.dtype == case.dtype, receipt
    if case.algorithm is not None and comm.world_size > 1:
        assert receipt.algorithm == case.algorithm, receipt
    if case.collective in ("all_reduce", "reduce_scatter"):
        assert receipt.op == case.op and receipt.order == "rank", receipt
    if case.collective in ("all_reduce", "broadcast"):
        assert receipt.count == case.count, receipt
        assert receipt.nbytes == case.count * oracle.numpy_dtype(case.dtype).itemsize, receipt


def perform_all(comm: Any, cases: list[Case]) -> list[Array]:
    results = []
    for case in cases:
        try:
            results.append(perform(comm, case))
        except Exception as error:
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(str(case))
            raise
    return results


def expected(case: Case, world: int) -> list[Array]:
    """The output of each rank."""
    count = case.input_count(world)
    if case.collective == "all_gather":
        return [np.concatenate(inputs.rows(case.dtype, count, world, case.seed))] * world
    if case.collective == "broadcast":
        return [inputs.row(case.dtype, count, case.root, case.seed)] * world
    total = inputs.window(_reduced_page(case.dtype, case.op, world), count, case.seed)
    return [total] * world if case.collective == "all_reduce" else list(np.split(total, world))


@functools.cache
def _reduced_page(dtype: str, op: str, world: int) -> Array:
    # Reductions work element by element, so the reference of a window is a window of the reference.
    return oracle.reduce([inputs.page(dtype, rank) for rank in range(world)], op)


def check(cases: list[Case], world: int, results: list[list[Array]]) -> None:
    """Compare every rank's outputs of `perform_all` with the reference, bit for bit."""
    for i, case in enumerate(cases):
        for rank, want in enumerate(expected(case, world)):
            found = oracle.difference(results[rank][i], want)
            assert found == "", f"rank {rank} of {world}, {case}: {found}"


def forcible(collective: str, payload: int) -> tuple[str, ...]:
    """The algorithms that can serve a call, besides None for the library's own choice."""
    return tuple(name for name in ALGORITHMS[collective] if name != "inline" or payload <= INLINE_BYTES)
