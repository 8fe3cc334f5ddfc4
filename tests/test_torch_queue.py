"""Who runs asynchronous calls: whoever waits, the worker where nobody does, the caller where it must."""

from __future__ import annotations

import os
import resource
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch_ranks import Ranks, needs_backend


def new_group(ranks: list[int] | None = None) -> Any:
    return dist.new_group(ranks or list(range(dist.get_world_size())))


def threads_of_process() -> int:
    return len(os.listdir("/proc/self/task"))


def nobody_waits() -> list[bool]:
    group = new_group()
    done = []
    for _ in range(5):
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        end = time.monotonic() + 10
        while not work.is_completed() and time.monotonic() < end:
            time.sleep(0.001)
        done.append(work.is_completed())
    dist.destroy_process_group(group)
    return done


@needs_backend
def test_the_worker_runs_what_nobody_waits_for(ranks: Ranks) -> None:
    assert ranks.values(nobody_waits) == [[True] * 5] * ranks.world


def only_futures() -> list[float]:
    """Waiting for a future does not run its call; a callback may begin another one and wait for it."""
    group = new_group()
    x, y = torch.ones(3), torch.full((2,), 2.0)

    def then(future: Any) -> Any:
        dist.all_reduce(y, group=group, async_op=True).wait()
        return future.value()

    for _ in range(3):
        dist.all_reduce(x, group=group, async_op=True).get_future().then(then).wait()
    dist.destroy_process_group(group)
    return [x[0].item(), y[0].item()]


@needs_backend
def test_futures_alone_are_enough(ranks: Ranks) -> None:
    assert ranks.values(only_futures) == [[float(ranks.world**3), 2.0 * ranks.world**3]] * ranks.world


def one_behind_the_other() -> list[float]:
    """One thread waits for the last of many, another one for the first; none is left over."""
    group = new_group()
    xs = [torch.full((7,), float(i)) for i in range(50)]
    works = [dist.all_reduce(x, group=group, async_op=True) for x in xs]
    other = threading.Thread(target=works[0].wait)
    other.start()
    works[25].wait()
    other.join()
    while not all(work.is_completed() for work in works):
        time.sleep(0.001)
    dist.destroy_process_group(group)
    return [x[0].item() for x in xs]


@needs_backend
def test_waiters_and_the_worker_share_the_queue(ranks: Ranks) -> None:
    expected = [float(ranks.world * i) for i in range(50)]
    assert ranks.values(one_behind_the_other, limit=60) == [expected] * ranks.world


def without_descriptors() -> tuple[int, float, bool]:
    group = new_group()
    x = torch.full((4,), float(dist.get_rank()))
    before = threads_of_process()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        work = dist.all_reduce(x, group=group, async_op=True)
        done = work.is_completed()
        work.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    grown = threads_of_process() - before
    dist.destroy_process_group(group)
    return grown, x[0].item(), done


@needs_backend
def test_out_of_descriptors_the_caller_runs_it(ranks: Ranks) -> None:
    total = ranks.world * (ranks.world - 1) / 2
    assert ranks.values(without_descriptors) == [(0, total, True)] * ranks.world
