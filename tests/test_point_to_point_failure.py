"""Messages between two ranks of which one dies, leaves, gives up or is interrupted."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from messages import LARGE, blocking_shift, pattern
from ranks import Outcome, Pool, attempt

NOTICED = 1.0  # seconds from a rank's end to the error on the other


def assert_noticed(outcome: Outcome, since: float) -> None:
    # A rank that began its call later than that, on a busy machine, could not notice earlier.
    assert min(outcome.finished - since, outcome.elapsed) < NOTICED, outcome


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
