"""Meeting through an mpi4py communicator."""

from __future__ import annotations

import sys
import time
from typing import Any

from collectives.rendezvous.base import absent

# MPI cannot cancel a broadcast, so what it may still write into after a timeout has to stay.
_abandoned: list[Any] = []


class MpiRendezvous:
    """Ranks meet through an intracommunicator of mpi4py.

    Only nonblocking calls are used, because a blocking one could not be given up at the timeout. Nothing else
    of this library goes through MPI.

    Args:
        comm: the communicator; it is used but neither duplicated nor kept busy after an exchange.

    Raises:
        ValueError: the communicator is null or an intercommunicator, or MPI is not running.
    """

    def __init__(self, comm: Any) -> None:
        mpi = sys.modules["mpi4py.MPI"]
        if not mpi.Is_initialized() or mpi.Is_finalized():
            raise ValueError("MPI is not running: it has not been initialised, or is already finalised")
        if not comm:
            raise ValueError("this process is not in the MPI communicator: it is MPI.COMM_NULL")
        if comm.Is_inter():
            raise ValueError(
                "an MPI intercommunicator has two groups of ranks: merge them with comm.Merge() first"
            )
        self._comm = comm
        self._bytes = mpi.BYTE
        self.rank: int = comm.Get_rank()
        self.world_size: int = comm.Get_size()
        self.source = "MPI communicator"

    def exchange(self, blob: bytes, timeout: float) -> list[bytes]:
        """See Rendezvous.exchange; a rank may be named that is only behind a missing one in MPI's tree."""
        deadline = time.monotonic() + timeout
        blobs = [bytearray(blob) for _ in range(self.world_size)]
        pending = {
            root: self._comm.Ibcast([blobs[root], self._bytes], root=root) for root in range(self.world_size)
        }
        pause = 1e-5
        while True:
            pending = {root: request for root, request in pending.items() if not request.Test()}
            if not pending:
                return [bytes(received) for received in blobs]
            if time.monotonic() > deadline:
                _abandoned.append((blobs, pending))
                silent = set(pending) - {self.rank} or set(pending)
                raise absent(
                    silent, self.world_size, timeout, "that every rank of the MPI communicator gets here"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 1e-3)
