"""Types and operators through dist: what is summed, averaged and moved, in every dtype."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_ranks import Ranks, needs_backend

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


def scalars_and_small() -> list[Any]:
    """Every operator on tensors of no dimension and of sizes about the number of ranks."""
    world, rank = dist.get_world_size(), dist.get_rank()
    product = 1
    for i in range(world):
        product *= i + 1
    wanted = {
        "SUM": world * (world + 1) / 2,
        "AVG": (world + 1) / 2,
        "MAX": world,
        "MIN": 1,
        "PRODUCT": product,
    }
    bad = []
    for dtype in FLOATS:
        for (name, want), shape in itertools.product(
            wanted.items(), [(), (1,), (2,), (world,), (world + 1,), (2 * world,)]
        ):
            x = torch.full(shape, rank + 1.0, dtype=dtype)
            dist.all_reduce(x, op=getattr(Op, name))
            if not (x == want).all():
                bad.append((dtype, name, shape, x))
    return bad


def test_operators_on_scalars_and_small_tensors(ranks: Ranks) -> None:
    assert ranks.values(scalars_and_small) == [[]] * ranks.world


def averages() -> dict[str, float]:
    """The average by every entry point that takes an operator."""
    world, rank = dist.get_world_size(), dist.get_rank()
    new = lambda count=4: torch.full((count,), float(rank))  # noqa: E731
    x, y, z, flat, listed, rooted = new(), new(), new(), torch.empty(2), torch.empty(2), new()
    dist.all_reduce(x, op=Op.AVG)
    dist.all_reduce(y, op=Op.AVG, async_op=True).wait()
    dist.all_reduce_coalesced([z], op=Op.AVG)
    dist.reduce_scatter_tensor(flat, new(2 * world), op=Op.AVG)
    dist.reduce_scatter(listed, [new(2) for _ in range(world)], op=Op.AVG)
    dist.reduce(rooted, dst=0, op=Op.AVG)
    result = {"sync": x, "async": y, "coalesced": z, "flat": flat, "list": listed}
    return {name: t[-1].item() for name, t in (result | ({"reduce": rooted} if rank == 0 else {})).items()}


@needs_backend
def test_average_means_the_same_everywhere(ranks: Ranks) -> None:
    for rank, found in enumerate(ranks.values(averages)):
        assert set(found.values()) == {(ranks.world - 1) / 2} and len(found) == (6 if rank == 0 else 5), found


def integer_averages() -> list[Any]:
    rank = dist.get_rank()
    result = []
    for dtype in INTEGERS:
        x = torch.tensor([7, 8, 9, -7 if dtype.is_signed else 7], dtype=dtype) + rank
        result.append(refused(lambda x=x: dist.all_reduce(x, op=Op.AVG)) or x.tolist())
    return result


@needs_backend
def test_averages_of_integers_truncate(ranks: Ranks) -> None:
    world = ranks.world
    more = world * (world - 1) // 2
    average = lambda v: int((v * world + more) / world)  # noqa: E731
    for found in ranks.values(integer_averages):
        for dtype, value in zip(INTEGERS, found, strict=True):
            assert value == [average(v) for v in (7, 8, 9, -7 if dtype.is_signed else 7)], (dtype, value)


def complex_and_narrow() -> dict[str, Any]:
    world, rank = dist.get_world_size(), dist.get_rank()
    result: dict[str, Any] = {}
    for dtype in (torch.complex64, torch.complex128):
        x = torch.full((3,), complex(rank, 1), dtype=dtype)
        dist.all_reduce(x)
        result[f"{dtype} sum"] = x.tolist()
        x = torch.full((3,), complex(rank, 1), dtype=dtype)
        result[f"{dtype} max"] = refused(lambda x=x: dist.all_reduce(x, op=Op.MAX))
        outputs = [torch.empty(3, dtype=dtype) for _ in range(world)]
        dist.all_gather(outputs, torch.full((3,), complex(rank, 1), dtype=dtype))
        result[f"{dtype} gathered"] = [o[0].item() for o in outputs]
    return result


def test_complex_tensors(ranks: Ranks) -> None:
    world = ranks.world
    total = complex(world * (world - 1) / 2, world)
    for found in ranks.values(complex_and_narrow):
        for dtype in (torch.complex64, torch.complex128):
            assert found[f"{dtype} sum"] == [total] * 3
            assert found[f"{dtype} max"]
            assert found[f"{dtype} gathered"] == [complex(r, 1) for r in range(world)]


def every_dtype() -> dict[str, bool]:
    """Movement takes every dtype; sums of integers wrap."""
    world, rank = dist.get_world_size(), dist.get_rank()
    dtypes = [*FLOATS, *INTEGERS, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2]
    result = {}
    for dtype in dtypes:
        rows = [(torch.arange(3) % 2 + r % 2).to(dtype) for r in range(world)]
        outputs = [torch.zeros(3).to(dtype) for _ in range(world)]
        dist.all_gather(outputs, rows[rank])
        flat = torch.zeros(3 * world).to(dtype)
        dist.all_gather_into_tensor(flat, rows[rank])
        sent = rows[rank].clone()
        dist.broadcast(sent, src=world - 1)
        same = lambda a, b: torch.equal(a.view(torch.uint8), b.view(torch.uint8))  # noqa: E731
        result[str(dtype)] = (
            same(torch.stack(outputs), torch.stack(rows))
            and same(flat, torch.cat(rows))
            and same(sent, rows[-1])
        )
    x = torch.tensor([120, 100], dtype=torch.int8)
    dist.all_reduce(x)
    result["wraps"] = x.tolist() == [(v * world + 128) % 256 - 128 for v in (120, 100)]
    return result


@needs_backend
def test_every_dtype_moves_and_integers_wrap(ranks: Ranks) -> None:
    for found in ranks.values(every_dtype):
        assert all(found.values()), found


def fp8_sum() -> Any:
    x = torch.ones(4).to(torch.float8_e4m3fn)
    return refused(lambda: dist.all_reduce(x)) or x.float().tolist()


def test_fp8_sums_are_right_or_refused(ranks: Ranks) -> None:
    for found in ranks.values(fp8_sum):
        assert found == [float(ranks.world)] * 4 or "scalar type" in found or "float8" in found, found


def wide_values() -> list[Any]:
    """All ranks' results of sums whose rounding depends on the order."""
    rank, world = dist.get_rank(), dist.get_world_size()
    bad = []
    for dtype, count in itertools.product(FLOATS, (1, 7, 64, 1000, 70001)):
        generator = torch.Generator().manual_seed(rank)
        scale = 10.0 ** torch.randint(-3, 4, (count,), generator=generator)
        x = (torch.randn(count, generator=generator) * scale).to(dtype)
        dist.all_reduce(x)
        others = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(others, x)
        if not all(torch.equal(o.view(torch.uint8), x.view(torch.uint8)) for o in others):
            bad.append((dtype, count))
    return bad


@pytest.mark.parametrize("world", [2, 3, 5])
def test_all_ranks_hold_the_same_bits(torch_pools: Any, world: int) -> None:
    assert torch_pools(world).values(wide_values) == [[]] * world
