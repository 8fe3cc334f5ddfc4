"""Meeting as the environment says: under mpirun, torchrun, srun or collectives.launch, or alone."""

from __future__ import annotations

import collections
import hashlib
import os
from importlib.util import find_spec

from collectives.environment import Launch, launched
from collectives.rendezvous.meeting import meet
from collectives.rendezvous.mpi import MpiRendezvous

_meetings: collections.Counter[str | None] = collections.Counter()


class EnvironmentRendezvous:
    """The ranks that one launcher started on this host meet at an abstract Unix socket.

    Its name is made of the user, the launcher's job and how many times this process has met that way, so
    communicators made from the environment have to be made in the same order on all ranks.

    Args:
        launch: rank, world size and job; read from the environment if None.

    Raises:
        RuntimeError: ranks are on other hosts, or nothing tells this job from others.
        ValueError: the launcher's variables contradict each other.
    """

    def __init__(self, launch: Launch | None = None) -> None:
        launch = launch or launched()
        self.rank = launch.rank
        self.world_size = launch.world_size
        self.source = f"environment ({launch.launcher})"
        self._exchanges = 0
        self._job = launch.job
        self._mpi: MpiRendezvous | None = None
        if launch.local_world_size not in (None, launch.world_size):
            raise RuntimeError(
                f"{launch.launcher} started {launch.world_size} ranks, but only {launch.local_world_size} of "
                "them on this host: this version connects the ranks of one host"
            )
        if self.world_size == 1:
            return
        if self._job is None:
            self._mpi = self._world(launch)
        _meetings[self._job] += 1
        self._meeting = _meetings[self._job]

    @staticmethod
    def _world(launch: Launch) -> MpiRendezvous:
        if launch.launcher not in ("Open MPI", "Hydra", "PMI") or find_spec("mpi4py") is None:
            raise RuntimeError(
                f"{launch.launcher} started rank {launch.rank} of {launch.world_size}, but nothing in the "
                "environment tells this job from others: set MASTER_ADDR and MASTER_PORT, or pass an mpi4py "
                "communicator"
            )
        from mpi4py import MPI

        world = MpiRendezvous(MPI.COMM_WORLD)
        if (world.rank, world.world_size) != (launch.rank, launch.world_size):
            raise RuntimeError(
                f"{launch.launcher} started rank {launch.rank} of {launch.world_size}, but mpi4py says rank "
                f"{world.rank} of {world.world_size}: it loads another MPI than the one whose mpirun was used"
            )
        return world

    def exchange(self, blob: bytes, timeout: float) -> list[bytes]:
        """See Rendezvous.exchange."""
        if self.world_size == 1:
            return [blob]
        if self._mpi:
            return self._mpi.exchange(blob, timeout)
        self._exchanges += 1
        identity = f"{os.geteuid()}\n{self._job}\n{self._meeting}\n{self._exchanges}"
        name = "collectives-" + hashlib.sha256(identity.encode()).hexdigest()[:32]
        return meet(name, self.rank, self.world_size, blob, timeout)
