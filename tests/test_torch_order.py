"""Waiting, time-outs, ends and crowds: what a call through dist promises while other things go on."""

from __future__ import annotations

import gc
import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_ranks import BACKEND, Ranks, needs_backend


def poll() -> tuple[bool, bool, float, list[float], int]:
    """Whether an asynchronous call says that it is done before and after the last rank comes; wait twice."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == world - 1:
        time.sleep(1.0)
    x = torch.full((1 << 16,), rank + 1.0)
    work = dist.all_reduce(x, async_op=True)
    early = work.is_completed()
    work.wait()
    work.wait()
    future = work.get_future().wait()
    return early, work.is_completed(), x[0].item(), [t[0].item() for t in future], len(future)


def test_wait_and_is_completed(ranks: Ranks) -> None:
    world = ranks.world
    total = world * (world + 1) / 2
    for rank, (early, late, value, future, count) in enumerate(ranks.values(poll)):
        assert not (early and rank != world - 1)
        assert late and value == total and future == [total] and count == 1


def drop() -> list[float]:
    """Tensors, and a whole work, that nobody holds any more."""
    work = dist.all_reduce(torch.full((1 << 18,), 1.0), async_op=True)
    dist.all_reduce(torch.full((1 << 16,), 1.0), async_op=True)
    gc.collect()
    junk = [torch.full((1 << 18,), 9.0) for _ in range(8)]
    work.wait()
    x = torch.ones(4)
    dist.all_reduce(x)
    return [x[0].item(), junk[0][0].item(), junk[-1][-1].item()]


def test_tensors_and_works_that_go_out_of_scope(ranks: Ranks) -> None:
    assert ranks.values(drop) == [[float(ranks.world), 9.0, 9.0]] * ranks.world


def mixed_order() -> list[float]:
    """Asynchronous calls are not overtaken by a synchronous one, and a send may follow an unfinished call."""
    rank, world = dist.get_rank(), dist.get_world_size()
    xs = [torch.full((1000,), float(i + rank)) for i in range(20)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    token, got = torch.tensor([float(rank)]), torch.empty(1)
    request = dist.isend(token, (rank + 1) % world)
    dist.recv(got, (rank - 1) % world)
    request.wait()
    last = torch.ones(3)
    dist.all_reduce(last)
    for work in reversed(works):
        work.wait()
    return [x[-1].item() for x in xs] + got.tolist() + last.tolist()


def test_calls_keep_their_order(ranks: Ranks) -> None:
    world = ranks.world
    for rank, values in enumerate(ranks.values(mixed_order)):
        sums = [world * i + world * (world - 1) / 2 for i in range(20)]
        assert values == [*sums, (rank - 1) % world, *[float(world)] * 3]


def barrier_without(late: int) -> str:
    if dist.get_rank() == late:
        time.sleep(4)
        return "late"
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    try:
        backend.monitored_barrier(timedelta(seconds=1), wait_all_ranks=True)
    except Exception as error:
        return str(error)
    return "passed"


def test_monitored_barrier_names_the_missing_rank() -> None:
    with Ranks(3) as own:
        outcomes = own.each(barrier_without, 2, limit=30, timeout=10)
        text = outcomes[0].value
        assert "2" in text and "passed" not in text, text
        assert BACKEND == "gloo" or "rank 2" in outcomes[1].value, outcomes[1].value


def absent() -> tuple[str, float, str]:
    if dist.get_rank() == 0:
        time.sleep(5)
        return "absent", 0.0, ""
    start = time.monotonic()
    try:
        dist.all_reduce(torch.ones(4))
    except Exception as error:
        return "raised", time.monotonic() - start, str(error)
    return "returned", time.monotonic() - start, ""


def test_the_timeout_asked_for_is_the_one_that_counts() -> None:
    with Ranks(3) as own:
        for outcome in own.each(absent, limit=30, timeout=2.0)[1:]:
            what, seconds, text = outcome.value
            assert what == "raised" and 1.5 < seconds < 4.0, outcome
            assert BACKEND == "gloo" or ("rank 0" in text and "all_reduce" in text), text
        # The processes are well, and a new group works.
        assert own.values(total) == [3.0] * 3


def total() -> float:
    x = torch.ones(2)
    dist.all_reduce(x)
    return x[0].item()


def fail_alone() -> Any:
    """Rank 1 has trouble of its own and closes its group while the others wait for it."""
    if dist.get_rank() == 1:
        start = time.monotonic()
        dist.destroy_process_group()
        return time.monotonic() - start
    try:
        dist.all_reduce(torch.ones(1000))
    except Exception as error:
        return str(error)
    return "returned"


def test_closing_on_one_rank_is_quick_and_tells_the_others() -> None:
    with Ranks(3) as own:
        first, closed, third = (outcome.value for outcome in own.each(fail_alone, limit=30, timeout=6.0))
        assert closed < 2
        for text in (first, third):
            assert text != "returned" and (BACKEND == "gloo" or "rank 1" in text), text


def only_mine() -> Any:
    """Each rank makes its own group only, and torch is not told: a right result or an error."""
    rank = dist.get_rank()
    try:
        group = dist.new_group([0, 3] if rank in (0, 3) else [1, 2], timeout=timedelta(seconds=5))
        x = torch.tensor([10.0**rank])
        dist.all_reduce(x, group=group)
    except Exception as error:
        return str(error)
    return x.item()


def test_groups_that_not_all_ranks_make() -> None:
    with Ranks(4) as own:
        values = [outcome.value for outcome in own.each(only_mine, limit=40, timeout=8.0)]
        right = [1001.0, 110.0, 110.0, 1001.0]
        assert all(v == right[rank] or isinstance(v, str) for rank, v in enumerate(values)), values


def wait_for_the_dead() -> tuple[str, float]:
    dist.barrier()
    if dist.get_rank() == 1:
        os._exit(7)
    before = time.process_time()
    try:
        dist.all_reduce(torch.ones(1000))
    except Exception as error:
        return str(error), time.process_time() - before
    return "returned", 0.0


def test_waiting_for_the_dead_burns_no_cpu() -> None:
    with Ranks(3) as own:
        outcomes = own.each(wait_for_the_dead, limit=30, timeout=15.0)
        assert outcomes[1].died == 7
        for outcome in (outcomes[0], outcomes[2]):
            text, cpu = outcome.value
            assert text != "returned" and cpu < 1.0 and outcome.elapsed < 8, outcome


def stress(calls: int) -> int:
    """Random sizes and pauses: wrong sums."""
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes, pauses = torch.Generator().manual_seed(1), torch.Generator().manual_seed(rank)
    bad = 0
    for i in range(calls):
        count = int(torch.randint(1, 5000, (1,), generator=sizes))
        if int(torch.randint(0, 20, (1,), generator=pauses)) == 0:
            time.sleep(0.0005)
        x = torch.full((count,), float(i % 97 + rank))
        dist.all_reduce(x)
        bad += int(not (x == world * (i % 97) + world * (world - 1) / 2).all())
    return bad


def test_random_sizes_and_pauses(torch_pools: Any) -> None:
    assert torch_pools(3).values(stress, 400) == [0] * 3


def one_core() -> tuple[bool, float]:
    """All ranks on one core: is the affinity left alone, and milliseconds a call."""
    allowed = os.sched_getaffinity(0)
    core = {max(allowed)}
    os.sched_setaffinity(0, core)
    try:
        x = torch.ones(256)
        dist.all_reduce(x)
        dist.all_reduce(torch.ones(1 << 16))
        start = time.monotonic()
        for _ in range(30):
            dist.all_reduce(x)
        return os.sched_getaffinity(0) == core, (time.monotonic() - start) / 30 * 1e3
    finally:
        os.sched_setaffinity(0, allowed)


def test_all_ranks_on_one_core(torch_pools: Any) -> None:
    for untouched, milliseconds in torch_pools(4).values(one_core):
        assert untouched and milliseconds < 100


def crowd() -> float:
    start = time.monotonic()
    world = dist.get_world_size()
    for i in range(20):
        x = torch.full((1000,), float(i))
        dist.all_reduce(x)
        assert (x == world * i).all()
    return (time.monotonic() - start) / 20


@needs_backend
def test_many_more_ranks_than_cores() -> None:
    with Ranks(16) as own:
        assert max(own.values(crowd, limit=100)) < 0.5


def job(number: int) -> float:
    x = torch.tensor([float(number)])
    dist.all_reduce(x)
    return x.item()


def test_many_jobs_at_once() -> None:
    """Jobs that start together do not meet each other."""
    pools = [Ranks(2) for _ in range(6)]
    try:
        with ThreadPoolExecutor(len(pools)) as executor:
            found = list(executor.map(lambda i: pools[i].values(job, i), range(len(pools))))
        assert found == [[2.0 * i] * 2 for i in range(len(pools))]
    finally:
        for pool in pools:
            pool.close()


@pytest.mark.nightly
def test_random_sizes_and_pauses_for_long(torch_pools: Any) -> None:
    assert torch_pools(4).values(stress, 20_000, limit=600) == [0] * 4
