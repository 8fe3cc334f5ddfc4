"""Messages that do not fit, bad arguments and timeouts of send, recv, isend and irecv."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from messages import LARGE, pattern
from ranks import Outcome, Pool, attempt


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
