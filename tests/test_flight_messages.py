"""The flight record of messages between two ranks."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flight import analyse, needs_torch, set_dump, wait_until
from ranks import Pool, attempt


def said_of_messages(comm: Any, rank: int) -> list[tuple[Any, ...]]:
    return [
        (r.collective, r.peer, r.tag, r.epoch, r.dtype, r.count, r.state)
        for r in comm.flight_record(rank)
        if r.is_p2p
    ]


def out_of_order(comm: Any) -> list[Any]:
    """Rank 0 sends tags 1, 2, 3 to rank 1, which receives 3, any source's 1, 2; rank 2 sends it one more."""
    x = np.arange(5, dtype=np.int16)
    if comm.rank == 0:
        for tag in (1, 2, 3):
            comm.send(x[: tag + 1], 1, tag=tag)
    if comm.rank == 1:
        y = np.zeros(5, np.int16)
        comm.recv(y[:4], 0, tag=3)
        assert comm.recv(y[:2], tag=1) == 0
        comm.recv(y[:3], 0, tag=2)
        request = comm.irecv(y)
        assert said_of_messages(comm, 1)[-1] == ("recv", None, 0, 0, "int16", 5, "queued")
        comm.barrier()
        request.wait()
    else:
        comm.barrier()
        if comm.rank == 2:
            comm.send(x, 1)
    comm.barrier()
    read = [said_of_messages(comm, rank) for rank in range(3)]
    comm.barrier()
    return read


def test_numbers_follow_the_senders_order() -> None:
    with Pool(3) as pool:
        for zero, one, two in pool.run(out_of_order):
            assert zero == [("send", 1, t, t, "int16", t + 1, "completed") for t in (1, 2, 3)]
            assert one == [
                ("recv", 0, 3, 3, "int16", 4, "completed"),
                ("recv", 0, 1, 1, "int16", 2, "completed"),
                ("recv", 0, 2, 2, "int16", 3, "completed"),
                ("recv", 2, 0, 1, "int16", 5, "completed"),
            ]
            assert two == [("send", 1, 0, 1, "int16", 5, "completed")]


def times(comm: Any) -> None:
    """A message larger than the ring is under way until its receiver takes it."""
    x = np.ones(2_000_000, np.float32)
    if comm.rank == 0:
        request = comm.isend(x, 1)
        wait_until(lambda: comm.flight_record(0)[-1].state == "started")
        assert comm.flight_record(0)[-1].ended_at is None
        comm.barrier()
        request.wait()
        r = next(r for r in comm.flight_record(0) if r.is_p2p)
        assert r.state == "completed" and r.queued_at <= r.started_at <= r.ended_at
    else:
        comm.barrier()
        comm.recv(x, 0)
    comm.barrier()


def test_times_of_a_large_message() -> None:
    with Pool(2) as pool:
        pool.run(times)


def to_itself_and_wrong(comm: Any) -> list[Any]:
    x, y = np.ones(3, np.float32), np.zeros(4, np.float32)
    comm.isend(x, comm.rank, tag=7).wait()
    assert attempt(comm.rank, comm.recv, y, comm.rank, 7).error == "MismatchError"
    with pytest.raises(ValueError, match="is no rank"):
        comm.send(x, 99)
    return said_of_messages(comm, comm.rank)


def test_a_rank_to_itself_and_refused_ones() -> None:
    with Pool(1) as pool:
        [said] = pool.run(to_itself_and_wrong)
        assert said == [
            ("send", 0, 7, 1, "float32", 3, "completed"),
            ("recv", 0, 7, 1, "float32", 4, "failed"),
        ]


def one_never_sends(comm: Any, prefix: str) -> str:
    set_dump(comm, prefix)
    x = np.ones(10, np.float32)
    for _ in range(3):
        comm.send(x, 1) if comm.rank == 0 else comm.recv(x, 0)
    if comm.rank == 0:
        time.sleep(60)
    return attempt(comm.rank, comm.recv, x, 0).error


@needs_torch
def test_torchfrtrace_names_the_sender_that_hangs(tmp_path: Path) -> None:
    with Pool(2, timeout=1.0) as pool:
        pool.start(one_never_sends, str(tmp_path / "rank_"))
        assert pool.collect(20, [1])[0].value == "CollectiveTimeoutError"
        pool.signal(0, signal.SIGKILL)
    report = analyse(tmp_path)
    assert "missing ranks: {0}" in report and "recv 1<-0" in report, report


def records_of_messages(_: Any) -> None:
    from collectives import _native, flight_record

    words = _native.vocabulary()
    send, recv = words["collective"].index("send"), words["collective"].index("recv")

    def raw(serial: int, epoch: int, collective: int, peer: int) -> bytes:
        codes = (collective, 0, words["dtype"].index("int32"), 0, 3, 1)
        return flight_record._FORMAT.pack(serial, epoch, 9, 10, 11, 12, 9, *[0] * 5, peer, 42, *codes)

    sent, received = flight_record.decode(raw(1, 5, send, 1) + raw(2, 6, recv, 0xFFFFFFFF), 0)
    assert sent.is_p2p and (sent.peer, sent.tag, sent.epoch, sent.shape) == (1, 42, 5, (9,))
    assert received.is_p2p and received.peer is None and received.root is None

    class Owner:
        healthy, closed = True, False

    prefix = os.environ["TEST_PREFIX"]
    owner = Owner()
    said = {0: raw(1, 1, send, 1) + raw(2, 1, send, 2), 1: raw(1, 1, recv, 0), 2: b""}
    announcements = [bytes(8) + bytes([rank]) * 16 for rank in range(3)]
    flight_record.register(owner, 0, announcements, read=lambda _, rank: said[rank])
    flight_record.dump(prefix, [owner])


@needs_torch
def test_messages_in_a_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PREFIX", str(tmp_path / "rank_"))
    records_of_messages(None)
    report = analyse(tmp_path)
    # The message from 0 to 1 has both ends, that from 0 to 2 was never received.
    assert "missing ranks: {2}" in report and report.count("Not all ranks joining") == 1, report
    assert "gloo:send 0->1" in report
