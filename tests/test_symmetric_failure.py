"""Symmetric memory when ranks die, stop, fork, close in another order, or call from several threads."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from ranks import Outcome, Pool, attempt, new_key, rank_environment
from symmetric_arrays import SERVED, symmetric
from test_ending import forked
from test_failure import assert_noticed, assert_stays_broken, survivors_of

import collectives


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
