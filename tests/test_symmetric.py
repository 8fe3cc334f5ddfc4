"""Symmetric memory in calls: the same bits as ever, nothing staged, and staged where it does not serve."""

from __future__ import annotations

import random
import resource
from typing import Any

import cases
import inputs
import numpy as np
import oracle
import pytest
from cases import Case
from ranks import Outcome, Pool, attempt
from symmetric_arrays import SERVED, symmetric

import collectives

KB = 1024


def size_of(dtype: str) -> int:
    return int(oracle.numpy_dtype(dtype).itemsize)


def drawn_case(rng: random.Random, collective: str, world: int, nbytes: int) -> Case:
    """Symmetric; its larger side has about `nbytes` bytes."""
    dtype = rng.choice(oracle.DTYPES)
    reduces = collective in ("all_reduce", "reduce_scatter")
    return Case(
        collective,
        dtype,
        nbytes // size_of(dtype) // (world if collective in ("all_gather", "reduce_scatter") else 1),
        rng.choice(oracle.operators(dtype)) if reduces else "sum",
        "symmetric",
        in_place=rng.random() < 0.5,
        offset=rng.choice((0, 1, 3, 8, 16, 31)),
        out_offset=rng.choice((0, 1, 4, 13, 32)),
        root=rng.randrange(world),
        seed=rng.randrange(1 << 30),
        symmetric=True,
    )


@pytest.mark.parametrize("collective", SERVED)
def test_bits(pool: Pool, collective: str) -> None:
    """Also out of step: calls follow each other with no pause."""
    rng = random.Random(f"{collective} {pool.world}")
    sizes = [0, 1, 2, 3, 8, 40, 41, 63, 64, 65, 4099, 16411, 40 * KB, (1 << 20) - 1, (1 << 20) + 1, 2_500_001]
    todo = [drawn_case(rng, collective, pool.world, nbytes) for nbytes in sizes for _ in range(2)]
    cases.check(todo, pool.world, pool.run(cases.perform_all, todo))


def same_as_staged(comm: Any, dtype: str, op: str, count: int) -> list[str]:
    rows = inputs.row(dtype, count * comm.world_size, comm.rank, 3)
    found = []
    for x in (rows, rows[:count]):
        for staged in ("one_shot", "two_shot"):
            want = comm.all_reduce(x.copy(), op=op, algorithm=staged)
            assert comm.last_receipt().algorithm == staged
            got = comm.all_reduce(symmetric(x), op=op, algorithm="symmetric")
            assert comm.last_receipt().algorithm == "symmetric"
            found.append(oracle.difference(got, want))
    want = comm.reduce_scatter(rows, op=op, algorithm="two_shot")
    found.append(oracle.difference(comm.reduce_scatter(symmetric(rows), op=op, algorithm="symmetric"), want))
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bits_of_the_staged_path(pool: Pool, dtype: str) -> None:
    for op in ("sum", "avg"):
        for found in pool.run(same_as_staged, dtype, op, 70_001):
            assert set(found) == {""}, found


def used(comm: Any, call: Any, *arrays: Any) -> str:
    """The algorithm of a call whose ranks have all told each other that they have symmetric memory."""
    comm.barrier()
    getattr(comm, call)(*arrays)
    receipt = comm.last_receipt()
    if receipt.algorithm == "symmetric":
        assert receipt.staged_bytes == 0 and receipt.chunks >= 1 and receipt.order == "rank", receipt
    return str(receipt.algorithm)


def chosen_by_size(comm: Any) -> None:
    world, rank = comm.world_size, comm.rank
    large, small = 32 * KB // 4 * world, 32 * KB // 4 - 1
    x, out = collectives.empty(large), collectives.empty(large)
    x[:], private = rank + 1, np.ones(large, np.float32)
    assert used(comm, "all_reduce", x, out) == "symmetric"
    assert (out == world * (world + 1) // 2).all() and (x == rank + 1).all()
    assert used(comm, "all_reduce", x[:small]) in ("one_shot", "two_shot")
    assert used(comm, "all_reduce", private) in ("one_shot", "two_shot")
    assert used(comm, "all_reduce", x, private) in ("one_shot", "two_shot")
    assert used(comm, "reduce_scatter", x, private[: large // world]) == "symmetric"
    assert used(comm, "all_gather", x[: large // world], private) == "symmetric"
    assert used(comm, "broadcast", x, 0) == "symmetric"
    assert used(comm, "broadcast", x if rank == 1 else private, 1) == "symmetric"
    assert used(comm, "all_reduce", x[::2]) in ("one_shot", "two_shot")


@pytest.mark.parametrize("world", [2, 3, 5])
def test_large_calls_of_symmetric_arrays_stage_nothing(pools: Any, world: int) -> None:
    pools(world).run(chosen_by_size)


def mixed(comm: Any, odd: int, collective: str) -> Outcome:
    """All arrays are symmetric but the odd rank's."""
    world, rank = comm.world_size, comm.rank
    kept = collectives.empty(1)  # so that the odd rank has such memory too, and the others ask
    make = np.empty if rank == odd else collectives.empty
    comm.barrier()
    x = make((world, 20_000), "int32")
    x[:] = rank + np.arange(world)[:, None]
    want = sum(r + np.arange(world) for r in range(world))
    arguments: tuple[Any, ...] = (x,)
    if collective == "broadcast":
        arguments, want = (x, odd), odd + np.arange(world)
    elif collective == "reduce_scatter":
        want = want[rank]
    elif collective == "all_gather":
        want = np.concatenate([r + np.arange(world) for r in range(world)])
    outcome = attempt(rank, lambda: getattr(comm, collective)(*arguments, algorithm="symmetric"))
    result = getattr(comm, collective)(*arguments)
    assert comm.last_receipt().algorithm in ("one_shot", "two_shot", "direct"), comm.last_receipt()
    assert (result.reshape(-1, 20_000) == np.reshape(want, (-1, 1))).all()
    del kept
    return outcome


@pytest.mark.parametrize("collective", SERVED)
def test_one_array_that_is_not_symmetric(pools: Any, collective: str) -> None:
    for world, odd in ((2, 1), (4, 2)):
        for outcome in pools(world).run(mixed, odd, collective):
            assert outcome.error == "ValueError" and f"rank {odd} " in outcome.text, outcome
            assert "collectives.empty" in outcome.text, outcome


def forced_where_nobody_has_any(comm: Any) -> list[Outcome]:
    x = np.ones(10, np.float32)
    calls = (lambda: comm.all_reduce(x, algorithm="symmetric"), comm.barrier, lambda: comm.all_reduce(x))
    return [attempt(comm.rank, call) for call in calls]


def test_forced_where_no_rank_has_symmetric_memory() -> None:
    with Pool(3) as pool:
        for forced, barrier, after in pool.run(forced_where_nobody_has_any):
            assert forced.error == "ValueError" and "ranks 0, 1 and 2" in forced.text, forced
            assert barrier.ok and after.ok, (barrier, after)


def with_limited_memory(comm: Any, limited: int) -> Outcome:
    x = np.full(100_000, 1, np.float32)
    outcome = Outcome(comm.rank)
    if comm.rank == limited:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 45, 1 << 45))
        outcome = attempt(comm.rank, collectives.empty, 10)
    else:
        x = symmetric(x)
    comm.barrier()
    comm.all_reduce(x, op="max")
    assert comm.last_receipt().algorithm in ("one_shot", "two_shot"), comm.last_receipt()
    assert (x == 1).all()
    # Only the root's array is read, but by all.
    forced = attempt(comm.rank, lambda: comm.broadcast(x, 1 - limited, algorithm="symmetric"))
    assert forced.error == "ValueError" and f"rank {limited} " in forced.text, forced
    assert "ulimit -v" in forced.text, forced
    return outcome


def test_a_limited_address_space_stages() -> None:
    with Pool(2) as pool:
        outcome = pool.run(with_limited_memory, 0)[0]
        assert outcome.error == "MemoryError" and "ulimit -v" in outcome.text, outcome
