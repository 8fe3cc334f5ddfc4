"""Death and lateness of ranks: every call ends, in time, and names the right rank."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from typing import Any

import numpy as np
import pytest
from ranks import Outcome, Pool, attempt, new_key

NOTICED = 1.0  # seconds from a rank's end to the error on every survivor


def calls(comm: Any, collective: str, count: int) -> None:
    """One call of a collective."""
    x = np.ones(count, np.float32)
    if collective == "barrier":
        comm.barrier()
    elif collective == "broadcast":
        comm.broadcast(x, 0)
    elif collective in ("reduce_scatter", "all_to_all"):
        getattr(comm, collective)(np.ones((comm.world_size, count), np.float32))
    else:
        getattr(comm, collective)(x)


def wait_for(comm: Any, absent: int, collective: str, count: int) -> None:
    """Call until it raises; the absent rank sleeps instead."""
    if comm.rank == absent:
        time.sleep(60)
    while True:
        calls(comm, collective, count)


def loop(comm: Any, count: int, algorithm: str | None) -> None:
    x = np.ones(count, np.float32)
    while True:
        comm.all_reduce(x, algorithm=algorithm, op="max")


def warm_up(comm: Any) -> None:
    for _ in range(5):
        comm.barrier()


def again(comm: Any) -> tuple[bool, list[Outcome]]:
    """What a broken communicator says to later calls."""
    return comm.healthy, [
        attempt(comm.rank, calls, comm, name, 4) for name in ("all_reduce", "barrier", "broadcast")
    ]


def survivors_of(pool: Pool, dead: int) -> list[int]:
    return [rank for rank in range(pool.world) if rank != dead]


def assert_noticed(
    outcomes: list[Outcome], error: str, culprit: int, since: float, within: float = NOTICED
) -> None:
    for outcome in outcomes:
        assert outcome.error == error, outcome
        assert outcome.ranks == (culprit,), outcome
        assert f"rank {culprit}" in outcome.text, outcome
        # A rank that began its call later than that, on a busy machine, could not notice earlier.
        waited = min(outcome.finished - since, outcome.elapsed)
        assert waited < within, f"{waited:.2f} s: {outcome}"


def assert_stays_broken(pool: Pool, ranks: list[int], error: str, culprit: int) -> None:
    for outcome in pool.outcomes(again, ranks=ranks, limit=20):
        assert outcome.ok, outcome
        healthy, later = outcome.value
        assert not healthy
        for call in later:
            assert call.error == error and call.ranks == (culprit,) and call.elapsed < 0.2, call


@pytest.mark.parametrize(
    "collective",
    ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "gather", "all_to_all"],
)
@pytest.mark.parametrize(("world", "victim"), [(2, 0), (3, 2), (4, 1)])
def test_killed_before_its_call(world: int, victim: int, collective: str) -> None:
    for count in (4, 100_000) if collective == "all_reduce" else (1000,):
        with Pool(world) as pool:
            pool.start(wait_for, victim, collective, count)
            time.sleep(0.2)
            since = pool.signal(victim, signal.SIGKILL)
            survivors = survivors_of(pool, victim)
            assert_noticed(pool.collect(20, survivors), "PeerDiedError", victim, since)
            assert_stays_broken(pool, survivors, "PeerDiedError", victim)


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])
@pytest.mark.parametrize(("world", "victim"), [(2, 1), (4, 0), (8, 5)])
def test_killed_in_the_middle_of_a_call(world: int, victim: int, algorithm: str) -> None:
    with Pool(world) as pool:
        pool.run(warm_up)
        pool.start(loop, 1_000_000, algorithm)
        time.sleep(0.3)
        since = pool.signal(victim, signal.SIGKILL)
        assert_noticed(pool.collect(20, survivors_of(pool, victim)), "PeerDiedError", victim, since)
        assert_stays_broken(pool, survivors_of(pool, victim), "PeerDiedError", victim)


@pytest.mark.nightly
@pytest.mark.parametrize("world", [2, 3, 5])
def test_killed_at_any_moment(world: int) -> None:
    rng = random.Random(world)
    for _ in range(60):
        victim = rng.randrange(world)
        with Pool(world) as pool:
            pool.run(warm_up)
            pool.start(
                loop, rng.choice((1, 10, 1000, 20_000, 400_000)), rng.choice((None, "one_shot", "two_shot"))
            )
            time.sleep(rng.random() * 0.05)
            since = pool.signal(victim, signal.SIGKILL)
            assert_noticed(pool.collect(20, survivors_of(pool, victim)), "PeerDiedError", victim, since)
            assert_stays_broken(pool, survivors_of(pool, victim), "PeerDiedError", victim)


def loop_with_child(comm: Any, parent: int, path: str) -> None:
    if comm.rank == parent:
        child = os.fork()
        if child == 0:
            time.sleep(30)  # holds whatever descriptors and mappings it inherited
            os._exit(0)
        with open(path, "w") as file:
            file.write(str(child))
    loop(comm, 1000, None)


@pytest.mark.parametrize("world", [2, 3])
def test_killed_with_a_forked_child_alive(world: int, tmp_path: Any) -> None:
    path = tmp_path / "child"
    with Pool(world) as pool:
        pool.start(loop_with_child, 1, str(path))
        wait_until(lambda: path.exists() and path.read_text() != "")
        time.sleep(0.2)
        since = pool.signal(1, signal.SIGKILL)
        try:
            assert_noticed(pool.collect(20, survivors_of(pool, 1)), "PeerDiedError", 1, since)
        finally:
            os.kill(int(path.read_text()), signal.SIGKILL)


def wait_until(condition: Any, limit: float = 10.0) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def exit_between_calls(comm: Any, leaver: int, how: str) -> None:
    comm.barrier()
    if comm.rank == leaver:
        if how == "exception":
            sys.stderr = open(os.devnull, "w")
            os._exit(3)
        os.abort() if how == "abort" else os._exit(0)
    while True:
        comm.all_reduce(np.ones(10, np.float32))


@pytest.mark.parametrize("how", ["exit", "abort", "exception"])
def test_leaving_without_close(how: str) -> None:
    with Pool(3) as pool:
        pool.start(exit_between_calls, 1, how)
        since = time.monotonic()
        assert_noticed(pool.collect(20, [0, 2]), "PeerDiedError", 1, since, within=2.0)


def test_the_first_culprit_is_blamed() -> None:
    """Ranks that end because of another's death are not blamed by those who notice later."""
    with Pool(5) as pool:
        pool.start(end_when_broken, 2)
        time.sleep(0.3)
        pool.signal(2, signal.SIGKILL)
        outcomes = pool.collect(20, [0, 1, 3, 4])
        assert [outcome.died for outcome in outcomes[:2]] == [0, 0]
        for outcome in outcomes[2:]:
            assert outcome.error == "PeerDiedError" and outcome.ranks == (2,), outcome


def end_when_broken(comm: Any, victim: int) -> None:
    if comm.rank == victim:
        time.sleep(60)
    if comm.rank > 2:
        time.sleep(1.5)  # arrives when 2 is long dead and 0 and 1 have ended too
    try:
        comm.all_reduce(np.ones(1000, np.float32))
    except RuntimeError:
        if comm.rank < 2:
            os._exit(0)
        raise


@pytest.mark.parametrize("count", [4, 300_000])
@pytest.mark.parametrize(("world", "victim"), [(2, 0), (3, 1)])
def test_stopped_rank_is_reported_at_the_timeout(world: int, victim: int, count: int) -> None:
    with Pool(world, timeout=1.5) as pool:
        pool.run(warm_up)
        pool.start(loop, count, None)
        time.sleep(0.3)
        since = pool.signal(victim, signal.SIGSTOP)
        outcomes = pool.collect(20, survivors_of(pool, victim))
        assert_noticed(outcomes, "CollectiveTimeoutError", victim, since, within=3.5)
        for outcome in outcomes:
            assert outcome.finished - since > 1.3
            assert "TimeoutError" in outcome.bases and outcome.collective == "all_reduce", outcome
            assert (
                "all_reduce" in outcome.text and str(outcome.epoch) in outcome.text and outcome.epoch > 1
            ), outcome
        assert_stays_broken(pool, survivors_of(pool, victim), "CollectiveTimeoutError", victim)
        pool.signal(victim, signal.SIGCONT)
        late = pool.collect(10, [victim])[0]
        assert "CollectiveError" in late.bases, late


def late(comm: Any, sleeper: int, seconds: float) -> Outcome:
    for _ in range(5):
        comm.barrier()
    if comm.rank == sleeper:
        time.sleep(seconds)
    cpu = time.process_time()
    outcome = attempt(comm.rank, calls, comm, "all_gather", 100)
    outcome.value = time.process_time() - cpu
    return outcome


def test_late_rank_is_reported_at_the_timeout() -> None:
    with Pool(3, timeout=2.0) as pool:
        outcomes = pool.run(late, 1, 3.0)
        for rank in (0, 2):
            outcome = outcomes[rank]
            assert outcome.error == "CollectiveTimeoutError" and outcome.ranks == (1,), outcome
            assert 1.8 < outcome.elapsed < 4.0, outcome
            assert outcome.collective == "all_gather" and outcome.epoch == 6, outcome
            assert "all_gather" in outcome.text and "6" in outcome.text and "rank 1" in outcome.text, outcome
            assert outcome.value < 0.5, f"waiting two seconds took {outcome.value:.2f} s of CPU"
        assert "CollectiveError" in outcomes[1].bases and outcomes[1].elapsed < 1.0, outcomes[1]
        # After it, the ranks can make a new communicator and work on.
        assert pool.run(fresh, new_key()) == [3.0] * 3


def fresh(comm: Any, key: str) -> float:
    import collectives

    if comm is not None:
        comm.close()
    os.environ["TORCHELASTIC_RUN_ID"] = key
    with collectives.Communicator(timeout=20) as new:
        return float(new.all_reduce(np.ones(1, np.float32))[0])


def test_a_rank_that_is_late_but_in_time() -> None:
    with Pool(3, timeout=10.0) as pool:
        for outcome in pool.run(late, 2, 2.0):
            assert outcome.ok, outcome
            assert outcome.value < 0.5, f"waiting two seconds took {outcome.value:.2f} s of CPU"


def construct(comm: Any, absent: int, timeout: float) -> Any:
    import collectives

    if int(os.environ["RANK"]) == absent:
        return None
    return collectives.Communicator(timeout=timeout)


@pytest.mark.parametrize(("world", "absent"), [(2, 0), (2, 1), (3, 1), (4, 0)])
def test_rank_that_never_comes(world: int, absent: int) -> None:
    with Pool(world, timeout=None) as pool:
        for outcome in pool.outcomes(construct, absent, 1.5, limit=20):
            if outcome.rank == absent:
                continue
            assert outcome.error == "CollectiveTimeoutError" and outcome.ranks == (absent,), outcome
            assert f"{absent}" in outcome.text and 1.3 < outcome.elapsed < 3.5, outcome
        assert pool.run(fresh, new_key()) == [float(world)] * world
