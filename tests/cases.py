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
    "reduce": ("inline", "one_shot", "two_shot"),
    "all_gather": ("inline", "one_shot", *DIRECT),
    "gather": ("inline", "one_shot", *DIRECT),
    "reduce_scatter": ("inline", "two_shot"),
    "scatter": ("inline", "one_shot", *DIRECT),
    "all_to_all": ("inline", "one_shot", *DIRECT),
    "all_to_all_v": ("one_shot",),
    "broadcast": ("inline", "one_shot", *DIRECT),
}
COLLECTIVES = tuple(ALGORITHMS)
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")
MOVES = tuple(name for name in COLLECTIVES if name not in REDUCTIONS)
ROOTED = ("reduce", "gather", "scatter", "broadcast")
# Those whose input, and whose output, holds a part for each rank.
PARTS_IN = ("reduce_scatter", "scatter", "all_to_all")
PARTS_OUT = ("all_gather", "gather", "all_to_all")
INLINE_BYTES = 40
GUARD = 96


def factor(rank: int) -> float:
    """What a rank multiplies its input by in a premul_sum: neither exact in float32 nor in float64."""
    return (rank % 3 - 1.3) / 3


@dataclass(frozen=True)
class Case:
    """`count` elements per rank: of the tensor, or of one part where one side holds a part for each rank.

    all_to_all_v: of parts that are of 0 to 4 halves of that.
    """

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

    def part(self, sender: int, receiver: int) -> int:
        """all_to_all_v: the elements that `sender` has for `receiver`."""
        return (3 * sender + 7 * receiver + self.seed) % 5 * self.count // 2

    def sent(self, world: int, rank: int) -> list[int]:
        return [self.part(rank, peer) for peer in range(world)]

    def received(self, world: int, rank: int) -> list[int]:
        return [self.part(peer, rank) for peer in range(world)]

    def input_count(self, world: int, rank: int) -> int:
        if self.collective == "all_to_all_v":
            return sum(self.sent(world, rank))
        return self.count * (world if self.collective in PARTS_IN else 1)

    def output_count(self, world: int, rank: int) -> int:
        if self.collective == "all_to_all_v":
            return sum(self.received(world, rank))
        return self.count * (world if self.collective in PARTS_OUT else 1)

    def inputs(self, world: int) -> list[Array]:
        return [
            inputs.row(self.dtype, self.input_count(world, rank), rank, self.seed) for rank in range(world)
        ]

    def payload(self, world: int) -> int:
        """The bytes that one rank contributes, by which the library chooses an algorithm."""
        return self.input_count(world, 0) * oracle.numpy_dtype(self.dtype).itemsize

    def algorithms(self, world: int) -> tuple[str, ...]:
        """Those that can serve the call, besides None for the library's own choice."""
        inline = self.payload(world) <= INLINE_BYTES and self.op != "premul_sum"
        return tuple(name for name in ALGORITHMS[self.collective] if name != "inline" or inline)


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


def perform(comm: Any, case: Case) -> Array | None:
    """Make this rank's arrays, call, check guards, inputs and receipt, and return a copy of the output, if any."""
    world, rank, name = comm.world_size, comm.rank, case.collective
    gives, gets = name != "scatter" or rank == case.root, _gets(case, rank)
    source = inputs.row(case.dtype, case.input_count(world, rank), rank, case.seed)
    x = Guarded(case.dtype, len(source), case.offset, case.symmetric)
    out = Guarded(case.dtype, case.output_count(world, rank), case.out_offset, case.symmetric)
    given, taken = x.array, out.array
    mine = slice(rank * case.count, (rank + 1) * case.count)
    if name == "broadcast" or (case.in_place and gets and name in ("all_reduce", "reduce", "all_to_all")):
        taken = given
    elif case.in_place and gets and name in ("all_gather", "gather"):
        given = taken[mine]
    elif case.in_place and gives and name in ("reduce_scatter", "scatter"):
        taken = given[mine]
    given[:] = source

    options: dict[str, Any] = {"algorithm": case.algorithm}
    if name in REDUCTIONS:
        options["op"] = case.op
        if case.op == "premul_sum":
            options["factor"] = factor(rank)
    if name in ROOTED:
        options["root"] = case.root
    if name == "all_to_all_v":
        options |= {"send_counts": case.sent(world, rank), "recv_counts": case.received(world, rank)}
    if name != "broadcast":
        options["out"] = taken
    call = getattr(comm, name.removesuffix("_v"))
    result = call(given if gives else None, **options)

    assert result is (taken if gets else None)
    x.check()
    out.check()
    if not gets or not np.may_share_memory(given, taken):
        assert oracle.difference(given, source) == "", "the input of an out-of-place call changed"
    if not gets:
        assert (taken.view(np.uint8) == 0xA5).all(), "a rank that gets no result was written to"
    _check_receipt(comm, case)
    return taken.copy() if gets else None


def _gets(case: Case, rank: int) -> bool:
    return case.collective not in ("reduce", "gather") or rank == case.root


def _check_receipt(comm: Any, case: Case) -> None:
    receipt = comm.last_receipt()
    assert receipt.collective == case.collective and receipt.dtype == case.dtype, receipt
    if case.algorithm is not None and comm.world_size > 1:
        # What is overwritten while it is read cannot be read directly.
        staged = (
            case.algorithm == "direct" and case.collective == "all_to_all" and case.in_place and case.count
        )
        assert receipt.algorithm == ("one_shot" if staged else case.algorithm), receipt
    assert receipt.order == "rank", receipt
    assert receipt.op == (case.op if case.collective in REDUCTIONS else None), receipt
    size = oracle.numpy_dtype(case.dtype).itemsize
    sides = [count(comm.world_size, comm.rank) for count in (case.input_count, case.output_count)]
    assert receipt.nbytes == max(sides) * size, receipt
    assert receipt.count == (sides[0] if case.collective == "all_to_all_v" else case.count), receipt


def perform_all(comm: Any, cases: list[Case]) -> list[Array | None]:
    results = []
    for case in cases:
        try:
            results.append(perform(comm, case))
        except Exception as error:
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(str(case))
            raise
    return results


def expected(case: Case, world: int) -> list[Array | None]:
    """The output of each rank."""
    count = case.input_count(world, 0)
    if case.collective in REDUCTIONS:
        total = inputs.window(_reduced_page(case.dtype, case.op, world), count, case.seed)
        if case.collective == "reduce_scatter":
            return list(np.split(total, world))
        return [total if _gets(case, rank) else None for rank in range(world)]
    given = case.inputs(world)
    if case.collective in ("all_gather", "gather"):
        return [np.concatenate(given) if _gets(case, rank) else None for rank in range(world)]
    if case.collective == "broadcast":
        return [given[case.root]] * world
    if case.collective == "scatter":
        return list(np.split(given[case.root], world))
    parts = [
        np.split(given[rank], world)
        if case.collective == "all_to_all"
        else np.split(given[rank], np.cumsum(case.sent(world, rank))[:-1])
        for rank in range(world)
    ]
    return [np.concatenate([parts[peer][rank] for peer in range(world)]) for rank in range(world)]


@functools.cache
def _reduced_page(dtype: str, op: str, world: int) -> Array:
    # Reductions work element by element, so the reference of a window is a window of the reference.
    pages = [inputs.page(dtype, rank) for rank in range(world)]
    return oracle.reduce(pages, op, [factor(rank) for rank in range(world)])


def check(cases: list[Case], world: int, results: list[list[Array | None]]) -> None:
    """Compare every rank's outputs of `perform_all` with the reference, bit for bit."""
    for i, case in enumerate(cases):
        for rank, want in enumerate(expected(case, world)):
            got = results[rank][i]
            if want is None or got is None:
                assert got is want, f"rank {rank} of {world}, {case}: got {got}"
                continue
            found = oracle.difference(got, want)
            assert found == "", f"rank {rank} of {world}, {case}: {found}"
