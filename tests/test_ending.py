"""Ends that a program chooses: abort, close, exit, Ctrl-C; and use from threads and forked children."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from ranks import Outcome, Pool, attempt, new_key
from test_failure import again, fresh, wait_for


def abort_from_thread(comm: Any, aborter: int, absent: int) -> Outcome:
    if comm.rank == absent:
        time.sleep(1.0)
    if comm.rank == aborter:
        threading.Timer(0.3, comm.abort).start()
    return attempt(comm.rank, comm.all_reduce, np.ones(100, np.float32))


@pytest.mark.parametrize(("world", "aborter"), [(2, 0), (4, 0), (4, 2)])
def test_abort_ends_waiting_calls_everywhere(world: int, aborter: int) -> None:
    with Pool(world) as pool:
        for outcome in pool.run(abort_from_thread, aborter, world - 1, limit=20):
            assert outcome.error == "AbortedError", outcome
            assert outcome.elapsed < 1.0, outcome
        assert_stays_broken_by_abort(pool)


def assert_stays_broken_by_abort(pool: Pool) -> None:
    for healthy, later in pool.run(again):
        assert not healthy
        assert all(call.error == "AbortedError" and call.elapsed < 0.2 for call in later), later


def close_while_others_wait(comm: Any, leaver: int, count: int) -> Outcome:
    comm.barrier()
    if comm.rank == leaver:
        time.sleep(0.3)
        return attempt(comm.rank, comm.close)
    return attempt(comm.rank, comm.all_reduce, np.ones(count, np.float32))


@pytest.mark.parametrize("count", [4, 300_000])
def test_close_while_others_wait(count: int) -> None:
    with Pool(3) as pool:
        outcomes = pool.run(close_while_others_wait, 1, count, limit=20)
        assert outcomes[1].ok and outcomes[1].elapsed < 0.5, outcomes[1]
        for rank in (0, 2):
            assert outcomes[rank].error == "ClosedError" and outcomes[rank].ranks == (1,), outcomes[rank]
            assert outcomes[rank].elapsed < 1.3 and "rank 1" in outcomes[rank].text, outcomes[rank]


def test_use_after_close() -> None:
    with Pool(2) as pool:
        for outcome, closed in pool.run(close_and_call):
            assert outcome.error == "ClosedError" and closed, outcome


def close_and_call(comm: Any) -> tuple[Outcome, bool]:
    comm.barrier()
    comm.close()
    comm.close()
    return attempt(comm.rank, comm.all_reduce, np.ones(4, np.float32)), comm.closed


def last_call(comm: Any, how: str) -> None:
    """The ranks end right after their last collective, by themselves and at different times."""
    import collectives

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    new = collectives.Communicator(timeout=30)
    try:
        for count in (1, 1000, 100_000):
            x = new.all_reduce(np.full(count, rank, np.float32))
            assert (x == world * (world - 1) // 2).all()
        root = new.broadcast(np.full(50_000, rank, np.float32))
        assert not root.any()
        gathered = new.all_gather(np.full(30_000, rank, np.float32)).reshape(world, -1)
        assert (gathered == np.arange(world)[:, None]).all()
        new.barrier()
    except BaseException as error:
        print(f"rank {rank}: {error!r}", file=sys.stderr)
        os._exit(1)
    if how == "close":
        new.close()
    os._exit(0)


@pytest.mark.parametrize("how", ["exit", "close"])
@pytest.mark.parametrize("world", [2, 4])
def test_normal_exit_after_the_last_call_is_no_death(world: int, how: str) -> None:
    for _ in range(25):
        with Pool(world, timeout=None) as pool:
            outcomes = pool.outcomes(last_call, how, limit=30)
            assert [outcome.died for outcome in outcomes] == [0] * world


def test_interrupt_inside_a_waiting_call() -> None:
    with Pool(3) as pool:
        pool.start(wait_for, 2, "all_reduce", 100)
        time.sleep(0.5)
        since = pool.signal(0, signal.SIGINT)
        interrupted = pool.collect(20, [0])[0]
        assert interrupted.error == "KeyboardInterrupt", interrupted
        assert interrupted.finished - since < 1.0, interrupted
        other = pool.collect(20, [1])[0]
        assert other.error == "AbortedError" and other.ranks == (0,), other
        assert other.finished - since < 1.5, other


def handled_signals(comm: Any) -> tuple[int, float]:
    """Signals whose handler returns do not end a wait."""
    seen = []
    signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    if comm.rank == 0:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    else:
        time.sleep(0.6)
    total = comm.all_reduce(np.ones(100, np.float32))[0]
    signal.setitimer(signal.ITIMER_REAL, 0)
    return len(seen), float(total)


def test_a_signal_that_is_handled_does_not_end_a_wait(pools: Any) -> None:
    results = pools(2).run(handled_signals)
    assert results[0][0] >= 5, "the handler must run while the call waits"
    assert [total for _, total in results] == [2.0, 2.0]


def work_beside_a_wait(comm: Any) -> int:
    """How far another thread of rank 0 gets while its main thread waits half a second."""
    if comm.rank == 1:
        time.sleep(0.5)
        comm.barrier()
        return 0
    done, count = threading.Event(), [0]

    def work() -> None:
        while not done.is_set():
            count[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=work)
    thread.start()
    comm.barrier()
    done.set()
    thread.join()
    return count[0]


def test_other_threads_run_during_a_wait(pools: Any) -> None:
    assert pools(2).run(work_beside_a_wait)[0] > 50


def forget(comm: Any, key: str) -> Outcome | None:
    """A communicator that is garbage on one rank while the other waits counts as closed."""
    import collectives

    os.environ["TORCHELASTIC_RUN_ID"] = key
    new = collectives.Communicator(timeout=30)
    if comm.rank == 1:
        time.sleep(0.2)
        del new
        return None
    return attempt(comm.rank, new.all_reduce, np.ones(4, np.float32))


def test_a_communicator_that_is_garbage_counts_as_closed(pools: Any) -> None:
    outcome, _ = pools(2).run(forget, new_key())
    assert outcome.error == "ClosedError" and outcome.ranks == (1,) and outcome.elapsed < 1.5, outcome


def two_threads(comm: Any, keys: list[str], rounds: int) -> list[str]:
    """A communicator for each thread, all used at once."""
    import collectives

    made = []
    for key in keys:
        os.environ["TORCHELASTIC_RUN_ID"] = key
        made.append(collectives.Communicator(timeout=30))
    wrong: list[str] = []

    def work(i: int) -> None:
        for k in range(rounds):
            x = made[i].all_reduce(np.full(257, float(i + k), np.float32))
            if not (x == comm.world_size * (i + k)).all():
                wrong.append(f"thread {i} call {k}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(made))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for new in made:
        new.close()
    return wrong


@pytest.mark.parametrize("world", [2, 3])
def test_threads_with_a_communicator_each(pools: Any, world: int) -> None:
    assert pools(world).run(two_threads, [new_key() for _ in range(3)], 200) == [[]] * world


def one_for_two_threads(comm: Any, rounds: int) -> int:
    right = []

    def work() -> None:
        for _ in range(rounds):
            right.append(bool((comm.all_reduce(np.ones(100, np.float32)) == comm.world_size).all()))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(right)


def test_threads_that_share_a_communicator_take_turns(pools: Any) -> None:
    assert pools(3).run(one_for_two_threads, 200) == [400] * 3


@contextmanager
def forked(function: Any) -> Iterator[str]:
    """Run in a forked child; gives what it wrote."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            outcome = attempt(-1, function)
            os.write(write, f"{outcome.error} {'CollectiveError' in outcome.bases}: {outcome.text}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        yield pipe.read()
    os.waitpid(child, 0)


def use_in_child(comm: Any) -> list[str]:
    said = []
    for function in (lambda: comm.all_reduce(np.ones(4, np.float32)), comm.barrier, comm.abort, comm.close):
        with forked(function) as text:
            said.append(text)
    # The parent's communicator has not noticed.
    assert (comm.all_reduce(np.ones(4, np.float32)) == comm.world_size).all() and comm.healthy
    return said


def test_use_in_a_forked_child(pools: Any) -> None:
    for said in pools(2).run(use_in_child, limit=20):
        for text in said[:2]:
            assert text.startswith("ClosedError True") and "fork" in text, said


def child_makes_its_own(comm: Any, keys: list[str]) -> str:
    """A forked child of each rank makes a communicator of its own and uses it."""
    with forked(lambda: check_fresh(keys, comm.world_size)) as text:
        comm.barrier()
        return text


def check_fresh(keys: list[str], world: int) -> None:
    assert fresh(None, keys[0]) == world


def test_a_forked_child_can_make_its_own(pools: Any) -> None:
    assert pools(3).run(child_makes_its_own, [new_key()], limit=30) == [" False: "] * 3
