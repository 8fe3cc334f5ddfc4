"""Who is measured: this library, its peers, and memcpy as a yardstick.

Each binds a case to a call without arguments beforehand, so that the timed loop is the same for all. Only
what a run asks for is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

from collectives import __version__
from collectives.bench.cases import REDUCTIONS, Array, Case
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
        """The call on the communicator; a broadcast is in place only."""
        comm, algorithm = self.comm, self.algorithm
        if case.collective == "all_reduce":
            out = None if case.in_place else case.out
            return partial(comm.all_reduce, case.x, out, case.op, algorithm=algorithm)
        if case.collective == "all_gather":
            return partial(comm.all_gather, case.x, case.out, algorithm=algorithm)
        if case.collective == "reduce_scatter":
            return partial(comm.reduce_scatter, case.x, case.out, case.op, algorithm=algorithm)
        if not case.in_place:
            return None
        return partial(comm.broadcast, case.x, case.root, algorithm=algorithm)

    def algorithm_of_last_call(self) -> str | None:
        """As the communicator's receipt says."""
        receipt = self.comm.last_receipt()
        return None if receipt is None else receipt.algorithm


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


class ThroughTorch(Contender):
    """A torch.distributed backend through the functions of `torch.distributed`, one thread per rank.

    Args:
        name: in the table.
        group: the process group.
        checked: False for one that does not do what it is asked to.
    """

    def __init__(self, name: str, group: Any, checked: bool = True) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.name, self.checked, self._group = name, checked, group
        ours = f"{__version__} through " if name == Ours.name else ""
        self.version = f"{ours}torch {torch.__version__}"
        self._torch, self._dist = torch, dist

    def bind(self, case: Case) -> Call | None:
        """The call on tensors of the same memory; all_reduce and broadcast are in place only."""
        dist, group = self._dist, self._group
        op = getattr(dist.ReduceOp, case.op.upper())
        if case.in_place != (case.collective in ("all_reduce", "broadcast")):
            return None
        x, out = self._tensor(case.x, case), self._tensor(case.out, case)
        if case.collective == "all_reduce":
            return partial(dist.all_reduce, x, op=op, group=group)
        if case.collective == "broadcast":
            return partial(dist.broadcast, x, src=case.root, group=group)
        # torch 2.13 renamed these; the old names warn at every call, which costs time.
        if case.collective == "all_gather":
            gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
            return partial(gather, out, x, group=group)
        scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
        return partial(scatter, out, x, op=op, group=group)

    def _tensor(self, array: Array, case: Case) -> Any:
        """The same memory as a tensor, by way of bytes: torch does not know the dtypes of ml_dtypes."""
        return self._torch.from_numpy(array.view(np.uint8)).view(getattr(self._torch, case.dtype))


class Mpi(Contender):
    """mpi4py's buffer calls on COMM_WORLD."""

    name = "mpi"

    def __init__(self) -> None:
        import mpi4py
        from mpi4py import MPI

        self._mpi, self._comm = MPI, MPI.COMM_WORLD
        self.version = f"{mpi_library_version()}, mpi4py {mpi4py.__version__}"

    def bind(self, case: Case) -> Call | None:
        """The call on buffers; None for dtypes and operators that MPI does not have."""
        mpi, comm = self._mpi, self._comm
        if case.collective in REDUCTIONS:
            datatype, op = self._datatype(case.dtype), self._op(case)
            if datatype is None or op is None:
                return None
            x, out = self._buffer(case.x, datatype), self._buffer(case.out, datatype)
            call = comm.Allreduce
            if case.collective == "reduce_scatter":
                if case.in_place:
                    return None  # MPI's leaves the result at the front and not at the rank's own place
                call = comm.Reduce_scatter_block
            return partial(call, mpi.IN_PLACE if case.in_place else x, out, op)
        x, out = self._buffer(case.x, mpi.BYTE), self._buffer(case.out, mpi.BYTE)
        if case.collective == "all_gather":
            return partial(comm.Allgather, mpi.IN_PLACE if case.in_place else x, out)
        return partial(comm.Bcast, x, case.root) if case.in_place else None

    @staticmethod
    def _buffer(array: Array, datatype: Any) -> list[Any]:
        # No count: mpi4py takes it from the bytes, by the rules of each call.
        return [array.view(np.uint8), datatype]

    def _datatype(self, dtype: str) -> Any:
        names = {"float32": "FLOAT", "float64": "DOUBLE", "bool": "C_BOOL"}
        names |= {f"{u}int{n}": f"{u.upper()}INT{n}_T" for u in ("", "u") for n in (8, 16, 32, 64)}
        return getattr(self._mpi, names[dtype]) if dtype in names else None

    def _op(self, case: Case) -> Any:
        if case.dtype == "bool":
            logical = {"sum": "LOR", "max": "LOR", "bor": "LOR", "bxor": "LXOR"}
            return getattr(self._mpi, logical.get(case.op, "LAND"))
        return (
            None
            if case.op == "avg"
            else getattr(self._mpi, {"product": "PROD"}.get(case.op, case.op.upper()))
        )


def mpi_library_version() -> str:
    """The MPI library's name and version in a few words, such as ``Open MPI v5.0.11`` or ``MPICH 5.0.2``."""
    from mpi4py import MPI

    first = MPI.Get_library_version().strip("\0").splitlines()[0]
    return " ".join(first.split(",")[0].replace("Version:", "").split())
