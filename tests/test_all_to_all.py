"""all_to_all with counts: ranks that do not agree on a part, and what counts may be."""

from __future__ import annotations

from typing import Any

import numpy as np
from bad_calls import f32
from test_bad_input import assert_all, good


def test_all_to_all_of_parts_that_disagree(pools: Any) -> None:
    for world in (1, 2, 3, 5):
        for wrong in {0, world - 1}:
            receiver = (wrong + 1) % world
            for extra in (1, -1, 400_000):
                outcomes = pools(world).outcomes(disagreeing_parts, wrong, receiver, extra, limit=20)
                words = (
                    f"rank {wrong} sends {3 * (2 + extra)} elements to rank {receiver}, which expects 6",
                    "still be used",
                )
                culprits = tuple(sorted({wrong, receiver}))
                assert_all(outcomes, "MismatchError", culprits, *words)
                assert all(outcome.collective == "all_to_all_v" for outcome in outcomes)
                pools(world).run(good)
    outcomes = pools(5).outcomes(every_part_disagrees, limit=20)
    assert_all(
        outcomes, "MismatchError", tuple(range(5)), "rank 0 sends 1 element to rank 0", "21 more pairs"
    )
    pools(5).run(good)


def disagreeing_parts(comm: Any, wrong: int, receiver: int, extra: int) -> None:
    """Every rank sends two rows of three to every rank; one sends another number to one."""
    send = [2 + extra * (comm.rank == wrong and peer == receiver) for peer in range(comm.world_size)]
    out = np.full((2 * comm.world_size, 3), 7, np.float32)
    try:
        comm.all_to_all(f32(sum(send), 3), out, send_counts=send, recv_counts=[2] * comm.world_size)
    finally:
        assert (out == 7).all(), "the output was written although the ranks disagree"


def every_part_disagrees(comm: Any) -> None:
    ones = [1] * comm.world_size
    comm.all_to_all(f32(comm.world_size), send_counts=ones, recv_counts=[2] * comm.world_size)


def test_all_to_all_with_counts_on_some_ranks(pools: Any) -> None:
    outcomes = pools(3).outcomes(counts_on_rank_0, limit=20)
    assert_all(outcomes, "MismatchError", (0,), "all_to_all_v", "all_to_all(")
    pools(3).run(good)


def counts_on_rank_0(comm: Any) -> None:
    options = {"send_counts": [1] * 3, "recv_counts": [1] * 3} if comm.rank == 0 else {}
    comm.all_to_all(f32(3), **options)


def rows_of_every_shape(comm: Any) -> None:
    """Rank r sends p rows to rank p, as arrays of several dimensions, strided, and of no elements at all."""
    world, rank = comm.world_size, comm.rank
    send, receive = np.arange(world), [rank] * world
    x = np.arange(sum(send) * 6, dtype=np.int32).reshape(-1, 2, 3) + 1000 * rank
    got = comm.all_to_all(x, send_counts=send, recv_counts=receive)
    start = 6 * sum(send[:rank])
    assert got.shape == (rank * world, 2, 3) and got.dtype == np.int32
    for peer, part in enumerate(np.split(got, world)):
        assert (part.reshape(-1) == np.arange(start, start + 6 * rank) + 1000 * peer).all()
    out = np.zeros((2, 3, rank * world), np.int32).transpose(2, 0, 1)
    again = comm.all_to_all(x[::-1][::-1], out, send_counts=tuple(send), recv_counts=receive)
    assert again is out and (out == got).all()
    empty = comm.all_to_all(f32(0, 4), send_counts=[0] * world, recv_counts=[0] * world)
    assert empty.shape == (0, 4)
    assert comm.last_receipt().nbytes == 0 and comm.last_receipt().chunks == 0


def test_rows_of_every_shape(pool: Any) -> None:
    pool.run(rows_of_every_shape)
