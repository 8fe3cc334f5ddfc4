"""Every collective, dtype, operator, algorithm and world size against the reference, bit for bit."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

import cases
import inputs
import numpy as np
import oracle
import pytest
from cases import ALGORITHMS, COLLECTIVES, MOVES, REDUCTIONS, Case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ranks import Pool

drawn = settings(
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
# Around the inline payload (10 and 40 bytes), a cache line, a vector and its tail, and some primes.
EDGE_BYTES = (1, 8, 9, 10, 11, 32, 39, 40, 41, 63, 64, 65, 127, 128, 129, 251, 1021, 4096, 4099, 16411)


def chunk_bytes(pool: Pool, collective: str, dtype: str) -> int:
    return int(pool.run(explain_chunk, collective, dtype)[0])


def explain_chunk(comm: Any, collective: str, dtype: str) -> int:
    return max(
        int(comm.explain(collective, nbytes, dtype).chunk_bytes) for nbytes in (4096, 1 << 20, 64 << 20)
    )


def edge_counts(dtype: str) -> list[int]:
    size = oracle.numpy_dtype(dtype).itemsize
    return sorted({0, 1, 2, 3, 5, 7, *(nbytes // size for nbytes in EDGE_BYTES)})


@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("collective", REDUCTIONS)
def test_every_operator_and_algorithm(pool: Pool, collective: str, dtype: str) -> None:
    rng = random.Random(f"{collective} {dtype} {pool.world}")
    todo = []
    for op, algorithm in itertools.product(oracle.operators(dtype), (None, *ALGORITHMS[collective])):
        counts = [
            count
            for count in edge_counts(dtype)
            if algorithm is None or algorithm in Case(collective, dtype, count, op).algorithms(pool.world)
        ]
        for count in rng.sample(counts, min(5, len(counts))):
            todo.append(_case(rng, collective, dtype, count, op, algorithm, pool.world))
    cases.check(todo, pool.world, pool.run(cases.perform_all, todo))


@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("collective", MOVES)
def test_every_dtype_moves(pool: Pool, collective: str, dtype: str) -> None:
    rng = random.Random(f"{collective} {dtype} {pool.world}")
    todo = [
        _case(rng, collective, dtype, count, "sum", algorithm, pool.world)
        for algorithm in (None, *ALGORITHMS[collective])
        for count in rng.sample(edge_counts(dtype), 6)
        if algorithm is None or algorithm in Case(collective, dtype, count).algorithms(pool.world)
    ]
    cases.check(todo, pool.world, pool.run(cases.perform_all, todo))


def _case(
    rng: random.Random, collective: str, dtype: str, count: int, op: str, algorithm: str | None, world: int
) -> Case:
    return Case(
        collective,
        dtype,
        count,
        op,
        algorithm,
        in_place=rng.random() < 0.5,
        offset=rng.choice((0, 1, 3, 8, 16, 31)),
        out_offset=rng.choice((0, 1, 4, 13, 32)),
        root=rng.randrange(world),
        seed=rng.randrange(1 << 30),
    )


@st.composite
def drawn_case(draw: st.DrawFn, collective: str, world: int, chunk: int) -> Case:
    moves = collective in MOVES
    dtype = draw(st.sampled_from(oracle.DTYPES))
    size = oracle.numpy_dtype(dtype).itemsize
    edges = [n * chunk * k + d * size for n in (1, 2, 3, 8) for k in (1, world) for d in (-1, 0, 1)]
    nbytes = st.one_of(
        st.integers(0, 130),
        st.integers(0, 5000),
        st.integers(0, 1 << 20),
        st.sampled_from([*EDGE_BYTES, *edges]),
    )
    count = min(draw(nbytes), 6 << 20) // size
    case = Case(  # of the larger side, so that no case moves more than the others
        collective=collective,
        dtype=dtype,
        count=count // world if collective not in ("all_reduce", "reduce", "broadcast") else count,
        op="sum" if moves else draw(st.sampled_from(oracle.operators(dtype))),
        in_place=draw(st.booleans()),
        offset=draw(st.integers(0, 64)),
        out_offset=draw(st.integers(0, 64)),
        root=draw(st.integers(0, world - 1)),
        seed=draw(st.integers(0, 1 << 30)),
    )
    algorithm = draw(st.sampled_from((None, *case.algorithms(world))))
    return Case(**{**case.__dict__, "algorithm": algorithm})


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_drawn_counts_and_offsets(pool: Pool, collective: str) -> None:
    chunk = chunk_bytes(pool, collective, "float32")

    @settings(drawn, max_examples=50)
    @given(st.lists(drawn_case(collective, pool.world, chunk), min_size=1, max_size=4))
    def holds(todo: list[Case]) -> None:
        cases.check(todo, pool.world, pool.run(cases.perform_all, todo))

    holds()


@pytest.mark.parametrize("collective", ["reduce", "gather", "scatter", "all_to_all", "all_to_all_v"])
def test_parts_larger_than_a_slot(pool: Pool, collective: str) -> None:
    counts = (300_007, 65_536) if pool.world < 5 else (70_001,)
    todo = [
        Case(collective, "float32", count, "sum", algorithm, in_place, root=count % pool.world, seed=count)
        for count in counts
        for in_place in (False, True)
        for algorithm in ALGORITHMS[collective]
        if algorithm != "inline"
    ]
    cases.check(todo, pool.world, pool.run(cases.perform_all, todo, limit=120))


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot", None])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sizes_around_chunk_and_slot(pool: Pool, dtype: str, algorithm: str | None) -> None:
    chunk = chunk_bytes(pool, "all_reduce", dtype)
    size = oracle.numpy_dtype(dtype).itemsize
    counts = {chunk * n // size + d for n in (1, 2, pool.world, 2 * pool.world + 1) for d in (-1, 0, 1)}
    todo = [
        Case("all_reduce", dtype, count, "avg" if count % 2 else "sum", algorithm, count % 3 == 0, seed=count)
        for count in sorted(counts)
        if 0 <= count * size <= 4 << 20
    ]
    cases.check(todo, pool.world, pool.run(cases.perform_all, todo, limit=120))


def rows_inside(
    comm: Any, dtype: str, op: str, seed: int, count: int, places: list[tuple[int, int, str | None]]
) -> Any:
    """Reduce the same `count` elements alone and at each place inside a larger tensor."""
    alone = inputs.row(dtype, count, comm.rank, seed)
    found = [comm.all_reduce(alone.copy(), op=op)]
    for total, start, algorithm in places:
        x = inputs.row(dtype, total, comm.rank, seed + 1)
        x[start : start + count] = alone
        found.append(comm.all_reduce(x, op=op, algorithm=algorithm)[start : start + count].copy())
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn"])
def test_bits_do_not_depend_on_size_or_place(pool: Pool, dtype: str) -> None:
    count = 37
    places = [
        (total, start, algorithm)
        for total in (64, 1000, 70001)
        for start in (0, 3, total - count)
        for algorithm in (None, "one_shot", "two_shot")
    ]
    for op in ("sum", "avg"):
        want = oracle.reduce(inputs.rows(dtype, count, pool.world, 5), op)
        for found in pool.run(rows_inside, dtype, op, 5, count, places):
            for got, place in zip(found, [(count, 0, None), *places], strict=True):
                assert (text := oracle.difference(got, want)) == "", f"{op} at {place}: {text}"


def test_average_of_fp16_near_overflow(pool: Pool) -> None:
    """60000 on every rank: a sum that was rounded to fp16 before the division would be infinite."""
    for got in pool.run(average_sixty_thousand):
        assert got == [60000.0] * 3


def average_sixty_thousand(comm: Any) -> list[float]:
    return comm.all_reduce(np.full(3, 60000.0, np.float16), op="avg").tolist()  # type: ignore[no-any-return]


def stress(comm: Any, calls: int, seed: int) -> int:
    """Many calls back to back, of mixed kinds and sizes, with sleeps that differ between ranks."""
    shared, own = random.Random(seed), random.Random(seed * 1000 + comm.rank)
    world, rank = comm.world_size, comm.rank
    wrong = 0
    for i in range(calls):
        kind = shared.randrange(5)
        count = shared.choice(
            (1, 2, 9, 10, 11, 40, 300, 5000, shared.randrange(1, 5000), 60_000 if i % 50 == 0 else 3)
        )
        base = np.arange(count, dtype=np.float32) % 89 + i % 97
        total = base * world + world * (world - 1) // 2
        if kind == 0:
            wrong += not (comm.all_reduce(base + rank) == total).all()
        elif kind == 1:
            gathered = comm.all_gather(base + rank).reshape(world, count)
            wrong += not (gathered == base + np.arange(world, dtype=np.float32)[:, None]).all()
        elif kind == 2:
            x = np.concatenate([base + rank + shard for shard in range(world)])
            wrong += not (comm.reduce_scatter(x) == total + world * rank).all()
        elif kind == 3:
            root = shared.randrange(world)
            wrong += not (comm.broadcast(base + rank, root) == base + root).all()
        else:
            comm.barrier()
        if own.random() < 0.01:
            time.sleep(own.random() * 0.002)
    return wrong


@pytest.mark.parametrize(("world", "calls"), [(2, 6000), (3, 3000), (5, 1000), (8, 600)])
def test_many_calls_back_to_back(pools: Any, world: int, calls: int) -> None:
    assert pools(world).run(stress, calls, world, limit=120) == [0] * world


@pytest.mark.nightly
@pytest.mark.parametrize("world", [2, 3, 4, 5, 8])
def test_a_hundred_thousand_calls(pools: Any, world: int) -> None:
    assert pools(world).run(stress, 100_000, 100 + world, limit=600) == [0] * world


def explain_everything(comm: Any) -> list[str]:
    gaps = []
    for collective, dtype in itertools.product(COLLECTIVES, ("float32", "bfloat16", "int8")):
        for nbytes in sorted({max(0, 2**k + d) for k in range(35) for d in (-1, 0, 1)} | {39, 40, 41}):
            sharded = collective in (*cases.PARTS_IN, *cases.PARTS_OUT)
            nbytes -= nbytes % (oracle.numpy_dtype(dtype).itemsize * (comm.world_size if sharded else 1))
            plan = comm.explain(collective, nbytes, dtype)
            valid = plan.algorithm in ALGORITHMS[collective] and plan.order == "rank"
            if not (valid and plan.reason and str(plan)):
                gaps.append(str(plan))
            payload = nbytes // comm.world_size if collective in ("all_gather", "gather") else nbytes
            if plan.algorithm == "inline" and payload > cases.INLINE_BYTES:
                gaps.append(str(plan))
    return gaps


def test_an_algorithm_for_every_size(pool: Pool) -> None:
    assert pool.run(explain_everything) == [[]] * pool.world


def receipt_agrees_with_plan(comm: Any) -> None:
    before = comm.all_reduce(np.ones(1, np.float32)) is not None and comm.last_receipt().epoch
    for i, count in enumerate((0, 1, 10, 11, 1000, 300_000)):
        plan = comm.explain("all_reduce", 4 * count, "float32")
        comm.all_reduce(np.ones(count, np.float32), op="max")
        receipt = comm.last_receipt()
        assert (receipt.collective, receipt.op, receipt.dtype) == ("all_reduce", "max", "float32")
        assert (receipt.count, receipt.nbytes, receipt.order) == (count, 4 * count, "rank")
        assert receipt.algorithm == plan.algorithm, (plan, receipt)
        assert receipt.epoch == before + i + 1
        stages = plan.algorithm in ("one_shot", "two_shot") and comm.world_size > 1 and count > 0
        assert receipt.staged_bytes == (4 * count if stages else 0), (plan, receipt)
    comm.all_reduce(np.ones((100, 2), np.float32)[:, 0])
    assert comm.last_receipt().nbytes == 400


def test_receipt(pool: Pool) -> None:
    pool.run(receipt_agrees_with_plan)
