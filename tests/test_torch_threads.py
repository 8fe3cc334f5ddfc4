"""One process group used by several threads, and by one thread for another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_ranks import Ranks, needs_backend


def together(*functions: Callable[[], Any]) -> list[Any]:
    """Run them in a thread each; what went wrong."""
    wrong: list[Any] = []

    def guarded(function: Callable[[], Any]) -> None:
        try:
            function()
        except BaseException as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def batches_beside_collectives() -> tuple[list[Any], int]:
    rank, world = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % world, (rank - 1) % world
    unreduced = []

    def batches() -> None:
        for i in range(200):
            x, y = torch.full((10,), float(rank * 1000 + i)), torch.empty(10)
            ops = [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, y, before)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            assert (y == before * 1000 + i).all(), (i, y)

    def collectives() -> None:
        for i in range(300):
            x = torch.ones(5)
            dist.all_reduce(x, async_op=i % 3 == 0) and None
            if i % 3:
                unreduced.extend([i] * (x[0].item() != world))
            y = torch.full((3,), float(rank))
            dist.broadcast(y, src=world - 1)
            unreduced.extend([i] * (y[0].item() != world - 1))

    return together(batches, collectives), len(unreduced)


@needs_backend
def test_batches_of_messages_beside_collectives(ranks: Ranks) -> None:
    assert ranks.values(batches_beside_collectives, limit=60) == [([], 0)] * ranks.world


def after_a_failed_batch() -> list[float]:
    x = torch.ones(3)
    with pytest.raises((ValueError, RuntimeError)):
        dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(2).to_sparse(), dist.get_rank())])
    dist.all_reduce(x)
    other = (dist.get_rank() + 1) % dist.get_world_size()
    y = torch.full((1,), 9.0)
    before = (dist.get_rank() - 1) % dist.get_world_size()
    ops = [dist.P2POp(dist.isend, x[:1], other), dist.P2POp(dist.irecv, y, before)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return [x[0].item(), y[0].item()]


@needs_backend
def test_a_failed_batch_leaves_nothing_behind(ranks: Ranks) -> None:
    assert ranks.values(after_a_failed_batch) == [[float(ranks.world)] * 2] * ranks.world


def in_inference_mode() -> list[Any]:
    """What another thread finishes is finished in the mode of the thread that began it."""
    rank, world = dist.get_rank(), dist.get_world_size()
    with torch.inference_mode():
        parts = [torch.empty(4) for _ in range(world)]
        strided = torch.full((4, 3), float(rank)).t()
        gathered = [torch.empty(2) for _ in range(world)]
        received = torch.empty(3, 2).t()
        works = [
            dist.all_gather(parts, torch.full((4,), float(rank)), async_op=True),
            dist.all_reduce(strided, async_op=True),
            dist.all_to_all(gathered, [torch.full((2,), float(rank)) for _ in range(world)], async_op=True),
            dist.irecv(received, (rank - 1) % world),
        ]
        time.sleep(0.05)
        dist.send(torch.full((2, 3), float(rank)), (rank + 1) % world)
        end = time.monotonic() + 20
        while not all(work.is_completed() for work in works) and time.monotonic() < end:
            time.sleep(0.001)
        for work in works:
            work.wait()
    return [
        [part[-1].item() for part in parts],
        strided[2, 3].item(),
        [part[1].item() for part in gathered],
        received[1, 2].item(),
    ]


@needs_backend
def test_inference_mode(ranks: Ranks) -> None:
    world = ranks.world
    everybody = [float(rank) for rank in range(world)]
    for rank, found in enumerate(ranks.values(in_inference_mode)):
        assert found == [everybody, sum(everybody), everybody, float((rank - 1) % world)]


def futures_after_wait() -> int:
    unready = 0
    for _ in range(500):
        work = dist.all_reduce(torch.ones(2), async_op=True)
        future = work.get_future()
        work.wait()
        unready += not future.done()
        assert future.value()[0][0].item() == dist.get_world_size()
    return unready


@needs_backend
def test_a_future_is_done_when_its_work_is(ranks: Ranks) -> None:
    assert ranks.values(futures_after_wait, limit=60) == [0] * ranks.world


def waits_within_a_callback() -> list[bool]:
    """A callback finds its own call ended, whatever lies behind it in the queue."""
    found: list[bool] = []
    late = torch.ones(1)
    work = dist.all_reduce(torch.ones(2), async_op=True)
    behind = dist.all_reduce(late, async_op=True)

    def then(future: Any) -> None:
        found.append(work.is_completed() and work.wait())

    future = work.get_future().then(then)
    work.wait()
    future.wait()
    behind.wait()
    return [*found, late.item() == dist.get_world_size()]


@needs_backend
def test_a_callback_may_wait_for_its_own_call(ranks: Ranks) -> None:
    assert ranks.values(waits_within_a_callback) == [[True, True]] * ranks.world


def slow_coalesced() -> float:
    other = 1 - dist.get_rank()
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    elapsed = 0.0
    if dist.get_rank() == 0:
        backend._start_coalescing()
        backend.recv([torch.empty(1)], other, 0)
        backend.recv([torch.empty(1)], other, 0)
        work = backend._end_coalescing()
        start = time.monotonic()
        with pytest.raises(RuntimeError, match="gave up"):
            work.wait(timedelta(seconds=0.5))
        elapsed = time.monotonic() - start
    dist.barrier()
    if dist.get_rank() == 1:
        for _ in range(2):
            dist.send(torch.ones(1), 0, group=group)
    else:
        work.wait()
    dist.barrier()
    return elapsed


@needs_backend
def test_a_limit_counts_once_for_several_calls(torch_pools: Any) -> None:
    elapsed, _ = torch_pools(2).values(slow_coalesced)
    assert 0.4 < elapsed < 0.9
