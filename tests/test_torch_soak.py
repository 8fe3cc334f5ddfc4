"""A soak: mixed calls over overlapping groups, sync and async, from two threads of each rank.

All threads follow one random plan that every rank knows. Each thread has three groups of its own, so that the
order of calls within a group is the same on all its members.
"""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_leaks import resources

WORLD = 4
MEMBERS = [[0, 1, 2, 3], [0, 1, 2], [1, 3], [0, 1, 2, 3], [0, 2, 3], [1, 2, 3]]
OPS = ["SUM", "MAX", "MIN", "AVG"]
DTYPES = [torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bfloat16]
CALLS = [
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather", "scatter",
    "reduce_scatter_tensor", "all_to_all_single", "send_recv", "barrier",
]  # fmt: skip


class Checksum:
    """What the members of a group have all received; sums and orders alike on each of them."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, x: torch.Tensor) -> None:
        total = int(x.double().sum().item()) if x.numel() else 0
        self.value = (self.value * 31 + total) % (1 << 61)


def data(plan: random.Random, count: int, rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, so that sums are exact in every dtype."""
    start = plan.randrange(5)
    return ((torch.arange(count) + start + rank) % 7).to(dtype)


def expected(parts: list[torch.Tensor], op: str) -> torch.Tensor:
    x = torch.stack([part.double() for part in parts])
    value = {"SUM": x.sum(0), "MAX": x.amax(0), "MIN": x.amin(0), "AVG": x.mean(0)}[op]
    return value.to(parts[0].dtype)


def call(plan: random.Random, group: Any, members: list[int], sum_: Checksum) -> Any:
    """One call of the plan. Returns the work of an asynchronous one, and what to do when it is done."""
    rank, world = dist.get_rank(), len(members)
    name, dtype, asynchronous = plan.choice(CALLS), plan.choice(DTYPES), plan.random() < 0.5
    op = plan.choice(OPS if dtype.is_floating_point else OPS[:3])
    count = plan.choice([1, 7, 64, 1000, 9000])
    root = plan.choice(members)
    seed = plan.random()
    xs = [data(random.Random(seed), count * world, r, dtype) for r in members]
    me = members.index(rank)
    x, part = xs[me].clone(), xs[me][:count].clone()
    options = {"group": group, "async_op": asynchronous}
    reduce_op = getattr(dist.ReduceOp, op)
    pieces = [list(other.chunk(world)) for other in xs]
    if name == "all_reduce":
        work = dist.all_reduce(x, op=reduce_op, **options)
        got, want = x, expected(xs, op)
    elif name == "broadcast":
        work = dist.broadcast(x, src=root, **options)
        got, want = x, xs[members.index(root)]
    elif name == "reduce":
        work = dist.reduce(x, dst=root, op=reduce_op, **options)
        got, want = (x, expected(xs, op)) if rank == root else (x[:0], x[:0])
    elif name == "all_gather":
        got, want = torch.empty(world, count, dtype=dtype), torch.stack([other[:count] for other in xs])
        work = dist.all_gather(list(got), part, **options)
    elif name == "all_gather_into_tensor":
        got, want = torch.empty(world * count, dtype=dtype), torch.cat([other[:count] for other in xs])
        work = dist.all_gather_into_tensor(got, part, **options)
    elif name == "gather":
        got, want = torch.empty(world, count, dtype=dtype), torch.stack([other[:count] for other in xs])
        work = dist.gather(part, list(got) if rank == root else None, dst=root, **options)
        got, want = (got, want) if rank == root else (x[:0], x[:0])
    elif name == "scatter":
        got, want = torch.empty(count, dtype=dtype), pieces[members.index(root)][me]
        work = dist.scatter(got, list(x.chunk(world)) if rank == root else None, src=root, **options)
    elif name == "reduce_scatter_tensor":
        got, want = torch.empty(count, dtype=dtype), expected([p[me] for p in pieces], op)
        work = dist.reduce_scatter_tensor(got, x, op=reduce_op, **options)
    elif name == "all_to_all_single":
        got, want = torch.empty(world * count, dtype=dtype), torch.cat([p[me] for p in pieces])
        work = dist.all_to_all_single(got, x, **options)
    elif name == "send_recv":
        got, want = torch.empty(count, dtype=dtype), pieces[me - 1][0]
        sent = dist.isend(part, members[(me + 1) % world], group=group)
        dist.recv(got, members[me - 1], group=group)
        work, got = sent, got
    else:
        work, got, want = dist.barrier(**options), x[:0], x[:0]

    def finish() -> None:
        if work is not None:
            work.wait()
        torch.testing.assert_close(got, want, rtol=0, atol=0, msg=f"{name} {dtype} {op} {count}")
        if name in ("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor"):
            sum_.add(got)

    return finish


def soak(calls: int) -> tuple[list[list[int]], list[dict[str, int]]]:
    """Each group's checksum on this rank, and this process's resources at several times."""
    rank = dist.get_rank()
    groups = [dist.new_group(members) for members in MEMBERS]
    sums = [Checksum() for _ in MEMBERS]
    seen: list[dict[str, int]] = []
    errors: list[BaseException] = []

    def work(thread: int) -> None:
        # The plan of all ranks: a member of no group takes its draws and does nothing.
        plan = random.Random(thread)
        pending: list[Any] = []
        try:
            for turn in range(calls // 2):
                index = 3 * thread + plan.randrange(3)
                seed, keep = plan.random(), plan.randrange(8)
                if rank in MEMBERS[index]:
                    pending.append(call(random.Random(seed), groups[index], MEMBERS[index], sums[index]))
                    while len(pending) > keep:
                        pending.pop(0)()
                if thread == 0 and turn % max(calls // 20, 1) == 0:
                    seen.append(resources())
            for finish in pending:
                finish()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    dist.barrier()
    return [[i, s.value] for i, s in enumerate(sums) if rank in MEMBERS[i]], seen


def check(values: list[Any]) -> None:
    for index, members in enumerate(MEMBERS):
        found = {dict(map(tuple, values[rank][0]))[index] for rank in members}
        assert len(found) == 1, (index, found)
        assert found != {0}
    for _, seen in values:
        half = len(seen) // 2
        early, late = (
            {name: max(sample[name] for sample in part) for name in seen[0]}
            for part in (seen[1:half], seen[half:])
        )
        # A worker and a thread for messages for each group, started when first needed, and ours.
        assert late["threads"] <= max(early["threads"] + 1, seen[0]["threads"] + 2 * len(MEMBERS)), seen
        assert late["descriptors"] <= early["descriptors"] + 2, seen
        assert late["kB"] <= early["kB"] + 16384, seen


def test_soak_of_500_calls(torch_pools: Any) -> None:
    check(torch_pools(WORLD).values(soak, 500, limit=100))


@pytest.mark.nightly
def test_soak_of_20000_calls(torch_pools: Any) -> None:
    check(torch_pools(WORLD).values(soak, 20_000, limit=1200))
