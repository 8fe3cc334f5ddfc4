"""Messages between two ranks: send, recv, isend and irecv.

Long, because its rank functions share their helpers; to be split by subject.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from ranks import Outcome, Pool, attempt

WORLDS = (1, 2, 3, 4, 5, 8)
NOTICED = 1.0  # seconds from a rank's end to the error on the other
LARGE = 1_500_000  # elements of float32: far more than a ring holds


def assert_noticed(outcome: Outcome, since: float) -> None:
    # A rank that began its call later than that, on a busy machine, could not notice earlier.
    assert min(outcome.finished - since, outcome.elapsed) < NOTICED, outcome


def pattern(count: int, *numbers: int) -> Any:
    """Elements that tell who sent what."""
    rng = np.random.default_rng(numbers)
    return rng.integers(0, 256, 4 * count, dtype=np.uint8).view(np.int32)


def ring_shift(comm: Any, counts: list[int]) -> None:
    after, before = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    for step, count in enumerate(counts):
        x, y = pattern(count, comm.rank, step), np.zeros(count, np.int32)
        received = comm.irecv(y, before, tag=step)
        sent = comm.isend(x, after, tag=step)
        # Ranks wait in different orders.
        for request in (received, sent) if comm.rank % 2 else (sent, received):
            assert request.wait(timeout=50) is None and request.done
        assert received.source == before and sent.source is None
        assert (y == pattern(count, before, step)).all(), (count, step)


@pytest.mark.parametrize("world", WORLDS)
def test_ring_shift(pools: Any, world: int) -> None:
    pools(world).run(ring_shift, [0, 1, 7, 4097, 1_000_000], limit=100)


def blocking_shift(comm: Any, counts: list[int]) -> None:
    """Even ranks send first, odd ranks receive first; the messages are larger than the ring."""
    if comm.world_size % 2 and comm.rank == comm.world_size - 1:
        return
    other = comm.rank ^ 1
    for count in counts:
        x, y = pattern(count, comm.rank), np.zeros(count, np.int32)
        if comm.rank % 2:
            assert comm.recv(y, other) == other
            comm.send(x, other)
        else:
            comm.send(x, other)
            assert comm.recv(y, None) == other
        assert (y == pattern(count, other)).all()


@pytest.mark.parametrize("world", [2, 5])
def test_blocking(pools: Any, world: int) -> None:
    pools(world).run(blocking_shift, [0, 1, 100, 65_529, 65_536, LARGE], limit=60)


def tags_out_of_order(comm: Any, count: int, seed: int) -> None:
    tags = [*range(6), 2**32 - 1]
    order = np.random.default_rng(seed).permutation(tags)
    if comm.rank == 0:
        for tag in tags:
            for k in range(2):
                comm.send(pattern(count, tag, k), 1, tag=tag)
    elif comm.rank == 1:
        for tag in order:
            for k in range(2):
                y = np.zeros(count, np.int32)
                assert comm.recv(y, 0, tag=int(tag)) == 0
                assert (y == pattern(count, int(tag), k)).all(), (tag, k)


@pytest.mark.parametrize("count", [0, 3, 300_000])
def test_tags_out_of_order(pools: Any, count: int) -> None:
    for seed in range(3):
        pools(2).run(tags_out_of_order, count, seed)


def gather_from_any(comm: Any, each: int) -> list[int]:
    """Rank 0 receives from whoever sends; returns the senders in order."""
    if comm.rank != 0:
        for k in range(each):
            comm.send(np.array([comm.rank, k]), 0, tag=4)
        comm.barrier()
        return []
    time.sleep(0.1)  # all have something to give
    senders, counters = [], [0] * comm.world_size
    for _ in range(each * (comm.world_size - 1)):
        y = np.zeros(2, np.int64)
        sender = comm.recv(y, tag=4)
        assert y.tolist() == [sender, counters[sender]]
        counters[sender] += 1
        senders.append(sender)
    comm.barrier()
    return senders


@pytest.mark.parametrize("world", [2, 3, 5])
def test_any_source_is_fair(pools: Any, world: int) -> None:
    senders = pools(world).run(gather_from_any, 200)[0]
    assert sorted(senders) == sorted(rank for rank in range(1, world) for _ in range(200))
    # Everybody who has something waiting is heard within the first few turns.
    assert set(senders[: 3 * (world - 1)]) == set(range(1, world))


def send_then_collective(comm: Any) -> None:
    """The sender of a large message does not wait for it, but enters a collective."""
    for _ in range(3):
        if comm.rank == 0:
            request = comm.isend(pattern(LARGE, 9), 1)
            assert not request.done
        elif comm.rank == 1:
            y = np.zeros(LARGE, np.int32)
            comm.recv(y, 0)
            assert (y == pattern(LARGE, 9)).all()
        comm.barrier()
        if comm.rank == 0:
            request.wait(30)


@pytest.mark.parametrize("world", [2, 3])
def test_isend_before_a_collective(pools: Any, world: int) -> None:
    pools(world).run(send_then_collective)


def recv_beside_collectives(comm: Any) -> None:
    """One thread sits in recv while another makes collectives."""
    y = np.zeros(10, np.int32)
    receiver = threading.Thread(target=lambda: comm.recv(y, (comm.rank - 1) % comm.world_size))
    receiver.start()
    for _ in range(20):
        x = comm.all_reduce(np.ones(1000, np.float32))
        assert (x == comm.world_size).all()
    assert receiver.is_alive()
    comm.barrier()
    comm.send(np.full(10, comm.rank, np.int32), (comm.rank + 1) % comm.world_size)
    receiver.join(20)
    assert (y == (comm.rank - 1) % comm.world_size).all()


def test_recv_while_another_thread_is_in_a_collective(pools: Any) -> None:
    pools(3).run(recv_beside_collectives)


def many_threads(comm: Any) -> list[str]:
    after, before = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    errors = []

    def talk(tag: int) -> None:
        try:
            for k in range(20):
                count = 100_000 if k % 7 == 0 else 50
                y = np.zeros(count, np.int32)
                sent = comm.isend(pattern(count, comm.rank, tag, k), after, tag)
                assert comm.recv(y, before if k % 2 else None, tag) == before
                assert (y == pattern(count, before, tag, k)).all()
                sent.wait()
        except BaseException as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_several_threads(pools: Any) -> None:
    assert pools(3).run(many_threads) == [[], [], []]


def to_oneself(comm: Any) -> None:
    rank = comm.rank
    for count in (0, 5, LARGE):
        x, y = pattern(count, rank), np.zeros(count, np.int32)
        comm.send(x, rank, tag=1)
        assert comm.recv(y, rank, tag=1) == rank
        assert (x == y).all()
        y[:] = 0
        request = comm.irecv(y, tag=2)
        assert not request.done
        comm.send(x, rank, tag=2)
        assert request.done and request.source == rank and (x == y).all()


@pytest.mark.parametrize("world", [1, 3])
def test_to_oneself(pools: Any, world: int) -> None:
    pools(world).run(to_oneself)


def any_layout(comm: Any) -> None:
    import torch

    x = np.arange(600, dtype=np.int64).reshape(20, 30)
    if comm.rank == 0:
        comm.send(x.T, 1)
        comm.isend(x[::-2, ::3], 1).wait()
        comm.send(torch.arange(24, dtype=torch.bfloat16).reshape(4, 6).t(), 1)
        comm.send(np.frombuffer(b"read-only", np.uint8), 1)
        return
    y = np.zeros((30, 40), np.int64)
    comm.recv(y[:, ::2], 0)
    assert (y[:, ::2] == x.T).all() and (y[:, 1::2] == 0).all()
    z = np.zeros((10, 10), np.int64)
    request = comm.irecv(z.T, 0)
    request.wait()
    assert (z.T.reshape(-1) == x[::-2, ::3].reshape(-1)).all()
    t = torch.zeros(6, 4, dtype=torch.bfloat16)
    comm.recv(t, 0)
    assert torch.equal(t, torch.arange(24, dtype=torch.bfloat16).reshape(4, 6).t())
    text = bytearray(9)
    comm.recv(text, 0)
    assert text == b"read-only"


def test_any_strides_and_libraries(pools: Any) -> None:
    pools(2).run(any_layout, limit=240)  # the first import of torch takes its time


def dropped(comm: Any) -> None:
    """Requests and arrays that nobody keeps: the transfer goes on."""
    for _ in range(5):
        if comm.rank == 0:
            comm.isend(pattern(LARGE, 3), 1)
            comm.irecv(np.zeros((LARGE, 2), np.int32)[:, 0], 1, tag=1)
            gc.collect()
            np.zeros(LARGE, np.int32)  # would take the memory that was let go of
        else:
            time.sleep(0.02)
            comm.send(pattern(LARGE, 4), 0, tag=1)
            y = np.zeros(LARGE, np.int32)
            comm.recv(y, 0)
            assert (y == pattern(LARGE, 3)).all()
        comm.barrier()


def test_dropped_requests_go_on(pools: Any) -> None:
    pools(2).run(dropped)


def mismatch(comm: Any, count: int) -> list[Outcome]:
    if comm.rank == 0:
        comm.send(np.zeros(count, np.float32), 1, tag=3)
        comm.send(np.zeros(count, np.float32), 1, tag=3)
        comm.send(pattern(count, 1), 1, tag=3)
        comm.barrier()
        return []
    outcomes = [
        attempt(1, comm.recv, np.zeros(count + 1, np.float32), 0, 3),
        attempt(1, lambda: comm.irecv(np.zeros(count, np.int32), None, 3).wait()),
    ]
    y = np.zeros(count, np.int32)
    comm.recv(y, 0, tag=3)
    assert (y == pattern(count, 1)).all()
    assert comm.healthy
    comm.barrier()
    return outcomes


@pytest.mark.parametrize("count", [0, 5, 400_000])
def test_mismatch(pools: Any, count: int) -> None:
    elements, dtype = pools(2).run(mismatch, count)[1]
    for outcome in (elements, dtype):
        assert outcome.error == "MismatchError" and outcome.ranks == (0,), outcome
        assert outcome.collective == "recv" and outcome.epoch > 0
        assert f"float32, {count} element" in outcome.text and "tag 3" in outcome.text, outcome.text
        assert "rank 0 sent" in outcome.text
    assert f"float32, {count + 1} element" in elements.text
    assert f"int32, {count} element" in dtype.text


BAD = {
    "rank too large": (lambda comm, x: comm.send(x, comm.world_size), "ValueError", "dest"),
    "negative rank": (lambda comm, x: comm.isend(x, -1), "ValueError", "dest -1"),
    "no rank": (lambda comm, x: comm.send(x, None), "TypeError", "dest"),
    "rank is a float": (lambda comm, x: comm.recv(x, 0.0), "TypeError", "source"),
    "source": (lambda comm, x: comm.irecv(x, 99), "ValueError", "source 99"),
    "tag": (lambda comm, x: comm.recv(x, 0, 2**32), "ValueError", "tag"),
    "huge tag": (lambda comm, x: comm.send(x, 0, 2**80), "ValueError", "tag"),
    "negative tag": (lambda comm, x: comm.send(x, 0, -1), "ValueError", "tag -1"),
    "timeout": (lambda comm, x: comm.recv(x, 0, timeout=0), "ValueError", "timeout"),
    "nan": (lambda comm, x: comm.send(x, 0, timeout=float("nan")), "ValueError", "timeout"),
    "no array": (lambda comm, x: comm.send("x", 0), "TypeError", "x"),
    "none": (lambda comm, x: comm.irecv(None), "TypeError", "x"),
    "read-only": (lambda comm, x: comm.recv(b"bytes"), "ValueError", "read-only"),
    "overlaps itself": (
        lambda comm, x: comm.recv(np.broadcast_to(np.zeros(1), (9,))),
        "ValueError",
        "x is read-only",
    ),
    "dtype": (lambda comm, x: comm.send(np.zeros(3, "datetime64[s]"), 0), "TypeError", "datetime64"),
}


def bad(comm: Any, name: str) -> Outcome:
    outcome = attempt(comm.rank, BAD[name][0], comm, np.zeros(4))
    x = np.full(4, comm.rank)
    comm.send(x, 0, tag=7)
    if comm.rank == 0:
        for _ in range(comm.world_size):
            comm.recv(x, tag=7)
    assert comm.healthy
    return outcome


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(pools: Any, name: str) -> None:
    _, error, word = BAD[name]
    for outcome in pools(2).run(bad, name):
        assert outcome.error == error and word in outcome.text, outcome


def late(comm: Any, seconds: float) -> list[Outcome]:
    if comm.rank == 1:
        time.sleep(8 * seconds)
        return [attempt(1, comm.barrier)]
    pending = comm.irecv(np.zeros(3), 1, tag=9)
    outcomes = [attempt(0, pending.wait, seconds)]
    assert comm.healthy and not pending.done
    outcomes.append(attempt(0, lambda: comm.recv(np.zeros(5), 1, tag=2, timeout=seconds)))
    outcomes.append(attempt(0, pending.wait))
    outcomes.append(attempt(0, comm.barrier))
    return outcomes


def test_timeout() -> None:
    with Pool(2) as pool:
        (waited, timed_out, other, later), (theirs,) = pool.run(late, 0.3)
    assert waited.error == "CollectiveTimeoutError" and "still pending after 0.3 s" in waited.text, waited
    assert 0.25 < waited.elapsed < 10
    assert timed_out.error == "CollectiveTimeoutError" and timed_out.ranks == (1,), timed_out
    for words in ("recv(float64, 5 elements, from rank 1, tag 2)", "within 0.3 s"):
        assert words in timed_out.text, timed_out.text
    assert 0.25 < timed_out.elapsed < 10
    assert "TimeoutError" in timed_out.bases and timed_out.collective == "recv"
    # As after a late collective, all is over, on both ranks.
    for outcome in (other, later, theirs):
        assert outcome.error == "CollectiveTimeoutError" and outcome.ranks == (1,), outcome


def large_send_times_out(comm: Any) -> Outcome | None:
    if comm.rank == 1:
        time.sleep(1.5)
        return None
    return attempt(0, lambda: comm.send(np.zeros(LARGE), 1, timeout=0.3))


def test_a_send_that_nobody_takes_times_out() -> None:
    with Pool(2) as pool:
        outcome = pool.run(large_send_times_out)[0]
    assert outcome.error == "CollectiveTimeoutError" and outcome.ranks == (1,), outcome
    assert "send(float64" in outcome.text and "to rank 1" in outcome.text


def endless(comm: Any, sends: bool) -> None:
    x = np.zeros(20_000_000, np.float32)
    other = 1 - comm.rank
    while True:
        if sends == (comm.rank == 0):
            comm.send(x, other)
        else:
            comm.recv(x, other)


@pytest.mark.parametrize("victim_sends", [True, False])
def test_killed_in_the_middle_of_a_message(victim_sends: bool) -> None:
    with Pool(2) as pool:
        pool.run(blocking_shift, [LARGE])
        pool.start(endless, not victim_sends)
        time.sleep(0.8)
        since = pool.signal(1, signal.SIGKILL)
        (outcome,) = pool.collect(20, [0])
        assert outcome.error == "PeerDiedError" and outcome.ranks == (1,), outcome
        assert ("recv" if victim_sends else "send") in outcome.text and "rank 1" in outcome.text
        assert_noticed(outcome, since)
        (again,) = pool.outcomes(endless, victim_sends, ranks=[0])
        assert again.error == "PeerDiedError", again


def wait_for_any(comm: Any) -> Any:
    if comm.rank == 2:
        time.sleep(60)
    return comm.recv(np.zeros(2), 0 if comm.rank == 1 else None, tag=1)


def test_killed_while_others_wait_for_any() -> None:
    with Pool(3) as pool:
        pool.start(wait_for_any)
        time.sleep(0.3)
        since = pool.signal(2, signal.SIGKILL)
        # Rank 1 does not wait for rank 2, but learns of it from rank 0.
        for outcome in pool.collect(20, [0, 1]):
            assert outcome.error == "PeerDiedError" and outcome.ranks == (2,), outcome
            assert_noticed(outcome, since)


def send_and_go(comm: Any, how: str) -> Any:
    if comm.rank == 0:
        for tag in (1, 2):
            comm.send(pattern(1000, tag), 1, tag=tag)
        if how == "close":
            comm.close()
            return None
        os._exit(0)
    time.sleep(0.5)
    for tag in (2, 1):
        y = np.zeros(1000, np.int32)
        assert comm.recv(y, 0, tag=tag) == 0
        assert (y == pattern(1000, tag)).all()
    return attempt(1, comm.recv, np.zeros(3), 0)


@pytest.mark.parametrize(("how", "error"), [("close", "ClosedError"), ("exit", "PeerDiedError")])
def test_what_was_sent_before_leaving_is_received(how: str, error: str) -> None:
    with Pool(2) as pool:
        outcome = pool.outcomes(send_and_go, how)[1]
        assert outcome.ok, outcome
        assert outcome.value.error == error and outcome.value.ranks == (0,), outcome.value
        assert outcome.value.elapsed < NOTICED


def end_it(comm: Any, how: str) -> tuple[Outcome, Outcome] | None:
    if comm.rank == 1:
        time.sleep(1)
        return None
    pending = comm.isend(np.zeros(LARGE), 1)
    threading.Timer(0.2, getattr(comm, how)).start()
    return attempt(0, comm.recv, np.zeros(3), 1), attempt(0, pending.wait)


@pytest.mark.parametrize(("how", "error"), [("close", "ClosedError"), ("abort", "AbortedError")])
def test_close_and_abort_end_what_is_pending(how: str, error: str) -> None:
    with Pool(2) as pool:
        outcomes = pool.run(end_it, how)[0]
        for outcome in outcomes:
            assert outcome.error == error and outcome.ranks == (0,), outcome
            assert outcome.elapsed < 0.2 + NOTICED


def interrupted(comm: Any, closes: bool) -> tuple[Outcome, bool] | Outcome:
    if comm.rank == 1:
        return attempt(1, comm.recv, np.zeros(3), 0)
    if closes:
        signal.signal(signal.SIGUSR2, lambda *_: comm.close())
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR2 if closes else signal.SIGINT)).start()
    return attempt(0, comm.recv, np.zeros(3), 1), comm.healthy


@pytest.mark.parametrize("closes", [False, True])
def test_signals(closes: bool) -> None:
    with Pool(2) as pool:
        (outcome, healthy), theirs = pool.run(interrupted, closes)
    assert outcome.error == ("ClosedError" if closes else "KeyboardInterrupt"), outcome
    assert outcome.elapsed < 0.3 + NOTICED and not healthy
    assert theirs.error == ("ClosedError" if closes else "AbortedError") and theirs.ranks == (0,), theirs


def interrupted_wait(comm: Any) -> Outcome | None:
    if comm.rank == 1:
        comm.barrier()
        comm.send(pattern(5, 1), 0)
        return None
    y = np.zeros(5, np.int32)
    request = comm.irecv(y, 1)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    outcome = attempt(0, request.wait)
    assert not request.done
    comm.barrier()
    request.wait()
    assert (y == pattern(5, 1)).all() and comm.healthy
    return outcome


def test_an_interrupted_wait_leaves_the_request() -> None:
    with Pool(2) as pool:
        outcome = pool.run(interrupted_wait)[0]
    assert outcome.error == "KeyboardInterrupt", outcome


def in_a_child(comm: Any) -> list[str]:
    """What a forked child of rank 0 sees, while the parent has a request, a thread and a waiter."""
    if comm.rank == 1:
        time.sleep(0.5)
        y = np.zeros(LARGE, np.int32)
        comm.recv(y, 0)
        comm.send(np.zeros(3), 0, tag=5)
        return []
    sent = comm.isend(pattern(LARGE, 2), 1)
    waiter = threading.Thread(target=comm.recv, args=(np.zeros(3), 1, 5))
    waiter.start()
    time.sleep(0.1)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        outcomes = [attempt(0, comm.send, np.zeros(3), 1), attempt(0, sent.wait)]
        del sent
        comm.close()
        del comm
        gc.collect()
        os.write(theirs, "\n".join(f"{o.error}: {o.text}" for o in outcomes).encode())
        os._exit(7)
    os.close(theirs)
    with open(ours) as pipe:
        said = pipe.read().split("\n")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    sent.wait()
    waiter.join(20)
    assert not waiter.is_alive()
    return said


def test_in_a_forked_child() -> None:
    with Pool(2) as pool:
        said = pool.run(in_a_child)[0]
    assert len(said) == 2 and all(line.startswith("ClosedError") and "parent" in line for line in said), said


def threads_of_this_process() -> int:
    return len(os.listdir("/proc/self/task"))


def thread_comes_and_goes(comm: Any) -> tuple[int, int, int]:
    if comm.rank == 1:
        comm.barrier()
        comm.recv(np.zeros(LARGE), 0)
        comm.barrier()
        return 0, 0, 0
    before = threads_of_this_process()
    request = comm.isend(np.zeros(LARGE), 1)
    during = threads_of_this_process()
    comm.barrier()
    request.wait()
    comm.barrier()
    deadline = time.monotonic() + 10
    while threads_of_this_process() > before and time.monotonic() < deadline:
        time.sleep(0.1)
    return before, during, threads_of_this_process()


def test_the_thread_comes_when_needed_and_goes() -> None:
    with Pool(2) as pool:
        before, during, after = pool.run(thread_comes_and_goes)[0]
    assert during == before + 1 and after == before


def through_the_table(comm: Any) -> None:
    import ctypes

    from test_capsule import OK, Done, Message, last_error, table

    from collectives import _native

    functions, handle, other = table(), _native.handle(comm), 1 - comm.rank
    statuses: list[int] = []
    done = Done(lambda _, status: statuses.append(status))
    x, y = np.full(100_000, comm.rank, np.float32), np.zeros(100_000, np.float32)
    outgoing = Message(x.ctypes.data, x.size, 0.0, other, 5, 0)
    incoming = Message(y.ctypes.data, y.size, 0.0, -1, 5, 0)

    received = functions.post_recv(handle, ctypes.byref(incoming), done, None)
    sent = functions.post_send(handle, ctypes.byref(outgoing), done, None)
    assert functions.wait(sent, 0.0) == OK and functions.wait(received, 20.0) == OK
    assert functions.finished(sent) == functions.finished(received) == 1
    assert functions.source(received) == other and functions.source(sent) == -1
    assert statuses == [OK, OK] and (y == other).all()
    functions.release(sent)
    functions.release(received)

    if comm.rank == 0:
        assert functions.send(handle, ctypes.byref(outgoing)) == OK
        assert functions.send(handle, ctypes.byref(outgoing)) == OK
    else:
        assert functions.recv(handle, ctypes.byref(incoming)) == OK and incoming.peer == 0
        short = Message(y.ctypes.data, 5, 0.0, 0, 5, 0)
        assert functions.recv(handle, ctypes.byref(short)) == 2  # mismatched
        assert "5 elements" in last_error(functions)[0] and last_error(functions)[2] == [0]
        late = functions.post_recv(handle, ctypes.byref(incoming), Done(), None)
        assert functions.wait(late, 0.05) == 4 + 1 and functions.finished(late) == 0  # timed out
        functions.release(late)
    nobody = Message(x.ctypes.data, 1, 0.0, 2, 5, 0)
    assert functions.post_send(handle, ctypes.byref(nobody), Done(), None) is None
    assert "rank 2" in last_error(functions)[0]
    unknown = Message(x.ctypes.data, 1, 0.0, other, 5, 99)
    assert functions.send(handle, ctypes.byref(unknown)) == 1  # bad argument


def test_through_the_table() -> None:
    with Pool(2) as pool:
        pool.run(through_the_table)


def unexpected_memory(comm: Any, rounds: int) -> int:
    """Unexpected messages and requests leave nothing behind; returns the growth in KB."""

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4

    def round_trip() -> None:
        y = np.zeros(10_000, np.int32)
        for _ in range(rounds):
            for tag in range(4):
                comm.isend(y, 1 - comm.rank, tag)
            for tag in reversed(range(4)):
                comm.recv(y, 1 - comm.rank, tag)

    round_trip()
    before = resident()
    round_trip()
    return resident() - before


def test_no_memory_is_lost(pools: Any) -> None:
    for growth in pools(2).run(unexpected_memory, 150):
        assert growth < 4000, growth  # 150 rounds of 160 KB are 24 MB
