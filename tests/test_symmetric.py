"""Symmetric memory: the same bits as ever, nothing staged, and memory that comes back.

Long, because its rank functions share their helpers; to be split by subject.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import resource
import signal
import threading
import time
from typing import Any

import cases
import inputs
import numpy as np
import oracle
import pytest
from cases import Case
from ranks import Outcome, Pool, attempt, new_key, rank_environment
from test_capsule import Table
from test_ending import forked
from test_failure import assert_noticed, assert_stays_broken, survivors_of
from test_leaks import resources

import collectives
from collectives import _native

KB = 1024
SERVED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


def size_of(dtype: str) -> int:
    return int(oracle.numpy_dtype(dtype).itemsize)


def symmetric(x: Any) -> Any:
    """A copy in symmetric memory."""
    copy = collectives.empty(x.shape, x.dtype)
    copy[...] = x
    return copy


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


def allocate_unlike(comm: Any, rounds: int) -> int:
    """Each rank's arrays lie elsewhere, in new blocks or in used ones; no rank allocates as another."""
    rng, own = random.Random(5), random.Random(comm.rank)
    kept: list[Any] = []
    wrong = 0
    for i in range(rounds):
        for _ in range(own.randrange(3)):
            kept.append(collectives.empty(own.randrange(1, 300_000), "uint8"))
            kept[-1][:] = 255
        while len(kept) > 4:
            del kept[own.randrange(len(kept))]
        x = collectives.empty(rng.randrange(1, 60_000), "int32")
        x[:] = np.arange(x.size) + comm.rank + i
        want = comm.world_size * (np.arange(x.size) + i) + sum(range(comm.world_size))
        comm.all_reduce(x, algorithm="symmetric")
        wrong += not (x == want).all()
    return wrong


@pytest.mark.parametrize("world", [2, 3, 8])
def test_ranks_allocate_unlike_and_reuse(pools: Any, world: int) -> None:
    assert pools(world).run(allocate_unlike, 150) == [0] * world


def grown_by_steps(comm: Any, steps: int) -> list[dict[str, int]]:
    """What FSDP2 does: the same few sizes at each step."""
    seen = []
    for i in range(steps):
        for nbytes in (3 << 20, 1 << 20, 300_000, 4096):
            x, y = collectives.empty(nbytes, "uint8"), collectives.empty(nbytes, "uint8")
            x[:] = 1
            comm.all_reduce(x, y, op="max", algorithm="symmetric")
            assert y[0] == 1 and y[-1] == 1
        if i >= 5:
            seen.append(resources() | _native.heap_usage() | {"address": x.ctypes.data})
    return seen


@pytest.mark.parametrize("world", [2, 4])
def test_steps_leave_memory_flat(world: int) -> None:
    with Pool(world) as pool:
        for seen in pool.run(grown_by_steps, 60):
            first, last = seen[0], seen[-1]
            assert last["mappings"] <= first["mappings"] + 3, (first, last)
            assert last["descriptors"] == first["descriptors"], (first, last)
            # The blocks of a step change places, so that a peer touches more and more of their pages; but not
            # those of new blocks, of which 60 steps would make half a gigabyte.
            assert last["kB"] <= first["kB"] + world * 9000, (first, last)
            assert last["kept_bytes"] == first["kept_bytes"], (first, last)
            assert last["kept_bytes"] + last["live_bytes"] <= (6 << 20) + 8192, last


def usage_of_sizes(comm: Any) -> None:
    """Memory that was given back serves again, or goes."""
    gc.collect()
    start = _native.heap_usage()["live_bytes"]
    for _ in range(300):
        collectives.empty(random.randrange(1, 20 << 20), "uint8")[:1] = 1
        assert _native.heap_usage()["live_bytes"] == start
        assert _native.heap_usage()["kept_bytes"] <= max(start, 0) + (20 << 20) + 8192


def test_what_is_kept_is_bounded() -> None:
    with Pool(1) as pool:
        pool.run(usage_of_sizes)


def owners(_: Any) -> None:
    import torch

    live = _native.heap_usage()["live_bytes"]
    for dtype in (
        "float32",
        np.float64,
        np.dtype("int8"),
        "bfloat16",
        "bool",
        oracle.numpy_dtype("float8_e5m2"),
    ):
        x = collectives.empty((3, 5), dtype)
        assert isinstance(x, np.ndarray) and x.shape == (3, 5) and x.flags.writeable and x.flags.c_contiguous
        assert x.dtype == (oracle.numpy_dtype(dtype) if isinstance(dtype, str) else np.dtype(dtype))
        assert x.ctypes.data % 4096 == 0
        view = x[1:].T
        del x
        view[...] = 0
        assert _native.heap_usage()["live_bytes"] == live + 4096
        del view
        assert _native.heap_usage()["live_bytes"] == live
    for dtype in (
        torch.float32,
        torch.bfloat16,
        torch.bool,
        torch.float8_e4m3fn,
        torch.complex64,
        torch.int64,
    ):
        t = collectives.empty([2, 0, 3], dtype)
        assert t.shape == (2, 0, 3) and t.dtype == dtype
        t = collectives.empty((4, 6), dtype)
        assert t.shape == (4, 6) and t.dtype == dtype and t.is_contiguous() and t.data_ptr() % 4096 == 0
        rows = t[1:].detach().unbind(0)
        numbers = t.view(torch.uint8).numpy()
        storage = t.untyped_storage()
        assert storage.nbytes() == 24 * dtype.itemsize
        del t
        for last in (rows, numbers, storage):
            assert _native.heap_usage()["live_bytes"] == live + 4096, type(last)
        del rows, last
        assert _native.heap_usage()["live_bytes"] == live + 4096
        numbers[...] = 0
        del numbers, storage
        assert _native.heap_usage()["live_bytes"] == live
    x = collectives.empty(5, torch.float32)
    kept = [x.requires_grad_()]
    threading.Thread(target=kept.clear).start()
    del x
    while _native.heap_usage()["live_bytes"] > live:
        time.sleep(0.01)
    assert collectives.empty(7).shape == (7,) and collectives.empty((), "int8").shape == ()


def test_memory_lives_as_long_as_the_last_view() -> None:
    with Pool(1) as pool:
        pool.run(owners)


@pytest.mark.parametrize(
    ("shape", "dtype", "error"),
    [
        (-1, "float32", ValueError),
        ((3, -2), "float32", ValueError),
        (2.5, "float32", TypeError),
        ((2, "x"), "float32", TypeError),
        (3, "float33", TypeError),
        (3, "bfloat32", TypeError),
        (3, object, TypeError),
        (3, "U4", TypeError),
        (3, np.dtype("i4").newbyteorder(), TypeError),
        (3, "datetime64[s]", TypeError),
        (3, np.dtype("i4,i4"), TypeError),
        (1 << 34, "float64", MemoryError),
        ((1 << 40, 1 << 40), "int8", MemoryError),
    ],
)
def test_bad_arguments(shape: Any, dtype: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        collectives.empty(shape, dtype)


def inherited(comm: Any) -> list[str]:
    x = symmetric(np.full(20_000, comm.rank, np.float32))
    said = []

    def use() -> None:
        assert x[0] == comm.rank
        x[1] = 77  # it is one memory

    def give_back() -> None:
        nonlocal x
        del x
        gc.collect()

    def allocate() -> None:
        y = collectives.empty(20_000)
        y[:] = 5
        address = y.ctypes.data
        assert not x.ctypes.data <= address < x.ctypes.data + x.nbytes
        del y
        assert collectives.empty(20_000).ctypes.data == address
        os.environ.update(rank_environment(0, 1, new_key()))
        with collectives.Communicator(timeout=10) as alone:
            z = symmetric(np.arange(20_000, dtype=np.float32))
            alone.all_reduce(z, algorithm="symmetric")
            assert (z == np.arange(20_000)).all()
            # The parent's array is not of this process.
            assert attempt(0, lambda: alone.all_reduce(x, algorithm="symmetric")).error == "ValueError"

    for do in (use, give_back, allocate):
        with forked(do) as text:
            said.append(text)
    assert x[1] == 77
    x[:] = comm.rank
    comm.all_reduce(x, algorithm="symmetric")
    assert (x == sum(range(comm.world_size))).all()
    return said


def test_forked_children() -> None:
    with Pool(2) as pool:
        for said in pool.run(inherited):
            assert said == [" False: "] * 3, said


def loop(comm: Any, count: int, collective: str, calls: int) -> None:
    x = collectives.empty(count * comm.world_size)
    out = collectives.empty(count * comm.world_size)
    x[:] = 1
    arguments = {
        "all_reduce": (x, out),
        "all_gather": (x[:count], out),
        "reduce_scatter": (x, out[:count]),
        "broadcast": (x,),
    }[collective]
    for _ in range(calls):
        getattr(comm, collective)(*arguments, algorithm="symmetric")


@pytest.mark.parametrize("collective", SERVED)
@pytest.mark.parametrize(("world", "victim"), [(2, 1), (4, 0)])
def test_killed_in_the_middle(world: int, victim: int, collective: str) -> None:
    with Pool(world) as pool:
        pool.run(loop, 500_000, collective, 3)
        pool.start(loop, 500_000, collective, 1 << 30)
        time.sleep(0.3)
        since = pool.signal(victim, signal.SIGKILL)
        outcomes = pool.collect(20, survivors_of(pool, victim))
        assert_noticed(outcomes, "PeerDiedError", victim, since, within=5.0)
        assert all(outcome.epoch > 3 for outcome in outcomes), outcomes
        assert_stays_broken(pool, survivors_of(pool, victim), "PeerDiedError", victim)


def stopped(comm: Any, count: int) -> Outcome:
    """Calls until one fails; the input is overwritten at once."""
    x, out = collectives.empty(count, "int32"), collectives.empty(count * comm.world_size, "int32")
    while True:
        x[:] = comm.rank + 1
        outcome = attempt(comm.rank, lambda: comm.all_gather(x, out, algorithm="symmetric"))
        x[:] = -1
        if not outcome.ok:
            return outcome
        want = np.repeat(np.arange(comm.world_size) + 1, count)
        assert (out == want).all(), "a call returned what a peer wrote after it had given up"


def test_stopped_past_the_timeout() -> None:
    for pause in (0.1, 0.15, 0.2):
        with Pool(3, timeout=0.5) as pool:
            pool.start(stopped, 1 << 20)
            time.sleep(pause)
            pool.signal(1, signal.SIGSTOP)
            outcomes = pool.collect(20, [0, 2])
            pool.signal(1, signal.SIGCONT)
            for outcome in [*outcomes, *pool.collect(20, [1])]:
                assert outcome.ok and outcome.value.error == "CollectiveTimeoutError", outcome
                assert outcome.value.ranks == (1,), outcome.value


def outlive(comm: Any, key: str) -> float:
    """Arrays before the communicator, between two of them, and after; each closes in another order."""
    x = symmetric(np.full(30_000, 1.0, np.float32))
    made = []
    for i in range(3):
        os.environ["TORCHELASTIC_RUN_ID"] = f"{key}-{i}"
        made.append(collectives.Communicator(timeout=30))
        made[-1].all_reduce(x, op="max", algorithm="symmetric")
    y = collectives.empty(30_000)
    y[:] = 2
    made.pop(comm.rank % 3).close()
    comm.all_reduce(y, algorithm="symmetric")
    del x
    for open_one in made if comm.rank % 2 else made[::-1]:
        open_one.close()
    comm.all_reduce(y, algorithm="symmetric")
    return float(y[-1])


@pytest.mark.parametrize("world", [2, 3])
def test_close_in_any_order(world: int) -> None:
    with Pool(world) as pool:
        assert pool.run(outlive, new_key()) == [2.0 * world**2] * world


def threaded(comm: Any, key: str, rounds: int) -> list[str]:
    """Two threads of each rank, each with a communicator, that allocate and give back all the time."""
    made = []
    for i in range(2):
        os.environ["TORCHELASTIC_RUN_ID"] = f"{key}-{i}"
        made.append(collectives.Communicator(timeout=30))
    said: list[str] = []

    def work(mine: Any, seed: int) -> None:
        rng = random.Random(seed)
        for i in range(rounds):
            x = collectives.empty(rng.randrange(1, 40_000), "int64")
            x[:] = comm.rank + i
            mine.all_reduce(x, algorithm="symmetric")
            if not (x == comm.world_size * i + sum(range(comm.world_size))).all():
                said.append(f"wrong at {i}")

    threads = [threading.Thread(target=work, args=(mine, i)) for i, mine in enumerate(made)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for mine in made:
        mine.close()
    return said


@pytest.mark.parametrize("world", [2, 3])
def test_threads(world: int) -> None:
    with Pool(world) as pool:
        assert pool.run(threaded, new_key(), 100) == [[]] * world


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


def test_through_the_table() -> None:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    at = get(_native.table(), b"collectives._native.table")
    entries = Table.from_address(at)
    allocate, give_back = entries.allocate, entries.give_back
    live = _native.heap_usage()["live_bytes"]
    memory = allocate(5000)
    assert memory % 4096 == 0 and _native.heap_usage()["live_bytes"] == live + 8192
    ctypes.memset(memory, 1, 5000)
    give_back(memory)
    give_back(memory)  # not in use any more: ignored
    give_back(None)
    assert _native.heap_usage()["live_bytes"] == live
    assert allocate(5000) == memory
    give_back(memory)
    assert allocate(1 << 50) is None
