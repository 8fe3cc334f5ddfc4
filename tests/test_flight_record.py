"""The flight record: what every rank reads of every rank, and what errors quote of it."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flight import CALLS, wait_until
from ranks import Pool, attempt


def mixed_calls(comm: Any) -> list[list[Any]]:
    before = time.time_ns()
    start = len(comm.flight_record())
    w = comm.world_size
    comm.all_reduce(np.ones((2, 3), np.float32), op="max")
    comm.all_gather(np.ones(5, np.int64))
    comm.reduce_scatter(np.ones((w, 1000), np.float64), op="avg")
    comm.broadcast(np.ones((1, 1, 1, 1, 1, 1, 7), np.uint8), root=w - 1)
    comm.all_reduce(np.ones(1_000_000, np.float16), algorithm="two_shot")
    comm.barrier()
    after = time.time_ns()
    comm.barrier()  # so that every rank has ended the one before
    read = [comm.flight_record(rank)[start : start + 6] for rank in range(w)]
    comm.barrier()
    for rank, records in enumerate(read):
        assert [r.rank for r in records] == [rank] * 6
        for r in records:
            assert r.state == "completed" and r.ended_at is not None, r
            assert r.queued_at <= (r.started_at or r.ended_at) <= r.ended_at, r
            # Ranks call at other times, but none ends before all have called.
            assert before - 50_000_000 < r.ended_at and r.queued_at < after + 50_000_000, r
        assert records[4].started_at is not None
    return [
        [(r.collective, r.op, r.dtype, r.count, r.shape, r.root, r.algorithm, r.epoch) for r in records]
        for records in read
    ]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_every_rank_reads_every_record(world: int) -> None:
    with Pool(world) as pool:
        first, *others = pool.run(mixed_calls)
        assert all(other == first for other in others)
        for records in first:
            assert [record[:6] for record in records] == [
                ("all_reduce", "max", "float32", 6, (2, 3), None),
                ("all_gather", None, "int64", 5, (5,), None),
                ("reduce_scatter", "avg", "float64", 1000, (world, 1000), None),
                ("broadcast", None, "uint8", 7, None, world - 1),  # more dimensions than are kept
                ("all_reduce", "sum", "float16", 1_000_000, (1_000_000,), None),
                ("barrier", None, None, 0, None, None),
            ]
            assert [record[7] for record in records] == [1, 2, 3, 4, 5, 6]
            assert records[0][6] == "inline" and records[4][6] == "two_shot"


def many_calls(comm: Any, count: int) -> list[tuple[int, tuple[int, ...] | None]]:
    for i in range(count):
        comm.all_reduce(np.ones(i % 9, np.int32))
    comm.barrier()
    return [(r.epoch, r.shape) for r in comm.flight_record((comm.rank + 1) % comm.world_size)]


def test_wrap_around() -> None:
    with Pool(2) as pool:
        for records in pool.run(many_calls, 200):
            # The neighbour may not have ended its barrier yet, but it has begun it.
            assert records[:-1] == [(i + 1, (i % 9,)) for i in range(200 - CALLS + 1, 200)]
            assert records[-1] == (201, None)


def refused_and_mismatched(comm: Any) -> list[tuple[str, str, int]]:
    comm.all_reduce(np.ones(4, np.float32))
    guilty = comm.rank == 1
    attempt(comm.rank, comm.all_reduce, "no array" if guilty else np.ones(4, np.float32))
    attempt(comm.rank, comm.all_reduce, np.ones(8 if guilty else 4, np.float32))
    attempt(comm.rank, comm.broadcast, np.ones(4, np.float32), 99 if guilty else 0)
    with pytest.raises(ValueError, match="direct"):
        comm.all_reduce(np.ones(4, np.float32), algorithm="direct")
    comm.barrier()
    assert comm.healthy
    return [(r.collective, r.state, r.count) for r in comm.flight_record(1)[:5]]


def test_refused_and_mismatched_calls() -> None:
    with Pool(3) as pool:
        for records in pool.run(refused_and_mismatched):
            assert records == [
                ("all_reduce", "completed", 4),
                ("all_reduce", "failed", 0),  # refused before anything of it was known
                ("all_reduce", "failed", 8),
                ("broadcast", "failed", 0),
                ("all_reduce", "failed", 4),  # no such algorithm for it, as all ranks find
            ]


def bad_rank(comm: Any) -> None:
    for rank in (-1, comm.world_size):
        with pytest.raises(ValueError, match=f"rank {rank} is no rank"):
            comm.flight_record(rank)


def closed(comm: Any) -> int:
    comm.barrier()
    comm.close()
    return len(comm.flight_record(0))


def test_bad_rank_and_closed_communicator() -> None:
    with Pool(2) as pool:
        pool.run(bad_rank)
        assert all(count in (0, 1) for count in pool.run(closed))


def never_called(comm: Any) -> str:
    if comm.rank == 1:
        time.sleep(2)
        return ""
    return attempt(comm.rank, comm.barrier).text


def test_a_rank_without_a_call() -> None:
    with Pool(2, timeout=1.0) as pool:
        text = pool.run(never_called)[0]
        assert "rank 1 did not arrive within the timeout of 1 s; rank 1 has made no call. The" in text


def stuck_in_the_middle(comm: Any, path: str) -> str:
    while True:
        outcome = attempt(comm.rank, comm.all_reduce, np.ones(4_000_000, np.float32))
        Path(path).touch()
        if not outcome.ok:
            return outcome.text


def test_a_stopped_rank_is_quoted(tmp_path: Path) -> None:
    with Pool(2, timeout=3.0) as pool:
        pool.start(stuck_in_the_middle, str(tmp_path / "there"))
        wait_until((tmp_path / "there").exists)
        pool.signal(1, signal.SIGSTOP)
        text = pool.collect(20, [0])[0].value
        pool.signal(1, signal.SIGCONT)
        pool.collect(20, [1])
        last = r"rank 1's last call: all_reduce\(sum, float32, 4000000 elements\), call \d+, "
        assert re.search(last + r"(in it for|waiting in it for|completed) \d\.\d s", text), text
