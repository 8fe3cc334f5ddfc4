"""Hard moments of a call: stops, signal handlers, forks and the end of the program."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import may_pull
from ranks import LAUNCHERS, Outcome, Pool, attempt, new_key, rank_environment
from test_ending import forked
from test_failure import loop, wait_until, warm_up

HERE = Path(__file__).parent
kept: list[Any] = []  # what must outlive the call of a rank function


def ones(count: int = 100) -> np.ndarray[Any, Any]:
    return np.ones(count, np.float32)


def resident(pid: int) -> int:
    """Bytes of a process that are in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * mmap.PAGESIZE


def gather_then_reuse(comm: Any, count: int) -> Outcome:
    """A direct all_gather; whether it worked or not, the input holds something else afterwards."""
    x = np.full(count, comm.rank + 1, np.uint8)
    out = np.empty(count * comm.world_size, np.uint8)
    outcome = attempt(comm.rank, lambda: comm.all_gather(x, out, algorithm="direct"))
    outcome.value = [np.unique(part[::512]).tolist() for part in out.reshape(comm.world_size, -1)]
    x[:] = 77
    kept.append(x)
    return outcome


@pytest.mark.skipif(not may_pull(), reason="needs to read another process's memory")
def test_direct_gives_nothing_that_a_peer_wrote_after_it_gave_up() -> None:
    count = 64 << 20
    for _ in range(5):
        with Pool(3, timeout=1.5) as pool:
            pool.run(warm_up)
            pid = pool.pid(1)
            before = resident(pid)
            pool.start(gather_then_reuse, count)
            # Its input, its own part and some of rank 2's are there; the others wait in the last exchange.
            wait_until(lambda pid=pid, before=before: resident(pid) - before > 2.25 * count)
            pool.signal(1, signal.SIGSTOP)
            punctual = [outcome.value for outcome in pool.collect(20, [0, 2])]
            pool.signal(1, signal.SIGCONT)
            late = pool.collect(20, [1])[0].value
        if all(outcome.ok for outcome in punctual):  # the stop came too late
            assert late.ok and late.value == [[1], [2], [3]], late
            continue
        for outcome in (*punctual, late):
            assert outcome.error == "CollectiveTimeoutError" and outcome.ranks == (1,), outcome
        return
    pytest.fail("rank 1 could not be stopped while it was reading")


@pytest.mark.parametrize("count", [4, 300_000])
def test_a_rank_that_was_stopped_past_the_timeout_blames_itself(count: int) -> None:
    with Pool(3, timeout=1.0) as pool:
        pool.run(warm_up)
        pool.start(loop, count, None)
        time.sleep(0.2)
        pool.signal(1, signal.SIGSTOP)
        outcomes = pool.collect(20, [0, 2])
        pool.signal(1, signal.SIGCONT)
        for outcome in [*outcomes, *pool.collect(20, [1])]:
            assert outcome.error == "CollectiveTimeoutError" and outcome.ranks == (1,), outcome
            assert "rank 1 did not arrive" in outcome.text, outcome


def interrupted_barrier(comm: Any, what: str, path: str) -> tuple[Outcome, list[Outcome], bool]:
    """Rank 0's SIGALRM handler runs in the middle of its barrier; `path` exists once it has begun."""
    said: list[Outcome] = []

    def handle(*_: Any) -> None:
        Path(path).touch()
        if what == "ask":
            calls = (comm.last_receipt, comm.barrier, lambda: comm.all_reduce(ones()))
            said.extend(attempt(comm.rank, call) for call in (*calls, lambda: comm.explain("barrier", 0)))
        elif what == "close":
            comm.close()
        elif what == "abort and raise":
            comm.abort()
        else:
            time.sleep(0.7)  # the peer arrives meanwhile
        if "raise" in what:
            raise KeyboardInterrupt("mine")

    if comm.rank == 0:
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    outcome = attempt(comm.rank, comm.barrier)
    for call in said:
        call.value = None
    return outcome, said, comm.closed


def interrupt(pool: Pool, what: str, path: Path) -> list[tuple[Outcome, list[Outcome], bool]]:
    pool.start(interrupted_barrier, what, str(path), ranks=[0])
    wait_until(path.exists)
    pool.start(interrupted_barrier, what, str(path), ranks=[1])
    outcomes = pool.collect(20)
    assert all(outcome.ok for outcome in outcomes), outcomes
    return [outcome.value for outcome in outcomes]


def test_a_signal_handler_within_a_call_may_ask_nothing(tmp_path: Path) -> None:
    with Pool(2) as pool:
        (first, said, _), (second, _, _) = interrupt(pool, "ask", tmp_path / "handled")
        assert first.ok and second.ok, (first, second)
        assert len(said) == 4
        for outcome in said:
            assert outcome.error == "RuntimeError" and outcome.elapsed < 1, outcome
            assert "a signal handler may only abort() or close() it" in outcome.text, outcome
        pool.run(warm_up)


def test_a_signal_handler_within_a_call_may_close(tmp_path: Path) -> None:
    with Pool(2) as pool:
        (first, _, closed), (second, _, _) = interrupt(pool, "close", tmp_path / "handled")
        assert first.error == "AbortedError" and first.ranks == (0,) and first.elapsed < 2, first
        assert closed
        assert second.error in ("AbortedError", "ClosedError") and second.ranks == (0,), second


def test_what_a_signal_handler_raises_after_abort_comes_out(tmp_path: Path) -> None:
    with Pool(2) as pool:
        (first, _, _), (second, _, _) = interrupt(pool, "abort and raise", tmp_path / "handled")
        assert first.error == "KeyboardInterrupt" and first.text == "mine", first
        assert second.error == "AbortedError" and second.ranks == (0,), second


def test_what_a_slow_signal_handler_raises_while_the_peer_arrives_comes_out(tmp_path: Path) -> None:
    with Pool(2) as pool:
        (first, _, _), (second, _, _) = interrupt(pool, "wait and raise", tmp_path / "handled")
        assert first.error == "KeyboardInterrupt" and first.text == "mine", first
        # Rank 0 had done its part, so rank 1 may have its result; the next call tells it.
        assert second.ok or second.error == "AbortedError", second
        for outcome in pool.outcomes(all_reduce_ones, limit=20):
            assert outcome.error == "AbortedError" and outcome.ranks == (0,), outcome


def all_reduce_ones(comm: Any) -> float:
    return float(comm.all_reduce(ones())[0])


def wait_in_a_thread(comm: Any) -> None:
    kept.append(threading.Thread(target=comm.barrier))
    kept[-1].start()
    time.sleep(0.2)


def use_in_children(comm: Any) -> list[str]:
    calls = {
        "barrier": comm.barrier,
        "last_receipt": comm.last_receipt,
        "explain": lambda: comm.explain("barrier", 0),
        "bad": lambda: comm.all_reduce(None),
        "all_reduce": lambda: comm.all_reduce(ones()),
        "abort": comm.abort,
        "close": comm.close,
    }
    said = []
    for name, call in calls.items():
        # A child that hangs is ended by its alarm and has said nothing.
        with forked(lambda call=call: (signal.alarm(5), call())) as text:
            said.append(f"{name}: {text}")
    return said


def test_use_in_a_child_that_was_forked_during_a_call() -> None:
    with Pool(2) as pool:
        pool.outcomes(wait_in_a_thread, ranks=[0])
        said = pool.outcomes(use_in_children, ranks=[0], limit=50)[0].value
        for text in said[:3] + said[4:5]:
            assert "ClosedError True" in text and "fork" in text, text
        assert "TypeError" in said[3] or "ClosedError" in said[3], said
        assert [text.split()[1] for text in said[5:]] == ["False:"] * 2, said
        # The parent's call has not noticed.
        pool.run(end_the_wait, limit=20)


def end_the_wait(comm: Any) -> None:
    if comm.rank == 0:
        kept.pop().join()
    else:
        comm.barrier()
    warm_up(comm)


DAEMONS = """
import ranks, sys, threading, time
import collectives
comm = collectives.Communicator(timeout=20)
if comm.rank == 0:
    for _ in range(2):  # one waits for the peer, the other for its turn
        threading.Thread(target=comm.barrier, daemon=True).start()
    time.sleep(0.3)
else:
    sys.stdin.read()
    try:
        comm.barrier(), comm.barrier()
    except collectives.CollectiveError as error:
        print(error.ranks)
"""


def test_the_program_ends_while_daemon_threads_wait() -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    key, pipe = new_key(), subprocess.PIPE
    first, second = (
        subprocess.Popen(
            [sys.executable, "-c", DAEMONS],
            env=inherited | rank_environment(rank, 2, key) | {"PYTHONPATH": str(HERE)},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )
        for rank in range(2)
    )
    try:
        assert first.communicate(timeout=20) == ("", "") and first.returncode == 0
        assert second.communicate(timeout=20) == ("(0,)\n", "") and second.returncode == 0
    finally:
        first.kill()
        second.kill()


def test_a_source_tree_without_the_compiled_module_says_so(tmp_path: Path) -> None:
    package = tmp_path / "collectives"
    package.mkdir()
    for path in (HERE.parent / "collectives").glob("*.py"):
        shutil.copy(path, package)
    # Without site there is no editable install that would find the compiled module.
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import collectives"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: ") and "without its compiled module" in last, done.stderr
    assert "make build" in last and str(package) in last, done.stderr
