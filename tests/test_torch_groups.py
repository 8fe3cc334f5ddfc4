"""Process groups: many, overlapping, from several threads, in any order of making and ending."""

from __future__ import annotations

import itertools
import os
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_ranks import BACKEND, Ranks, initialize


def total(group: Any = None, value: float | None = None, count: int = 5) -> float:
    """The sum over a group of each rank's number plus one, checked to be the same in all elements."""
    x = torch.full((count,), dist.get_rank() + 1.0 if value is None else value)
    dist.all_reduce(x, group=group)
    assert (x == x[0]).all()
    return x[0].item()


def every_subset() -> dict[tuple[int, ...], float]:
    """All groups of two or more ranks, alive at once and used in an order that mixes them."""
    world, rank = dist.get_world_size(), dist.get_rank()
    sizes = range(2, world + 1)
    members = [m for size in sizes for m in itertools.combinations(range(world), size)]
    groups = {m: dist.new_group(list(m)) for m in members}
    result = {}
    for turn in range(2):
        for m in members if turn else reversed(members):
            if rank in m:
                result[m] = total(groups[m])
    dist.barrier()
    return result


def test_overlapping_groups_of_every_size(ranks: Ranks) -> None:
    for rank, sums in enumerate(ranks.values(every_subset)):
        assert sums == {m: sum(m) + len(m) for m in sums}
        assert all(rank in m for m in sums) and len(sums) == 2 ** (ranks.world - 1) - 1


def many_groups(count: int) -> list[float]:
    groups = [dist.new_group(list(range(dist.get_world_size()))) for _ in range(count)]
    return [total(group, float(i)) for i, group in enumerate(groups)]


def test_many_groups(ranks: Ranks) -> None:
    for sums in ranks.values(many_groups, 30):
        assert sums == [ranks.world * i for i in range(30)]


def odd_groups() -> list[float]:
    """A group of one, of ranks in another order, and nested ones; non-members get no group."""
    world, rank = dist.get_world_size(), dist.get_rank()
    one = dist.new_group([world - 1])
    if rank != world - 1:
        assert one == dist.GroupMember.NON_GROUP_MEMBER
    dist.barrier()
    backward = dist.new_group(list(reversed(range(world))))
    parts, chosen = dist.new_subgroups(group_size=2)[::-1] if world % 2 == 0 else ([], None)
    assert len(parts) == world // 2
    result = [total(backward), total(chosen)]
    result += [total(one)] if rank == world - 1 else []
    x = torch.full((2,), float(rank))
    dist.broadcast(x, src=world - 1, group=backward)
    return [*result, x[0].item()]


def test_groups_of_one_in_other_orders_and_parts(ranks: Ranks) -> None:
    world = ranks.world
    everyone = world * (world + 1) / 2
    for rank, values in enumerate(ranks.values(odd_groups)):
        pair = rank // 2 * 4 + 3.0
        own = [float(world)] if rank == world - 1 else []
        assert values == [everyone, pair, *own, world - 1.0]


def only_own_group() -> float:
    """Each pair makes its own group only, which torch allows for groups of disjoint ranks."""
    rank = dist.get_rank()
    group = dist.new_group([0, 3] if rank in (0, 3) else [1, 2], use_local_synchronization=True)
    return total(group, 10.0**rank)


def test_ranks_that_make_only_their_own_group(torch_pools: Any) -> None:
    assert torch_pools(4).values(only_own_group) == [1001.0, 110.0, 110.0, 1001.0]


def threads_with_groups(shared: bool) -> list[str]:
    """Three threads: each with a group of its own, or (calls differ in no way) all with one."""
    world = dist.get_world_size()
    groups = [dist.new_group(list(range(world))) for _ in range(1 if shared else 3)]
    wrong: list[str] = []

    def work(index: int) -> None:
        for turn in range(100):
            value = 1.0 if shared else float(index + turn)
            found = total(groups[index % len(groups)], value, 257)
            if found != world * value:
                wrong.append(f"thread {index}, turn {turn}: {found}")

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


@pytest.mark.parametrize("shared", [False, True], ids=["a group each", "one group"])
def test_threads(ranks: Ranks, shared: bool) -> None:
    assert ranks.values(threads_with_groups, shared) == [[]] * ranks.world


def destroy_in_other_orders() -> list[float]:
    """Groups end in an order that differs among the ranks; what is left still works."""
    world, rank = dist.get_world_size(), dist.get_rank()
    groups = [dist.new_group(list(range(world))) for _ in range(4)]
    sums = [total(group) for group in groups]
    for index in ((rank + 1) % 4, (rank + 2) % 4, rank % 4):
        dist.destroy_process_group(groups[index])
    dist.barrier()
    return [*sums, total()]


def test_destroy_in_any_order(ranks: Ranks) -> None:
    world = ranks.world
    assert ranks.values(destroy_in_other_orders) == [[world * (world + 1) / 2] * 5] * world


def again_and_again(paths: list[str]) -> list[float]:
    sums = []
    for path in paths:
        initialize(BACKEND, path)
        group = dist.new_group(list(range(dist.get_world_size())))
        sums += [total(), total(group)]
        dist.destroy_process_group()
    return sums


def test_init_again_in_one_process(ranks: Ranks) -> None:
    world = ranks.world
    values = ranks.alone(again_and_again, [ranks.new_path() for _ in range(5)])
    assert values == [[world * (world + 1) / 2] * 10] * world


def jobs_on_one_store(path: str) -> list[float]:
    """Default groups that follow each other on one store, each under a prefix."""
    from datetime import timedelta

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(path, world)
    sums = []
    for job in range(3):
        dist.init_process_group(
            BACKEND,
            store=dist.PrefixStore(f"job{job}", store),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=60),
        )
        sums.append(total(value=float(rank + job)))
        dist.destroy_process_group()
    return sums


def test_groups_share_a_store(ranks: Ranks) -> None:
    world = ranks.world
    first = world * (world - 1) / 2
    assert ranks.alone(jobs_on_one_store, ranks.new_path()) == [[first + world * i for i in range(3)]] * world


def leave_alive(path: str) -> float:
    initialize(BACKEND, path)
    group = dist.new_group(list(range(dist.get_world_size())))
    dist.all_reduce(torch.ones(3), async_op=True)
    return total(group)


def test_processes_that_destroy_nothing_end_well() -> None:
    with Ranks(3) as own:
        assert own.alone(leave_alive, own.new_path()) == [6.0] * 3
        processes = own._processes
        own.close()
        assert [process.exitcode for process in processes] == [0] * 3


def leave_by(path: str, way: str) -> float:
    """Rank 1 leaves at once; the others have done all their calls too."""
    initialize(BACKEND, path)
    result = total()
    if way == "abort":
        dist.distributed_c10d._abort_process_group()
    elif dist.get_rank() == 1:
        dist.destroy_process_group()
    return result


@pytest.mark.parametrize("way", ["abort", "one destroys"])
def test_ends_that_are_not_collective(way: str) -> None:
    with Ranks(3) as own:
        assert own.alone(leave_by, own.new_path(), way) == [6.0] * 3
