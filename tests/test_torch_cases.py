"""Shapes, strides, sizes and steps: calls of dist that libraries of this kind got wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_ranks import Ranks, assert_same, needs_backend

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
Op = dist.ReduceOp


def refused(function: Any) -> str:
    """The text of the error, or an empty string."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def strided() -> dict[str, Any]:
    """In place on a column: the right result, or an error; the other column is nobody's business."""
    world, rank = dist.get_world_size(), dist.get_rank()
    result: dict[str, Any] = {}
    for name in ("all_reduce", "broadcast", "reduce", "scatter"):
        base = torch.full((4, 2), -1.0)
        x = base[:, 0]
        x.copy_(torch.arange(4.0) + 10 * rank)
        calls = {
            "all_reduce": lambda x=x: dist.all_reduce(x),
            "broadcast": lambda x=x: dist.broadcast(x, src=0),
            "reduce": lambda x=x: dist.reduce(x, dst=0),
            "scatter": lambda x=x: dist.scatter(x, [torch.ones(4)] * world if rank == 0 else None, src=0),
        }
        error = refused(calls[name])
        assert (base[:, 1] == -1).all(), (name, base)
        result[name] = error or x.tolist()
    transposed = torch.arange(6.0).view(2, 3).t() + rank
    error = refused(lambda: dist.all_reduce(transposed))
    result["transposed"] = error or transposed.tolist()
    # The ranks are in step whatever they said.
    last = torch.ones(3)
    dist.all_reduce(last)
    assert (last == world).all()
    return result


@needs_backend
def test_strided_tensors_are_right_or_refused(ranks: Ranks) -> None:
    world = ranks.world
    column = torch.arange(4.0)
    ranksum = world * (world - 1) / 2
    whole = torch.arange(6.0).view(2, 3).t() * world + ranksum
    summed = (column * world + 10 * ranksum).tolist()
    for rank, found in enumerate(ranks.values(strided)):
        expected = {
            "all_reduce": summed,
            "broadcast": column.tolist(),
            "reduce": summed if rank == 0 else found["reduce"],
            "scatter": [1.0] * 4,
            "transposed": whole.tolist(),
        }
        for name, value in found.items():
            assert value == expected[name] or "contiguous" in value, (name, value)


def empties() -> list[float]:
    world = dist.get_world_size()
    x = torch.empty(1, 0, 2)
    dist.all_reduce(x)
    dist.broadcast(x, src=0)
    dist.all_gather([torch.empty(1, 0, 2) for _ in range(world)], x)
    dist.all_gather_into_tensor(torch.empty(0), torch.empty(0))
    dist.reduce_scatter_tensor(torch.empty(0), torch.empty(0))
    dist.all_to_all_single(torch.empty(0), torch.empty(0))
    dist.all_reduce(torch.empty(0, dtype=torch.int64), op=Op.MAX)
    last = torch.ones(3)
    dist.all_reduce(last)
    return last.tolist()


def test_tensors_without_elements(ranks: Ranks) -> None:
    assert ranks.values(empties) == [[float(ranks.world)] * 3] * ranks.world


def disagree(what: str) -> str:
    rank = dist.get_rank()
    if what == "count":
        x = torch.ones(100 if rank == 0 else 200)
    else:
        x = torch.ones(8, dtype=torch.bfloat16 if rank == 0 else torch.float32)
    return refused(lambda: dist.all_reduce(x))


@needs_backend
@pytest.mark.parametrize(("what", "words"), [("count", ("100", "200")), ("dtype", ("bfloat16", "float32"))])
def test_ranks_that_disagree_all_raise(ranks: Ranks, what: str, words: tuple[str, str]) -> None:
    for text in ranks.values(disagree, what):
        assert all(word in text for word in words), text


def counts_and_offsets() -> list[Any]:
    """Every small count and offset, with guards beside the tensor."""
    world, rank = dist.get_world_size(), dist.get_rank()
    bad: list[Any] = []
    sizes = [*range(1, 68), 1023, 4097]
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int8):
        for turn, count in enumerate(sizes):
            offset = 1 + turn % 16
            buffer = torch.full((count + offset + 8,), 7, dtype=dtype)
            x = buffer[offset : offset + count]
            x.copy_((torch.arange(count) % 3 + rank).to(dtype))
            dist.all_reduce(x)
            want = (torch.arange(count) % 3 * world + world * (world - 1) // 2).to(dtype)
            guards = torch.cat([buffer[:offset], buffer[offset + count :]])
            if not torch.equal(x, want) or not (guards == 7).all():
                bad.append((dtype, count, offset))
    return bad


def test_odd_counts_at_odd_addresses(ranks: Ranks) -> None:
    assert ranks.values(counts_and_offsets) == [[]] * ranks.world


def same_output_twice() -> str:
    rank, world = dist.get_rank(), dist.get_world_size()
    outputs = [torch.zeros(2)] * world
    error = refused(lambda: dist.all_gather(outputs, torch.full((2,), float(rank))))
    dist.barrier()
    return error or str(outputs[0].tolist())


def test_an_output_list_of_one_tensor(ranks: Ranks) -> None:
    found = ranks.values(same_output_twice)
    # An error, or the last writer's values: the same on every rank.
    last = str([ranks.world - 1.0] * 2)
    assert found == [last] * ranks.world or all("overlap" in t or "same" in t for t in found), found


def gather_chunks() -> bool:
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.arange(12.0 * world).view(2 * world, -1)
    mine = x.chunk(world, 0)[rank]
    outputs = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(outputs, mine)
    return torch.equal(torch.cat(outputs), x)


def test_all_gather_of_chunks(ranks: Ranks) -> None:
    assert ranks.values(gather_chunks) == [True] * ranks.world


def two_levels() -> tuple[torch.Tensor, torch.Tensor]:
    """An average in one step, and by rows and columns of a grid of 2 x 2."""
    rank = dist.get_rank()
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    x = torch.arange(4.0) + rank
    flat, part = x.clone(), torch.empty(2)
    dist.all_reduce(flat, op=Op.AVG)
    dist.reduce_scatter_tensor(part, x, op=Op.AVG, group=rows[rank // 2])
    dist.all_reduce(part, op=Op.AVG, group=columns[rank % 2])
    return part, flat[2 * (rank % 2) :][:2]


def test_average_in_two_levels(torch_pools: Any) -> None:
    for part, flat in torch_pools(4).values(two_levels):
        assert_same(part, flat)
