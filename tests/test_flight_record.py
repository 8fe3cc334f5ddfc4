"""The flight record: what it says, that it outlives its rank, and that torchfrtrace reads the dumps.

Long, because its rank functions share their helpers; to be split by subject.
"""

from __future__ import annotations

import gc
import importlib.util
import io
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import Pool, attempt, new_key, rank_environment

CALLS = 64  # that a rank keeps
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch's analyser")


def set_dump(_: Any, prefix: str) -> None:
    from collectives import flight_record

    os.environ["COLLECTIVES_DUMP"] = prefix
    flight_record.install_handler()


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


def work_until_killed(comm: Any, victim: int, dump: str, ready: str) -> Any:
    set_dump(comm, dump)
    for _ in range(3):
        comm.all_reduce(np.ones(100, np.float32))
    if comm.rank == victim:
        Path(ready).touch()
        time.sleep(60)
    outcome = attempt(comm.rank, comm.all_gather, np.ones(7, np.int16))
    outcome.value = [(r.epoch, r.state) for r in comm.flight_record(victim)]
    later = attempt(comm.rank, comm.barrier)
    assert (
        later.error == outcome.error and len(comm.flight_record()) == 4
    )  # the later call is not worth a place
    return outcome


@needs_torch
def test_a_dead_rank_is_quoted_and_dumped(tmp_path: Path) -> None:
    with Pool(3) as pool:
        folder, ready = tmp_path / "dumps", tmp_path / "ready"
        pool.start(work_until_killed, 1, f"{folder}/rank_", str(ready))
        wait_until(ready.exists)
        pool.signal(1, signal.SIGKILL)
        for outcome in pool.collect(20, [0, 2]):
            assert outcome.ok, outcome
            failed = outcome.value
            assert failed.error == "PeerDiedError", failed
            told = "rank 1's last call: all_reduce(sum, float32, 100 elements), call 3, completed "
            assert re.search(re.escape(told) + r"\d+\.\d s ago", failed.text), failed
            assert failed.value == [(1, "completed"), (2, "completed"), (3, "completed")]
    # Two ranks wrote at once, the dead rank's file too.
    assert sorted(os.listdir(folder)) == ["rank_0", "rank_1", "rank_2"]
    report = analyse(folder)
    assert "Not all ranks joining collective, sequence number: 4" in report
    assert "collective: gloo:all_gather" in report and "missing ranks: {1}" in report


def analyse(folder: Path) -> str:
    """What torchfrtrace says of the dump files in a folder. In this process: importing torch takes long."""
    from torch.distributed.flight_recorder import fr_trace

    said = io.StringIO()
    handler = logging.StreamHandler(said)
    logger = logging.getLogger("Flight Recorder")
    logger.addHandler(handler)
    try:
        fr_trace.main([str(folder)])
    finally:
        logger.removeHandler(handler)
        gc.enable()  # which it has switched off
    return said.getvalue()


def load(path: Path) -> Any:
    return pickle.loads(path.read_bytes())


def written_by(path: Path) -> int:
    return load(path)["written_by"] if path.exists() else -1


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


def one_calls_another(comm: Any, guilty: int, prefix: str) -> None:
    from collectives import flight_record

    for _ in range(100):
        comm.all_reduce(np.ones((4, 4), np.float32))
    call = comm.all_gather if comm.rank == guilty else comm.all_reduce
    assert attempt(comm.rank, call, np.ones((4, 4), np.float32)).error == "MismatchError"
    comm.barrier()
    if comm.rank == 0:
        assert flight_record.dump(prefix, [comm]) == [f"{prefix}{rank}" for rank in range(4)]
    comm.barrier()


@needs_torch
def test_torchfrtrace_names_the_rank_that_calls_another_collective(tmp_path: Path) -> None:
    with Pool(4) as pool:
        pool.run(one_calls_another, 2, str(tmp_path / "rank_"))
    report = analyse(tmp_path)
    assert "Collective sequence number: 101 has errors" in report
    assert report.count("Culprit rank") == 1
    assert "Culprit rank 2; Error type: COLLECTIVE_TYPE_MISMATCH" in report
    [odd] = [e for e in load(tmp_path / "rank_2")["entries"] if e["collective_seq_id"] == 101]
    assert (odd["profiling_name"], odd["input_sizes"], odd["output_sizes"], odd["state"]) == (
        "gloo:all_gather",
        [[4, 4]],
        [[64]],
        "failed",
    )


def one_is_behind(comm: Any, guilty: int, prefix: str) -> str:
    set_dump(comm, prefix)
    comm.all_reduce(np.ones(50, np.float32))
    if comm.rank == guilty:
        time.sleep(2.5)
        return ""
    return attempt(comm.rank, comm.broadcast, np.ones(50, np.float32)).error


@needs_torch
def test_torchfrtrace_names_the_rank_that_is_behind(tmp_path: Path) -> None:
    with Pool(4, timeout=1.0) as pool:
        assert pool.run(one_is_behind, 3, str(tmp_path / "rank_")) == ["CollectiveTimeoutError"] * 3 + [""]
    assert sorted(os.listdir(tmp_path)) == [f"rank_{rank}" for rank in range(4)]
    report = analyse(tmp_path)
    assert "Not all ranks joining collective, sequence number: 2" in report
    assert "collective: gloo:broadcast" in report and "missing ranks: {3}" in report


def wait_until(condition: Any, limit: float = 20.0) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def wait_with_handler(comm: Any, prefix: str, go: str) -> str:
    set_dump(comm, prefix)
    comm.barrier()
    if comm.rank == 0:
        wait_until(lambda: all(comm.flight_record(r)[-1].collective == "all_reduce" for r in (1, 2)))
        Path(go + "0").touch()
        wait_until(Path(go + "1").exists)
    comm.all_reduce(np.ones(6, np.float32))  # the others wait here when the signal comes
    return "done"


@needs_torch
def test_signal_while_ranks_wait(tmp_path: Path) -> None:
    with Pool(3) as pool:
        folder, go = tmp_path / "dumps", tmp_path / "go"
        pool.start(wait_with_handler, f"{folder}/rank_", str(go))
        wait_until(Path(f"{go}0").exists)
        for rank in (1, 2):
            pool.signal(rank, signal.SIGUSR2)
            wait_until(lambda: all(written_by(folder / f"rank_{r}") == rank for r in range(3)))  # noqa: B023
        Path(f"{go}1").touch()
        assert [outcome.value for outcome in pool.collect(20)] == ["done"] * 3
    report = analyse(folder)
    assert "missing ranks: {0}" in report and "collective state: scheduled" in report


SUBGROUPS = """
import pathlib, sys, time
import numpy as np
import collectives
from collectives import flight_record
from collectives.rendezvous import EnvironmentRendezvous
from collectives.environment import Launch, launched

me = launched()
everybody = collectives.Communicator()
pair = me.rank // 2
half = collectives.Communicator(
    EnvironmentRendezvous(Launch("torchrun", me.rank % 2, 2, me.rank % 2, 2, f"{me.job} {pair}"))
)
everybody.all_reduce(np.ones(3, np.float32))
for _ in range(70 * (pair + 1)):
    half.all_reduce(np.ones(5, np.float32))
everybody.barrier()
done = [pathlib.Path(f"{sys.argv[2]}{rank}") for rank in (0, 3)]
if me.rank in (0, 3):
    flight_record.dump(sys.argv[1])
    pathlib.Path(f"{sys.argv[2]}{me.rank}").touch()
while not all(path.exists() for path in done):  # no calls while somebody reads
    time.sleep(0.01)
"""


@needs_torch
def test_subgroups_share_files(tmp_path: Path) -> None:
    """Ranks of several communicators: files by the launcher's ranks, and no dump hides another's."""
    prefix = str(tmp_path / "dumps" / "rank_")
    key = new_key()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SUBGROUPS, prefix, str(tmp_path / "done")],
            env=os.environ | rank_environment(rank, 4, key),
        )
        for rank in range(4)
    ]
    assert [process.wait(60) for process in ranks] == [0] * 4
    for rank in range(4):
        dump = load(Path(f"{prefix}{rank}"))
        groups = sorted(config["ranks"] for config in dump["pg_config"].values())
        half = [0, 1] if rank < 2 else [2, 3]
        assert groups == sorted(["[0, 1, 2, 3]", str(half)])
        assert [entry["record_id"] for entry in dump["entries"]] == list(range(len(dump["entries"])))
        assert len(dump["entries"]) == CALLS + 2
    assert "missing ranks" not in analyse(tmp_path / "dumps")


def prefix_with_digit(comm: Any) -> None:
    from collectives import flight_record

    with pytest.raises(ValueError, match="must not end in a digit"):
        flight_record.dump("/nonexistent/run1")


def unwritable(comm: Any) -> Any:
    set_dump(comm, "/proc/nowhere/rank_")
    comm.barrier()
    if comm.rank == 0:
        comm.abort()
    return attempt(comm.rank, comm.barrier)


def test_bad_prefix_hides_no_error() -> None:
    with Pool(2) as pool:
        pool.run(prefix_with_digit)
        for outcome in pool.run(unwritable):
            assert outcome.error == "AbortedError", outcome


def test_what_lies_there_is_only_read_as_plain_data(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "sprung"),)

    (tmp_path / "rank_0").write_bytes(pickle.dumps({"process": Trap()}))
    with Pool(1) as pool:
        pool.run(dump_alone, str(tmp_path / "rank_"))
    assert os.listdir(tmp_path) == ["rank_0"]
    assert [entry["profiling_name"] for entry in load(tmp_path / "rank_0")["entries"]] == ["gloo:all_reduce"]


def dump_alone(comm: Any, prefix: str) -> None:
    from collectives import flight_record

    comm.all_reduce(np.ones(3, np.float32))
    flight_record.dump(prefix)
