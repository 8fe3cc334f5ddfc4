"""The communicator from mpi4py, compared with MPI's own results; tests/test_mpi.py runs it under mpirun."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.mpi

DTYPES = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64")
COUNTS = (1, 7, 10, 11, 1000, 4099, 100_003)


@pytest.fixture(scope="module")
def world() -> Any:
    # Imported under mpirun only: Open MPI without it leaves its files in /dev/shm.
    from mpi4py import MPI

    return MPI.COMM_WORLD


@pytest.fixture(scope="module")
def comm(world: Any) -> Any:
    import collectives

    with collectives.Communicator(world, timeout=60) as made:
        yield made
        made.barrier()


def exact(dtype: str, count: int, rank: int) -> Any:
    """Small integers: any order of adding gives the same bits, so MPI's order does not matter."""
    return (np.arange(count) % 7 + rank).astype(dtype)


def mpi_op(name: str) -> Any:
    from mpi4py import MPI

    return {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN, "product": MPI.PROD}[name]


def test_world_size(world: Any, comm: Any) -> None:
    # mpiexec of one MPI with the library of another starts N worlds of one rank and calls it success.
    assert world.size == comm.world_size == int(os.environ["TEST_WORLD_SIZE"])
    assert world.rank == comm.rank


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["sum", "max", "min", "product"])
def test_all_reduce(world: Any, comm: Any, op: str, dtype: str) -> None:
    for count in COUNTS:
        x = exact(dtype, count, world.rank) + np.ones((), dtype)
        want = np.empty_like(x)
        world.Allreduce(x, want, op=mpi_op(op))
        out = np.empty_like(x)
        assert (comm.all_reduce(x, out, op) == want).all()
        assert (comm.all_reduce(x, op=op) == want).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_gather_and_broadcast(world: Any, comm: Any, dtype: str) -> None:
    for count in COUNTS:
        x = exact(dtype, count, world.rank)
        want = np.empty(count * world.size, dtype)
        world.Allgather(x, want)
        assert (comm.all_gather(x) == want).all()
        want = x.copy()
        world.Bcast(want, root=world.size - 1)
        assert (comm.broadcast(x, world.size - 1) == want).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce_scatter(world: Any, comm: Any, dtype: str) -> None:
    for count in COUNTS:
        x = exact(dtype, count * world.size, world.rank)
        want = np.empty(count, dtype)
        world.Reduce_scatter_block(x, want)
        assert (comm.reduce_scatter(x) == want).all()


def test_sub_communicators(world: Any) -> None:
    """A communicator for each half of the world, made at the same time, and one in reversed rank order."""
    import collectives

    half = world.Split(world.rank % 2, world.rank)
    with collectives.Communicator(half, timeout=60) as comm:
        assert (comm.rank, comm.world_size) == (half.rank, half.size)
        x = comm.all_reduce(np.full(5, world.rank))
        assert (x == sum(range(world.rank % 2, world.size, 2))).all()
    reverse = world.Split(0, -world.rank)
    with collectives.Communicator(reverse, timeout=60) as comm:
        assert comm.rank == world.size - 1 - world.rank
        assert comm.broadcast(np.full(3, world.rank), 0)[0] == world.size - 1
        comm.barrier()
    half.Free()
    reverse.Free()


def test_from_the_environment_of_mpirun(world: Any) -> None:
    import collectives

    with collectives.Communicator(timeout=60) as comm:
        assert (comm.rank, comm.world_size) == (world.rank, world.size)
        assert comm.all_reduce(np.ones(3, np.float32))[0] == world.size
        comm.barrier()


def test_mpi_and_collectives_take_turns(world: Any, comm: Any) -> None:
    for i in range(200):
        assert world.allreduce(i) == comm.all_reduce(np.array(i)).item() == i * world.size


def test_nothing_in_dev_shm_is_ours() -> None:
    assert not [name for name in os.listdir("/dev/shm") if "collectives" in name]
