"""Who is measured: what all contenders have in common, this library, and memcpy as a yardstick.

Each binds a case to a call without arguments beforehand, so that the timed loop is the same for all. The
peers, which import what only they need, are in peer_torch and peer_mpi.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

from collectives import __version__
from collectives.bench.cases import Array, Case, after, before
from collectives.communicator import Communicator

Call = Callable[[], object]


class Contender(Protocol):
    """Something that can do a case."""

    name: str
    version: str
    checked: bool = True  # whether its results are looked at

    def bind(self, case: Case) -> Call | None:
        """The call that does `case` on this rank; None if it has no form of it. All ranks decide alike."""

    def algorithm_of_last_call(self) -> str | None:
        """The algorithm that the last call took, where that is known."""
        return None


class Ours(Contender):
    """This library, through `Communicator`."""

    name = "collectives"

    def __init__(self, comm: Communicator, algorithm: str | None = None) -> None:
        self.comm, self.algorithm = comm, algorithm
        self.version = __version__

    def bind(self, case: Case) -> Call | None:
        """The call on the communicator."""
        comm, x, out, root = self.comm, case.x, case.out, case.root
        if case.collective == "sendrecv":
            return partial(_ring_shift, comm, x, out)
        reduced = None if case.in_place else out
        calls: dict[str, tuple[Any, ...]] = {
            "all_reduce": (comm.all_reduce, x, reduced, case.op),
            "reduce": (comm.reduce, x, root, case.op, reduced),
            "all_gather": (comm.all_gather, x, out),
            "gather": (comm.gather, x, root, out),
            "reduce_scatter": (comm.reduce_scatter, x, out, case.op),
            "scatter": (comm.scatter, x, out, root),
            "all_to_all": (comm.all_to_all, x, out),
            "broadcast": (comm.broadcast, x, root),
        }
        call, *arguments = calls[case.collective]
        return partial(call, *arguments, algorithm=self.algorithm)

    def algorithm_of_last_call(self) -> str | None:
        """As the communicator's receipt says."""
        receipt = self.comm.last_receipt()
        return None if receipt is None else receipt.algorithm


def _ring_shift(comm: Communicator, x: Array, out: Array) -> None:
    sent = comm.isend(x, after(comm.rank, comm.world_size))
    comm.recv(out, before(comm.rank, comm.world_size))
    sent.wait()


class Memcpy(Contender):
    """Every rank copies as many bytes as the case is large, all at once: what memory can give at best."""

    name = "memcpy"

    def __init__(self) -> None:
        self.version = f"numpy {np.__version__}"

    def bind(self, case: Case) -> Call | None:
        """A copy as large as the row."""
        # The larger side is what the size column counts.
        larger = case.x if case.x.nbytes >= case.out.nbytes else case.out
        source = larger.view(np.uint8)
        return partial(np.copyto, np.empty_like(source), source)
