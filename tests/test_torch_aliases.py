"""Inputs and outputs that share memory, ordinary and symmetric; outputs of other shapes; refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_ranks import Ranks, needs_backend

N = 20_000  # elements of a part: large enough for symmetric memory to be read in place


def whole(symmetric: bool, parts: int) -> Any:
    import collectives

    dist.all_reduce(torch.ones(1))  # all ranks tell each other that they have symmetric memory
    rank = dist.get_rank()
    x = collectives.empty(parts * N, torch.float32) if symmetric else torch.empty(parts * N)
    for i in range(parts):
        x[i * N : (i + 1) * N] = rank * 100 + i
    return x


def gather_from_any_place(symmetric: bool) -> list[bool]:
    rank, world = dist.get_rank(), dist.get_world_size()
    right = []
    for begin in (0, 1, N // 2, (world - 1) * N):
        x = whole(symmetric, world)
        source = x[begin : begin + N]
        expected = source.clone()
        dist.all_gather_into_tensor(x, source)
        parts = [torch.empty(N) for _ in range(world)]
        dist.all_gather(parts, expected)
        right.append(torch.equal(x, torch.cat(parts)))
        y = whole(symmetric, world)
        slots = list(y.chunk(world))
        first = slots[0].clone()
        dist.all_gather(slots, slots[0])
        dist.all_gather(parts, first)
        right.append(torch.equal(y, torch.cat(parts)))
    assert rank < world
    return right


def scatter_to_any_place(symmetric: bool) -> list[bool]:
    rank, world = dist.get_rank(), dist.get_world_size()
    expected = float(sum(r * 100 + rank for r in range(world)))
    right = []
    for begin in (0, 3, (world - 1) * N):
        x = whole(symmetric, world)
        target = x[begin : begin + N]
        dist.reduce_scatter_tensor(target, x)
        right.append(bool((target == expected).all()))
        y = whole(symmetric, world)
        slots = list(y.chunk(world))
        dist.reduce_scatter(slots[-1], slots)
        right.append(bool((slots[-1] == expected).all()))
    for root in range(world):
        z = whole(symmetric, world)
        slots = list(z.chunk(world))
        dist.scatter(slots[0], slots if rank == root else None, src=root)
        right.append(bool((slots[0] == root * 100 + rank).all()))
    return right


@needs_backend
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("function", [gather_from_any_place, scatter_to_any_place])
def test_shared_memory(ranks: Ranks, function: Any, symmetric: bool) -> None:
    for found in ranks.values(function, symmetric):
        assert all(found), found


def other_shapes() -> list[Any]:
    """Outputs of as many elements in another shape: parts of one size, and of several."""
    rank, world = dist.get_rank(), dist.get_world_size()
    equal = [torch.empty(3, 2) for _ in range(world)]
    dist.all_gather(equal, torch.full((2, 3), float(rank)))
    uneven = [torch.empty(i + 2, 1) for i in range(world)]
    dist.all_gather(uneven, torch.full((rank + 2,), float(rank)))
    return [part.sum().item() for part in [*equal, *uneven]]


@needs_backend
def test_outputs_of_another_shape(ranks: Ranks) -> None:
    expected = [6.0 * rank for rank in range(ranks.world)] + [r * (r + 2.0) for r in range(ranks.world)]
    assert ranks.values(other_shapes) == [expected] * ranks.world


def refusals() -> list[str]:
    """What one rank has wrong is an error of all, at once."""
    import collectives

    rank, world = dist.get_rank(), dist.get_world_size()
    texts = []

    def attempt(call: Any) -> None:
        try:
            call()
            texts.append("")
        except (ValueError, RuntimeError) as error:
            texts.append(str(error))

    wrong = [2] * (world - 1) + [3]
    attempt(
        lambda: collectives.all_to_all(
            torch.ones(2 * world), [2] * world, wrong if rank == 0 else [2] * world
        )
    )
    attempt(lambda: collectives.reduce_scatter(torch.ones(2 * world + (rank == 0))))
    emptied = torch.ones(8)
    if rank == 0:
        emptied.untyped_storage().resize_(0)
    attempt(lambda: dist.all_reduce(emptied))
    dist.barrier()
    return texts


@needs_backend
def test_what_one_rank_has_wrong_all_are_told(torch_pools: Any) -> None:
    for rank, texts in enumerate(torch_pools(3).values(refusals, limit=20)):
        for text, reason in zip(texts, ("splits", "elements", "no memory"), strict=True):
            assert reason in text or (rank != 0 and "rank 0" in text), texts


@needs_backend
def test_more_memory_than_there_is(ranks: Ranks) -> None:
    ranks.values(allocate_too_much)


def allocate_too_much() -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    for count in (1 << 62, 1 << 60):
        with pytest.raises((ValueError, RuntimeError)):
            backend.allocate_tensor(count, dtype=torch.float32, device=torch.device("cpu"))
