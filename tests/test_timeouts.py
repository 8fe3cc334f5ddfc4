"""The timeout of one call, and of all calls from now on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ranks import Outcome, Pool, attempt

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "reduce_scatter",
    "scatter",
    "all_to_all",
    "all_to_all_v",
    "broadcast",
    "barrier",
)


@pytest.fixture
def pair() -> Iterator[Pool]:
    with Pool(2) as pool:
        yield pool


def call(comm: Any, collective: str, count: int, **options: Any) -> None:
    world = comm.world_size
    x = np.ones(count * world, np.float32)
    if collective == "barrier":
        comm.barrier(**options)
    elif collective == "all_to_all_v":
        counts = [count] * world
        comm.all_to_all(x, send_counts=counts, recv_counts=counts, **options)
    elif collective == "scatter":
        comm.scatter(x, x[:count].copy(), root=1, **options)
    else:
        getattr(comm, collective)(x, **options)


def alone(comm: Any, collective: str, count: int, timeout: float) -> Outcome | None:
    """All ranks call once; then rank 0 calls again and rank 1 does not."""
    call(comm, collective, count, timeout=30)
    if comm.rank == 1:
        time.sleep(3 * timeout)
        return None
    return attempt(comm.rank, lambda: call(comm, collective, count, timeout=timeout))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_call_keeps_its_own_timeout(pair: Pool, collective: str) -> None:
    """The communicator's is 60 s."""
    count = 5 if COLLECTIVES.index(collective) % 2 else 100_000
    outcome = pair.run(alone, collective, count, 0.3, limit=90)[0]
    assert outcome.error == "CollectiveTimeoutError" and outcome.ranks == (1,), outcome
    assert "rank 1 did not arrive within the timeout of 0.3 s" in outcome.text, outcome
    assert collective in outcome.text and 0.3 <= outcome.elapsed < 30, outcome


def changed(comm: Any) -> list[Any]:
    """set_timeout() counts for the calls that have no timeout of their own."""
    comm.set_timeout(0.3)
    found: list[Any] = [comm.timeout]
    if comm.rank == 1:
        time.sleep(1)
    call(comm, "all_reduce", 10, timeout=20)
    if comm.rank == 1:
        time.sleep(1)
        return found
    return [*found, attempt(comm.rank, lambda: call(comm, "reduce", 10))]


def test_set_timeout(pair: Pool) -> None:
    (first, outcome), second = pair.run(changed, limit=90)
    assert [first] == second == [0.3]
    assert outcome.error == "CollectiveTimeoutError" and "timeout of 0.3 s" in outcome.text, outcome


def given_up_by_a_peer(comm: Any) -> Outcome | None:
    """Rank 0 gives up on rank 2; rank 1, more patient, must not claim to have waited as long."""
    if comm.rank == 2:
        time.sleep(1.5)
        return None
    return attempt(comm.rank, lambda: call(comm, "all_reduce", 10, timeout=0.3 if comm.rank == 0 else 40.0))


def test_a_patient_rank_names_its_own_timeout() -> None:
    with Pool(3) as pool:
        impatient, patient, _ = pool.run(given_up_by_a_peer, limit=90)
    assert impatient.ranks == patient.ranks == (2,), (impatient, patient)
    assert "timeout of 0.3 s" in impatient.text, impatient
    assert "in time for another rank (the timeout of this one: 40 s)" in patient.text, patient
    assert patient.elapsed < 30, patient


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_set_timeout_wants_a_number_of_seconds(pools: Any, seconds: float) -> None:
    for outcome in pools(2).outcomes(set_timeout, seconds):
        assert outcome.error == "ValueError", outcome


def set_timeout(comm: Any, seconds: float) -> None:
    try:
        comm.set_timeout(seconds)
    finally:
        assert comm.timeout == 60


def counts_calls(comm: Any) -> None:
    before = comm.epoch
    call(comm, "all_to_all_v", 3)
    assert comm.epoch == comm.last_receipt().epoch == before + 1
    attempt(comm.rank, lambda: comm.all_reduce(1))  # refused calls count
    assert comm.epoch == before + 2


def test_epoch(pools: Any) -> None:
    pools(2).run(counts_calls)
