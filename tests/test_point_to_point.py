"""Messages between two ranks: send, recv, isend and irecv deliver, in order, beside all else."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import numpy as np
import pytest
from messages import LARGE, blocking_shift, pattern

WORLDS = (1, 2, 3, 4, 5, 8)


def ring_shift(comm: Any, counts: list[int]) -> None:
    after, before = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    for step, count in enumerate(counts):
        x, y = pattern(count, comm.rank, step), np.zeros(count, np.int32)
        received = comm.irecv(y, before, tag=step)
        sent = comm.isend(x, after, tag=step)
        # Ranks wait in different orders.
        for request in (received, sent) if comm.rank % 2 else (sent, received):
            assert request.wait(timeout=50) is None and request.done
        assert received.source == before and sent.source is None
        assert (y == pattern(count, before, step)).all(), (count, step)


@pytest.mark.parametrize("world", WORLDS)
def test_ring_shift(pools: Any, world: int) -> None:
    pools(world).run(ring_shift, [0, 1, 7, 4097, 1_000_000], limit=100)


@pytest.mark.parametrize("world", [2, 5])
def test_blocking(pools: Any, world: int) -> None:
    pools(world).run(blocking_shift, [0, 1, 100, 65_529, 65_536, LARGE], limit=60)


def tags_out_of_order(comm: Any, count: int, seed: int) -> None:
    tags = [*range(6), 2**32 - 1]
    order = np.random.default_rng(seed).permutation(tags)
    if comm.rank == 0:
        for tag in tags:
            for k in range(2):
                comm.send(pattern(count, tag, k), 1, tag=tag)
    elif comm.rank == 1:
        for tag in order:
            for k in range(2):
                y = np.zeros(count, np.int32)
                assert comm.recv(y, 0, tag=int(tag)) == 0
                assert (y == pattern(count, int(tag), k)).all(), (tag, k)


@pytest.mark.parametrize("count", [0, 3, 300_000])
def test_tags_out_of_order(pools: Any, count: int) -> None:
    for seed in range(3):
        pools(2).run(tags_out_of_order, count, seed)


def gather_from_any(comm: Any, each: int) -> list[int]:
    """Rank 0 receives from whoever sends; returns the senders in order."""
    if comm.rank != 0:
        for k in range(each):
            comm.send(np.array([comm.rank, k]), 0, tag=4)
        comm.barrier()
        return []
    time.sleep(0.1)  # all have something to give
    senders, counters = [], [0] * comm.world_size
    for _ in range(each * (comm.world_size - 1)):
        y = np.zeros(2, np.int64)
        sender = comm.recv(y, tag=4)
        assert y.tolist() == [sender, counters[sender]]
        counters[sender] += 1
        senders.append(sender)
    comm.barrier()
    return senders


@pytest.mark.parametrize("world", [2, 3, 5])
def test_any_source_is_fair(pools: Any, world: int) -> None:
    senders = pools(world).run(gather_from_any, 200)[0]
    assert sorted(senders) == sorted(rank for rank in range(1, world) for _ in range(200))
    # Everybody who has something waiting is heard within the first few turns.
    assert set(senders[: 3 * (world - 1)]) == set(range(1, world))


def send_then_collective(comm: Any) -> None:
    """The sender of a large message does not wait for it, but enters a collective."""
    for _ in range(3):
        if comm.rank == 0:
            request = comm.isend(pattern(LARGE, 9), 1)
            assert not request.done
        elif comm.rank == 1:
            y = np.zeros(LARGE, np.int32)
            comm.recv(y, 0)
            assert (y == pattern(LARGE, 9)).all()
        comm.barrier()
        if comm.rank == 0:
            request.wait(30)


@pytest.mark.parametrize("world", [2, 3])
def test_isend_before_a_collective(pools: Any, world: int) -> None:
    pools(world).run(send_then_collective)


def recv_beside_collectives(comm: Any) -> None:
    """One thread sits in recv while another makes collectives."""
    y = np.zeros(10, np.int32)
    receiver = threading.Thread(target=lambda: comm.recv(y, (comm.rank - 1) % comm.world_size))
    receiver.start()
    for _ in range(20):
        x = comm.all_reduce(np.ones(1000, np.float32))
        assert (x == comm.world_size).all()
    assert receiver.is_alive()
    comm.barrier()
    comm.send(np.full(10, comm.rank, np.int32), (comm.rank + 1) % comm.world_size)
    receiver.join(20)
    assert (y == (comm.rank - 1) % comm.world_size).all()


def test_recv_while_another_thread_is_in_a_collective(pools: Any) -> None:
    pools(3).run(recv_beside_collectives)


def many_threads(comm: Any) -> list[str]:
    after, before = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    errors = []

    def talk(tag: int) -> None:
        try:
            for k in range(20):
                count = 100_000 if k % 7 == 0 else 50
                y = np.zeros(count, np.int32)
                sent = comm.isend(pattern(count, comm.rank, tag, k), after, tag)
                assert comm.recv(y, before if k % 2 else None, tag) == before
                assert (y == pattern(count, before, tag, k)).all()
                sent.wait()
        except BaseException as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_several_threads(pools: Any) -> None:
    assert pools(3).run(many_threads) == [[], [], []]


def to_oneself(comm: Any) -> None:
    rank = comm.rank
    for count in (0, 5, LARGE):
        x, y = pattern(count, rank), np.zeros(count, np.int32)
        comm.send(x, rank, tag=1)
        assert comm.recv(y, rank, tag=1) == rank
        assert (x == y).all()
        y[:] = 0
        request = comm.irecv(y, tag=2)
        assert not request.done
        comm.send(x, rank, tag=2)
        assert request.done and request.source == rank and (x == y).all()


@pytest.mark.parametrize("world", [1, 3])
def test_to_oneself(pools: Any, world: int) -> None:
    pools(world).run(to_oneself)


def any_layout(comm: Any) -> None:
    import torch

    x = np.arange(600, dtype=np.int64).reshape(20, 30)
    if comm.rank == 0:
        comm.send(x.T, 1)
        comm.isend(x[::-2, ::3], 1).wait()
        comm.send(torch.arange(24, dtype=torch.bfloat16).reshape(4, 6).t(), 1)
        comm.send(np.frombuffer(b"read-only", np.uint8), 1)
        return
    y = np.zeros((30, 40), np.int64)
    comm.recv(y[:, ::2], 0)
    assert (y[:, ::2] == x.T).all() and (y[:, 1::2] == 0).all()
    z = np.zeros((10, 10), np.int64)
    request = comm.irecv(z.T, 0)
    request.wait()
    assert (z.T.reshape(-1) == x[::-2, ::3].reshape(-1)).all()
    t = torch.zeros(6, 4, dtype=torch.bfloat16)
    comm.recv(t, 0)
    assert torch.equal(t, torch.arange(24, dtype=torch.bfloat16).reshape(4, 6).t())
    text = bytearray(9)
    comm.recv(text, 0)
    assert text == b"read-only"


def test_any_strides_and_libraries(pools: Any) -> None:
    pools(2).run(any_layout, limit=240)  # the first import of torch takes its time


def dropped(comm: Any) -> None:
    """Requests and arrays that nobody keeps: the transfer goes on."""
    for _ in range(5):
        if comm.rank == 0:
            comm.isend(pattern(LARGE, 3), 1)
            comm.irecv(np.zeros((LARGE, 2), np.int32)[:, 0], 1, tag=1)
            gc.collect()
            np.zeros(LARGE, np.int32)  # would take the memory that was let go of
        else:
            time.sleep(0.02)
            comm.send(pattern(LARGE, 4), 0, tag=1)
            y = np.zeros(LARGE, np.int32)
            comm.recv(y, 0)
            assert (y == pattern(LARGE, 3)).all()
        comm.barrier()


def test_dropped_requests_go_on(pools: Any) -> None:
    pools(2).run(dropped)
