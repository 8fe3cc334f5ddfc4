"""The communicator: collectives among the ranks of one host."""

from __future__ import annotations

import functools
import threading
from types import TracebackType
from typing import Any

from collectives import _native, environment, flight_record
from collectives.plan import Plan, Receipt
from collectives.rendezvous import rendezvous
from collectives.topology import cpu


@functools.cache
def _last_level_cache() -> int:
    """Bytes of the last-level cache of the core that this process may run on; 0 if unknown.

    Not sysconf's figure: on some AMD machines that is the sum over all sockets.
    """
    core = cpu.allowed_cores()[0]
    cache = cpu.data_cache(core, 3) or cpu.data_cache(core, 2)
    return (cache and cache.nbytes) or 0


class Communicator(_native.Communicator):
    """Connects the ranks of one host through shared memory.

    Args:
        source: who the ranks are: an mpi4py communicator, a torch process group, a tuple (torch store, rank,
            world size), a ``Rendezvous``, or None
            for the environment that mpirun, torchrun, srun or ``python -m collectives.launch`` set (a world
            of one without any). All ranks construct their communicators from one source in the same order.
        timeout: seconds after which a call, or this construction, gives up on ranks that have not arrived.
            None takes COLLECTIVES_TIMEOUT, which is 600 where it is not set. ``set_timeout()`` changes it, and
            every collective takes a ``timeout=`` of its own.

    Every collective takes NumPy arrays (also of ml_dtypes' bfloat16, float8_e4m3fn and float8_e5m2), torch
    CPU tensors and any object with ``__dlpack__``, of any shape, strides and alignment. It blocks until the
    result is there, releases the GIL meanwhile, and may be called from several threads, which take turns.

    Every call ends: with its result, or with an exception on every rank. After :class:`MismatchError` and
    :class:`RefusedError` the communicator can be used again; after any other :class:`CollectiveError` it is
    broken (``healthy`` is False) and every later call raises at once.

    Raises:
        CollectiveTimeoutError: ranks did not arrive; names them.
        RuntimeError, ValueError: the ranks cannot be connected; says why.
    """

    def __init__(self, source: Any = None, *, timeout: float | None = None) -> None:
        if timeout is None:
            timeout = environment.read("TIMEOUT")
        if not 0 < timeout <= threading.TIMEOUT_MAX:
            raise ValueError(f"timeout must be a positive number of seconds, not {timeout!r}")
        meeting = rendezvous(source)
        super().__init__(meeting.rank, meeting.world_size, timeout, _last_level_cache())
        self._source = meeting.source
        here = flight_record.launch_rank()
        met = meeting.exchange(self.announcement + here, timeout)
        announcements = [blob[: -len(here)] for blob in met]
        self.connect(announcements)
        ranks = flight_record.job_ranks([blob[-len(here) :] for blob in met])
        flight_record.register(self, self.rank, announcements, ranks=ranks)

    def explain(self, collective: str, nbytes: int, dtype: str = "float32") -> Plan:
        """The plan for a call, with its reason.

        Args:
            collective: ``"all_reduce"``, ``"reduce"``, ``"all_gather"``, ``"gather"``, ``"reduce_scatter"``,
                ``"scatter"``, ``"all_to_all"``, ``"all_to_all_v"`` (with counts), ``"broadcast"`` or
                ``"barrier"``.
            nbytes: bytes of the call's larger side (all_gather: the output, reduce_scatter: the input).
            dtype: element type by name.

        Raises:
            ValueError: unknown collective or dtype, or no number of bytes.
        """
        if not isinstance(nbytes, int) or nbytes < 0:
            raise ValueError(f"nbytes must be a number of bytes, not {nbytes!r}")
        plan = self._explain(collective, nbytes, dtype)
        return Plan(
            collective=collective,
            nbytes=nbytes,
            dtype=dtype,
            world_size=self.world_size,
            order="rank",
            **plan,
        )

    def last_receipt(self) -> Receipt | None:
        """What the last successful call on this rank did; None before the first."""
        receipt = self._last_receipt()
        return None if receipt is None else Receipt(order="rank", **receipt)

    def flight_record(self, rank: int | None = None) -> list[flight_record.Record]:
        """The last calls of a rank, oldest first, as that rank recorded them in shared memory.

        Readable at any time, from any thread, and also when the rank is stuck or dead.

        Args:
            rank: which rank; None for this one.

        Returns:
            Up to 64 calls, then up to 64 messages between two ranks; nothing once all ranks have closed.

        Raises:
            ValueError: there is no such rank.
        """
        if rank is None:
            rank = self.rank
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank!r} is no rank: 0 to {self.world_size - 1}")
        return flight_record.decode(_native.flight_record(self, rank), rank)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "healthy" if self.healthy else "broken"
        return f"<Communicator rank {self.rank} of {self.world_size} by {self._source}, {state}>"
