"""Dumps of the flight record: when they are written, what is in them, and that torchfrtrace reads them."""

from __future__ import annotations

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
from flight import CALLS, analyse, load, needs_torch, set_dump, wait_until
from ranks import Pool, attempt, new_key, rank_environment


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


def written_by(path: Path) -> int:
    return load(path)["written_by"] if path.exists() else -1


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
