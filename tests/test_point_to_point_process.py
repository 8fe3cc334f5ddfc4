"""What messages are to the process: forked children, the thread, the table for C callers, and memory."""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import Any

import numpy as np
from messages import LARGE, pattern
from ranks import Pool, attempt


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
