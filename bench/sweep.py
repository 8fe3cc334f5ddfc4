"""The measurement of one row: check, warm up, time in interleaved rounds, check again.

A contender's time in one round is a loop of calls between two barriers, divided by their number. Rounds of
all contenders alternate, so that a drift of the machine meets them alike; what is reported is the median
over rounds, and a ratio is the median of the ratios of single rounds.
"""

from __future__ import annotations

import gc
import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from collectives.bench.cases import COLLECTIVES, Array, Case, Shape, bus_factor, numpy_dtype, shape_of
from collectives.bench.peers import Call, Contender, Memcpy
from collectives.bench.verify import Verifier
from collectives.communicator import Communicator

ROUND_SECONDS = 5e-3
FEWEST_ITERATIONS = 2
BURST = 3  # calls back to back before a check, so that a slot that is reused too early shows


@dataclass(frozen=True)
class Options:
    """How rows are measured.

    Attributes:
        iterations: calls per round; None: enough to fill `ROUND_SECONDS`, at least `FEWEST_ITERATIONS`.
        warmup: calls before the first round.
        rounds: timed rounds per contender.
        check: whether results are checked.
        average: over ranks: 0 rank 0, 1 mean, 2 minimum, 3 maximum.
    """

    iterations: int | None = None
    warmup: int = 5
    rounds: int = 7
    check: bool = True
    average: int = 1


@dataclass
class PeerResult:
    """A peer beside ours: seconds per call, peer's time over ours, wrong elements (None: not measured).

    `excess` is what a call of ours takes beyond the peer's, in seconds, the median over rounds.
    """

    time: float | None = None
    ratio: float | None = None
    nwrong: int | None = None
    excess: float | None = None


@dataclass
class Measurement:
    """One form (in place or not) of one row: seconds per call, GB/s (1e9), wrong elements of all ranks.

    None stands for what was not measured.
    """

    time: float | None = None
    alg_bw: float | None = None
    bus_bw: float | None = None
    nwrong: int | None = None
    algorithm: str | None = None
    iterations: int | None = None
    peers: dict[str, PeerResult] = field(default_factory=dict)


@dataclass
class Row:
    """One line of the table; `memcpy` is in seconds."""

    collective: str
    size: int
    count: int
    dtype: str
    op: str
    root: int
    out_of_place: Measurement | None = None
    in_place: Measurement | None = None
    memcpy: float | None = None

    @property
    def main(self) -> Measurement | None:
        """The form that counts: out of place where that was measured."""
        forms = [form for form in (self.out_of_place, self.in_place) if form is not None]
        return next((form for form in forms if form.time is not None), next(iter(forms), None))


def aligned_buffer(nbytes: int, alignment: int = 4096) -> Array:
    """`nbytes` of written (so present) memory that starts at a page, as frameworks allocate large tensors."""
    raw = np.full(nbytes + alignment, 0x5A, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes]


def timed(call: Call, iterations: int) -> float:
    """Seconds per call of a plain loop."""
    start = perf_counter()
    for _ in range(iterations):
        call()
    return (perf_counter() - start) / iterations


class Sweep:
    """Measures rows on one communicator; every rank makes the same calls.

    Args:
        comm: carries the few words that ranks exchange about a run.
        ours: the contender under test.
        peers: other contenders, in the order of the table.
        maximum_bytes: the largest size that will be asked for; buffers are allocated once.
        progress: called with a few words before each lengthy step.
    """

    def __init__(
        self,
        comm: Communicator,
        ours: Contender,
        peers: Sequence[Contender],
        options: Options,
        maximum_bytes: int,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.comm, self.ours, self.peers, self.options, self.progress = comm, ours, peers, options, progress
        self._x, self._out = (aligned_buffer(maximum_bytes) for _ in range(2))
        self._seeds = itertools.count(1)
        self._memcpy = Memcpy()

    def row(self, collective: str, size: int, dtype: str, op: str, root: int) -> Row:
        """Measure one row. `size` is in bytes and is rounded down to what the ranks can share."""
        kind = numpy_dtype(dtype)
        shape = shape_of(collective, size, kind.itemsize, self.comm.world_size)
        row = Row(collective, shape.total * kind.itemsize, shape.count, dtype, op, root)
        gc.collect()
        gc.disable()  # a collection in one contender's round would be charged to it
        try:
            if COLLECTIVES[collective].out_of_place:
                row.out_of_place = self._measure(row, self._case(row, shape, in_place=False))
            if COLLECTIVES[collective].in_place:
                row.in_place = self._measure(row, self._case(row, shape, in_place=True))
        finally:
            gc.enable()
        return row

    def _case(self, row: Row, shape: Shape, in_place: bool) -> Case:
        kind = numpy_dtype(row.dtype)

        def elements(buffer: Array, count: int) -> Array:
            return buffer[: count * kind.itemsize].view(kind)

        x, out = elements(self._x, shape.send), elements(self._out, shape.receive)
        if in_place:
            whole = elements(self._x, shape.total)
            part = whole[self.comm.rank * shape.count : (self.comm.rank + 1) * shape.count]
            x, out = (whole if n == shape.total else part for n in (shape.send, shape.receive))
        return Case(row.collective, x, out, in_place, row.dtype, row.op, row.root)

    def _measure(self, row: Row, case: Case) -> Measurement:
        result = Measurement()
        calls: dict[Contender, Call] = {}
        for contender in (self.ours, *self.peers):
            self.progress(f"{row.collective} {row.size} B: checking {contender.name}")
            call, wrong, algorithm = self._try(contender, case)
            if call is not None:
                calls[contender] = call
            if contender is self.ours:
                result.nwrong, result.algorithm = wrong, algorithm
            else:
                result.peers[contender.name] = PeerResult(nwrong=wrong)
        if row.memcpy is None:
            copy = self._memcpy.bind(case)
            if copy is not None:
                calls[self._memcpy] = copy
        times, iterations = self._time(row, calls)

        medians = {contender: statistics.median(series) for contender, series in times.items()}
        row.memcpy = medians.get(self._memcpy, row.memcpy)
        if self.ours in calls:
            seconds = medians[self.ours]
            result.time, result.iterations = seconds, iterations[self.ours]
            result.alg_bw = row.size / seconds / 1e9
            result.bus_bw = result.alg_bw * bus_factor(row.collective, self.comm.world_size)
            if self.options.check:
                # The timed calls have left their mark on every slot: check again, with other data.
                again = self._verify(calls[self.ours], case)
                result.nwrong = max(result.nwrong or 0, again)
        for peer in self.peers:
            if peer in calls:
                result.peers[peer.name].time = medians[peer]
                if self.ours in calls:
                    pairs = list(zip(times[peer], times[self.ours], strict=True))
                    result.peers[peer.name].ratio = statistics.median(theirs / own for theirs, own in pairs)
                    result.peers[peer.name].excess = statistics.median(own - theirs for theirs, own in pairs)
        return result

    def _try(self, contender: Contender, case: Case) -> tuple[Call | None, int | None, str | None]:
        """Bind and run once: the call, wrong elements of all ranks, the algorithm that ran if it is ours.

        All are None if any rank finds that the contender cannot do this case.
        """
        call, failed, wrong, algorithm = contender.bind(case), False, None, None
        if call is None:
            return None, None, None
        verifier = self._verifier(case)
        verifier.prepare()
        self.comm.barrier()
        # Ours may only refuse a forced algorithm; whatever else it raises is a failure of the run. A peer
        # tells in many ways that it does not know a dtype or an operator.
        refusals = ValueError if contender is self.ours else Exception
        try:
            call()
        except refusals:
            failed = True
        if contender is self.ours and COLLECTIVES[case.collective].algorithms:  # messages have no receipt
            algorithm = contender.algorithm_of_last_call()
        if self._gather(float(failed)).any():
            return None, None, None
        if self.options.check and contender.checked:
            wrong = self._total(verifier.wrong())
        return call, wrong, algorithm

    def _verify(self, call: Call, case: Case) -> int:
        """Fresh input, a burst of calls (one where they would feed on their results), wrong elements."""
        verifier = self._verifier(case)
        verifier.prepare()
        self.comm.barrier()
        repeatable = not case.in_place or COLLECTIVES[case.collective].repeatable_in_place
        for _ in range(BURST if repeatable else 1):
            call()
        return self._total(verifier.wrong())

    def _verifier(self, case: Case) -> Verifier:
        return Verifier(case, self.comm.rank, self.comm.world_size, next(self._seeds))

    def _time(
        self, row: Row, calls: dict[Contender, Call]
    ) -> tuple[dict[Contender, list[float]], dict[Contender, int]]:
        """Seconds per call of each contender in each round, combined over ranks, and the calls per round."""
        iterations = {}
        for contender, call in calls.items():
            self.progress(f"{row.collective} {row.size} B: warming up {contender.name}")
            for _ in range(self.options.warmup):
                call()
            iterations[contender] = self.options.iterations or self._calibrate(call)
        times: dict[Contender, list[float]] = {contender: [] for contender in calls}
        order = list(calls)
        for number in range(self.options.rounds):
            for contender in order:
                label = f"round {number + 1}/{self.options.rounds} {contender.name}"
                self.progress(f"{row.collective} {row.size} B: {label}")
                self.comm.barrier()
                times[contender].append(timed(calls[contender], iterations[contender]))
                self.comm.barrier()
            order = order[1:] + order[:1]  # nobody always follows the same one
        for contender, series in times.items():
            times[contender] = self._combine(np.array(series))
        return times, iterations

    def _calibrate(self, call: Call) -> int:
        """Calls that fill a round, as rank 0 sees it."""
        iterations = 1
        while True:
            self.comm.barrier()
            seconds = timed(call, iterations)
            wanted = max(FEWEST_ITERATIONS, round(ROUND_SECONDS / max(seconds, 1e-9)))
            enough = seconds * iterations >= ROUND_SECONDS / 4
            answer = np.array([wanted, enough], np.int64)
            self.comm.broadcast(answer, 0)
            if answer[1]:
                return int(answer[0])
            iterations *= 4

    def _combine(self, series: Array) -> list[float]:
        """Rounds of all ranks to one number a round, as ``-a`` says."""
        ranks = self._gather(series)
        how = {
            0: lambda a: a[0],
            1: lambda a: a.mean(axis=0),
            2: lambda a: a.min(axis=0),
            3: lambda a: a.max(axis=0),
        }
        return [float(seconds) for seconds in how[self.options.average](ranks)]

    def _gather(self, values: Array | float) -> Array:
        """The float64 values of every rank, shape (world_size, len(values))."""
        mine = np.atleast_1d(np.asarray(values, np.float64))
        everyone = np.empty(self.comm.world_size * len(mine), np.float64)
        self.comm.all_gather(mine, everyone)
        return everyone.reshape(self.comm.world_size, len(mine))

    def _total(self, wrong: int) -> int:
        return int(self._gather(float(wrong)).sum())
