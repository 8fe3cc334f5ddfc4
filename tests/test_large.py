"""Sizes that do not fit into 31 or 32 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranks import Pool


def all_reduce_ones(comm: Any, count: int) -> tuple[int, int, int]:
    x = np.ones(count, np.int8)
    comm.all_reduce(x)
    return int(x[0]), int(x[-1]), int(np.count_nonzero(x != comm.world_size))


def gather_around(comm: Any, total_bytes: int) -> list[bool]:
    """all_gather whose output is just under, at and just over `total_bytes`."""
    right = []
    for extra in (-1, 0, 1):
        count = total_bytes // (4 * comm.world_size) + extra
        out = np.zeros(count * comm.world_size, np.float32)
        comm.all_gather(np.full(count, comm.rank + 1, np.float32), out)
        right += [bool((out[r * count : (r + 1) * count] == r + 1).all()) for r in range(comm.world_size)]
    return right


def plans(comm: Any) -> None:
    for nbytes in (2**31 - 4, 2**31, 2**32, 2**32 + 4, 2**40):
        plan = comm.explain("all_reduce", nbytes, "float32")
        assert plan.chunk_bytes > 0 and plan.chunks * plan.chunk_bytes >= nbytes, plan


def strided_far(comm: Any, stride: int) -> None:
    """Elements more than 2^31 bytes apart, in memory that is mostly never touched."""
    base = np.zeros(stride + 8, np.int8)
    x = base[4::stride]
    x[:] = comm.rank + 1
    comm.all_reduce(x)
    assert x.tolist() == [comm.world_size * (comm.world_size + 1) // 2] * 2
    assert base[3] == base[5] == 0


def test_plans_of_huge_calls(pools: Any) -> None:
    pools(2).run(plans)


def test_elements_far_apart(pools: Any) -> None:
    pools(2).run(strided_far, 2**31 + 16)


def test_all_gather_of_many_slots(pools: Any) -> None:
    assert pools(3).run(gather_around, 48 << 20, limit=60) == [[True] * 9] * 3


@pytest.mark.nightly
def test_more_than_31_bits_of_elements() -> None:
    with Pool(2, timeout=300) as pool:
        assert pool.run(all_reduce_ones, 2**31 + 8, limit=300) == [(2, 2, 0)] * 2


@pytest.mark.nightly
@pytest.mark.parametrize("total_bytes", [2**31, 2**32])
def test_output_around_a_power_of_two_bytes(total_bytes: int) -> None:
    with Pool(2, timeout=300) as pool:
        assert pool.run(gather_around, total_bytes, limit=300) == [[True] * 6] * 2
