"""Who is measured: the peer MPI."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from collectives.bench.cases import COLLECTIVES, Array, Case, after, before
from collectives.bench.peers import Call, Contender


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
        mpi, comm, root = self._mpi, self._comm, case.root
        if case.in_place and case.collective == "reduce_scatter":
            return None  # MPI's leaves the result at the front and not at the rank's own place
        datatype, op = mpi.BYTE, None
        if COLLECTIVES[case.collective].reduces:
            datatype, op = self._datatype(case.dtype), self._op(case)
            if datatype is None or op is None:
                return None
        x, out = self._buffer(case.x, datatype), self._buffer(case.out, datatype)
        is_root = comm.rank == root
        given = mpi.IN_PLACE if case.in_place else x
        given_to_root = given if is_root else x
        taken = mpi.IN_PLACE if case.in_place and is_root else out
        next_rank, last_rank = after(comm.rank, comm.size), before(comm.rank, comm.size)
        calls: dict[str, tuple[Any, ...]] = {
            "all_reduce": (comm.Allreduce, given, out, op),
            "reduce": (comm.Reduce, given_to_root, out if is_root else None, op, root),
            "all_gather": (comm.Allgather, given, out),
            "gather": (comm.Gather, given_to_root, out if is_root else None, root),
            "reduce_scatter": (comm.Reduce_scatter_block, x, out, op),
            "scatter": (comm.Scatter, x if is_root else None, taken, root),
            "all_to_all": (comm.Alltoall, given, out),
            "broadcast": (comm.Bcast, x, root),
            "sendrecv": (comm.Sendrecv, x, next_rank, 0, out, last_rank, 0),
        }
        call, *arguments = calls[case.collective]
        return partial(call, *arguments)

    @staticmethod
    def _buffer(array: Array, datatype: Any) -> list[Any]:
        # No count: mpi4py takes it from the bytes, by the rules of each call.
        return [array.view(np.uint8), datatype]

    def _datatype(self, dtype: str) -> Any:
        names = {"float32": "FLOAT", "float64": "DOUBLE", "bool": "C_BOOL"}
        names |= {"complex64": "C_FLOAT_COMPLEX", "complex128": "C_DOUBLE_COMPLEX"}
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
