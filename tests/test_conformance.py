"""Every collective, dtype, operator, algorithm and world size against the rank-order reference, bit for bit."""

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
from cases import ALGORITHMS, COLLECTIVES, Case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ranks import Pool

drawn = settings(
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
# Around the inline payload (10 and 40 bytes), a cache line, a vector and its tail, and some primes.
EDGE_BYTES = (1, 8, 9, 10, 11, 32, 39, 40, 41, 63, 64, 65, 127, 128, 129, 251, 1021, 4096, 4099, 16411)


def chunk_bytes(pool: Pool, collective: str, dtype: str) -> int:
    return int(pool.run(explain_chunk, collective, dtype)[0])


def explain_chunk(comm: Any, collective: str, dtype: str) -> int:
    return max(int(comm.explain(collective, nbytes, dtype).chunk_bytes) for nbytes in (4096, 1 << 20, 64 << 20))


def edge_counts(dtype: str) -> list[int]:
    size = oracle.numpy_dtype(dtype).itemsize
    return sorted({0, 1, 2, 3, 5, 7, *(nbytes // size for nbytes in EDGE_BYTES)})


@pytest.mark.parametrize("dtype", oracle.REDUCIBLE)
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter"])
def test_every_operator_and_algorithm(pool: Pool, collective: str, dtype: str) -> None:
    rng = random.Random(f"{collective} {dtype} {pool.world}")
    todo = []
    for op, algorithm in itertools.product(oracle.operators(dtype), (None, *ALGORITHMS[collective])):
        scale = pool.world if collective == "reduce_scatter" else 1
        counts = [
            count
            for count in edge_counts(dtype)
            if algorithm != "inline"
            or count * scale * oracle.numpy_dtype(dtype).itemsize <= cases.INLINE_BYTES
        ]
        for count in rng.sample(counts, min(5, len(counts))):
            todo.append(_case(rng, collective, dtype, count, op, algorithm, pool.world))
    cases.check(todo, pool.world, pool.run(cases.perform_all, todo))


@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("collective", ["all_gather", "broadcast"])
def test_every_dtype_moves(pool: Pool, collective: str, dtype: str) -> None:
    rng = random.Random(f"{collective} {dtype} {pool.world}")
    size = oracle.numpy_dtype(dtype).itemsize
    todo = [
        _case(rng, collective, dtype, count, "sum", algorithm, pool.world)
        for algorithm in (None, *ALGORITHMS[collective])
        for count in rng.sample(edge_counts(dtype), 6)
        if algorithm != "inline" or count * size <= cases.INLINE_BYTES
    ]
    cases.check(todo, pool.world, pool.run(cases.perform_all, todo))


def _case(
    rng: random.Random, collective: str, dtype: str, count: int, op: str, algorithm: str | None, world: int
) -> Case:
    return Case(
        collective, dtype, count, op, algorithm,
        in_place=rng.random() < 0.5, offset=rng.choice((0, 1, 3, 8, 16, 31)), out_offset=rng.choice((0, 1, 4, 13, 32)),
        root=rng.randrange(world), seed=rng.randrange(1 << 30),
    )  # fmt: skip


@st.composite
def drawn_case(draw: st.DrawFn, collective: str, world: int, chunk: int) -> Case:
    moves = collective in ("all_gather", "broadcast")
    dtype = draw(st.sampled_from(oracle.DTYPES if moves else oracle.REDUCIBLE))
    size = oracle.numpy_dtype(dtype).itemsize
    edges = [n * chunk * k + d * size for n in (1, 2, 3, 8) for k in (1, world) for d in (-1, 0, 1)]
    nbytes = st.one_of(
        st.integers(0, 130), st.integers(0, 5000), st.integers(0, 1 << 20), st.sampled_from([*EDGE_BYTES, *edges])
    )
    count = min(draw(nbytes), 6 << 20) // size
    case = Case(
        collective=collective,
        dtype=dtype,
        count=count // world if collective == "reduce_scatter" else count,
        op="sum" if moves else draw(st.sampled_from(oracle.operators(dtype))),
        in_place=draw(st.booleans()),
        offset=draw(st.integers(0, 64)),
        out_offset=draw(st.integers(0, 64)),
        root=draw(st.integers(0, world - 1)),
        seed=draw(st.integers(0, 1 << 30)),
    )
    algorithm = draw(st.sampled_from((None, *cases.forcible(collective, case.payload(world)))))
    return Case(**{**case.__dict__, "algorithm": algorithm})


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_drawn_counts_and_offsets(pool: Pool, collective: str) -> None:
    chunk = chunk_bytes(pool, collective, "float32")

    @settings(drawn, max_examples=50)
    @given(st.lists(drawn_case(collective, pool.world, chunk), min_size=1, max_size=4))
    def holds(todo: list[Case]) -> None:
        cases.check(todo, pool.world, pool.run(cases.perform_all, todo))

    holds()


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


def rows_inside(comm: Any, dtype: str, op: str, seed: int, count: int, places: list[tuple[int, int, str | None]]) -> Any:
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


LAYOUTS = {
    "contiguous": lambda: np.empty((6, 8)),
    "transposed": lambda: np.empty((8, 6)).T,
    "fortran": lambda: np.empty((6, 8), order="F"),
    "column": lambda: np.empty((6, 16))[:, ::2],
    "step": lambda: np.empty((18, 8))[::3],
    "reversed": lambda: np.empty((6, 8))[::-1, ::-1],
    "inside": lambda: np.empty((9, 11))[2:8, 1:9],
    "permuted": lambda: np.empty((2, 6, 8)).transpose(1, 2, 0)[:, :, 1],
}


def layout(name: str, dtype: str, fill: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """An array of shape (6, 8) laid out as named and the whole buffer that it is a view of, filled with `fill`."""
    shape = LAYOUTS[name]()
    root = shape
    while root.base is not None:
        root = root.base
    buffer = np.full(root.size, fill, oracle.numpy_dtype(dtype))
    scale = buffer.itemsize / root.itemsize
    offset = int((shape.__array_interface__["data"][0] - root.__array_interface__["data"][0]) * scale)
    strides = [int(stride * scale) for stride in shape.strides]
    return np.ndarray(shape.shape, buffer.dtype, buffer, offset, strides), buffer


def strided_calls(comm: Any, dtype: str, x_layout: str, out_layout: str) -> dict[str, Any]:
    rank, world = comm.rank, comm.world_size
    values = inputs.row(dtype, 48, rank, 11).reshape(6, 8)
    found: dict[str, Any] = {}

    def fresh(name: str) -> tuple[Any, Any, Any]:
        array, buffer = layout(name, dtype, 1)
        marker = buffer.copy()
        return array, buffer, marker

    def untouched(array: Any, buffer: Any, marker: Any) -> None:
        saved = array.copy()
        array[...] = 1
        assert oracle.same_bits(buffer, marker), f"bytes between the elements changed ({x_layout}, {out_layout})"
        array[...] = saved

    x, x_buffer, x_marker = fresh(x_layout)
    out, out_buffer, out_marker = fresh(out_layout)
    x[...] = values
    assert comm.all_reduce(x, out) is out
    found["all_reduce"] = out.copy(order="C")
    assert oracle.same_bits(np.ascontiguousarray(x), values)
    untouched(out, out_buffer, out_marker)
    assert comm.all_reduce(x) is x
    found["in place"] = x.copy(order="C")
    untouched(x, x_buffer, x_marker)
    x[...] = values
    assert comm.broadcast(x, world - 1) is x
    found["broadcast"] = x.copy(order="C")
    untouched(x, x_buffer, x_marker)
    x[...] = values
    found["all_gather"] = np.ascontiguousarray(comm.all_gather(x))
    wide = np.full((6 * world, 16), 1, x.dtype)
    comm.all_gather(x, wide[:, 1::2])
    assert (wide[:, ::2] == wide.dtype.type(1)).all()
    found["all_gather strided"] = np.ascontiguousarray(wide[:, 1::2])
    if 6 % world == 0:
        scattered, buffer = np.full((2, 6 // world, 8), 1, x.dtype)[::-1], None
        comm.reduce_scatter(x, scattered[0])
        found["reduce_scatter"] = np.ascontiguousarray(scattered[0])
        assert (scattered[1] == x.dtype.type(1)).all(), buffer
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("x_layout", LAYOUTS)
def test_any_layout(pools: Any, dtype: str, x_layout: str) -> None:
    for world, out_layout in itertools.product((2, 3), LAYOUTS):
        if dtype != "float32" and out_layout not in ("contiguous", "transposed"):
            continue
        rows = [row.reshape(6, 8) for row in inputs.rows(dtype, 48, world, 11)]
        total = oracle.reduce(rows, "sum")
        want = {
            "all_reduce": total,
            "in place": total,
            "broadcast": rows[world - 1],
            "all_gather": np.concatenate(rows),
            "all_gather strided": np.concatenate(rows),
        }
        for rank, found in enumerate(pools(world).run(strided_calls, dtype, x_layout, out_layout)):
            want["reduce_scatter"] = np.split(total, world)[rank]
            for name, got in found.items():
                assert (text := oracle.difference(got, want[name])) == "", f"{name}, {out_layout}: {text}"


def large_strided(comm: Any, count: int) -> Any:
    """A strided tensor of many chunks: staging must not be limited to one slot."""
    base = np.full((count, 3), -1, np.float32)
    base[:, 1] = inputs.row("float32", count, comm.rank, 3)
    comm.all_reduce(base[:, 1])
    assert (base[:, ::2] == -1).all()
    return base[:, 1].copy()


def test_large_strided_tensor(pools: Any) -> None:
    count = 700_001
    for world in (2, 3):
        want = oracle.reduce(inputs.rows("float32", count, world, 3), "sum")
        for got in pools(world).run(large_strided, count):
            assert oracle.difference(got, want) == ""


def scalars(comm: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for op in oracle.operators("float32"):
        x = np.array(comm.rank + 1.5, np.float32)
        assert comm.all_reduce(x, op=op) is x and x.shape == ()
        found[op] = x.item()
    for op in ("sum", "avg", "max"):
        for count in range(1, 2 * comm.world_size + 2):
            x = comm.all_reduce(np.full(count, comm.rank + 1.5, np.float32), op=op)
            assert (x == np.float32(found[op])).all(), (op, count, x)
    found["all_gather"] = comm.all_gather(np.array(comm.rank, np.int32))
    found["broadcast"] = comm.broadcast(np.array(comm.rank, np.int16), comm.world_size - 1).item()
    return found


def test_zero_dimensional_arrays_and_tiny_counts(pool: Pool) -> None:
    rows = [np.array([rank + 1.5], np.float32) for rank in range(pool.world)]
    for found in pool.run(scalars):
        for op in oracle.operators("float32"):
            assert found[op] == oracle.reduce(rows, op)[0]
        assert found["all_gather"].shape == (pool.world,) and found["all_gather"].dtype == np.int32
        assert found["all_gather"].tolist() == list(range(pool.world))
        assert found["broadcast"] == pool.world - 1


def shapes(comm: Any) -> None:
    world, rank = comm.world_size, comm.rank
    for shape in ((0,), (1, 0, 2), (0, 3)):
        assert comm.all_reduce(np.empty(shape, np.float32)).shape == shape
        gathered = comm.all_gather(np.empty(shape, np.float32))
        assert gathered.shape == (world * shape[0], *shape[1:])
        assert comm.broadcast(np.empty(shape, np.float32)).shape == shape
    assert comm.reduce_scatter(np.empty((world, 0), np.float32)).shape == (1, 0)
    assert comm.reduce_scatter(np.empty((0, 4), np.float32)).shape == (0, 4)
    x = np.arange(world * 2 * 3.0).reshape(world * 2, 3)
    out = comm.reduce_scatter(x)
    assert out.shape == (2, 3) and (out == x[2 * rank : 2 * rank + 2] * world).all()
    assert comm.all_gather(np.full((2, 3), rank)).shape == (2 * world, 3)
    piece = np.arange(12.0).reshape(6, 2)[2:4]  # a packed view at an offset
    assert (comm.all_gather(piece) == np.concatenate([piece] * world)).all()
    comm.barrier()


def test_shapes_and_empty_arrays(pool: Pool) -> None:
    pool.run(shapes)


class OnlyDlpack:
    """An object that offers nothing but the DLPack protocol."""

    def __init__(self, array: np.ndarray[Any, Any]):
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def dlpack_only(comm: Any, seed: int) -> dict[str, Any]:
    x = inputs.row("float32", 1000, comm.rank, seed)
    wrapped = OnlyDlpack(x.copy())
    assert comm.all_reduce(wrapped) is wrapped
    out = OnlyDlpack(np.empty(1000 * comm.world_size, np.float32))
    assert comm.all_gather(OnlyDlpack(x), out) is out
    strided = np.zeros((1000, 2), np.float32)
    comm.all_reduce(OnlyDlpack(x), OnlyDlpack(strided[:, 1]))
    assert not strided[:, 0].any()
    return {"all_reduce": wrapped._array, "all_gather": out._array, "strided": strided[:, 1].copy()}


def test_anything_with_dlpack(pools: Any) -> None:
    for world in (2, 3):
        rows = inputs.rows("float32", 1000, world, 7)
        for found in pools(world).run(dlpack_only, 7):
            assert oracle.difference(found["all_reduce"], oracle.reduce(rows, "sum")) == ""
            assert oracle.difference(found["strided"], oracle.reduce(rows, "sum")) == ""
            assert oracle.difference(found["all_gather"], np.concatenate(rows)) == ""


def torch_tensors(comm: Any, dtype: str, seed: int) -> dict[str, Any]:
    import torch

    def tensor(array: Any) -> Any:
        bits = torch.from_numpy(array.reshape(-1).view(np.uint8).copy())
        return bits.view(getattr(torch, dtype)).reshape(array.shape)

    def array(value: Any) -> Any:
        assert isinstance(value, torch.Tensor)
        shape = value.shape
        flat = value.contiguous().reshape(-1).view(torch.uint8).numpy()
        return flat.view(oracle.numpy_dtype(dtype)).reshape(shape)

    values = inputs.row(dtype, 48, comm.rank, seed).reshape(6, 8)
    found = {}
    x = tensor(values)
    assert comm.all_reduce(x) is x
    found["all_reduce"] = array(x)
    found["all_gather"] = array(comm.all_gather(tensor(values)))
    found["broadcast"] = array(comm.broadcast(tensor(values), 0))
    x = tensor(values).t().contiguous().t()
    out = torch.zeros(8, 6).to(x.dtype).t()
    assert comm.all_reduce(x, out) is out
    found["transposed"] = array(out)
    wide = torch.zeros(6, 16).to(x.dtype)
    comm.all_reduce(x, wide[:, ::2])
    found["strided"] = array(wide[:, ::2])
    assert not wide[:, 1::2].float().any()
    padded = torch.zeros(1 + 48).to(x.dtype)[1:]
    padded.copy_(x.reshape(-1))
    found["offset"] = array(comm.all_reduce(padded)).reshape(6, 8)
    if 6 % comm.world_size == 0:
        scattered = comm.reduce_scatter(tensor(values))
        found["reduce_scatter"] = array(comm.all_gather(scattered))
    return found


def test_torch_tensors() -> None:
    pytest.importorskip("torch")
    for world in (2, 3):
        with Pool(world) as pool:
            for dtype in ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int8", "uint16", "bool"):
                rows = [row.reshape(6, 8) for row in inputs.rows(dtype, 48, world, 2)]
                total = oracle.reduce(rows, "sum")
                want = dict.fromkeys(["all_reduce", "transposed", "strided", "offset", "reduce_scatter"], total)
                want |= {"all_gather": np.concatenate(rows), "broadcast": rows[0]}
                for found in pool.run(torch_tensors, dtype, 2):
                    for name, got in found.items():
                        assert (text := oracle.difference(got, want[name])) == "", f"{dtype} {name}: {text}"


def stress(comm: Any, calls: int, seed: int) -> int:
    """Many calls back to back, of mixed kinds and sizes, with sleeps that differ between ranks."""
    shared, own = random.Random(seed), random.Random(seed * 1000 + comm.rank)
    world, rank = comm.world_size, comm.rank
    wrong = 0
    for i in range(calls):
        kind = shared.randrange(5)
        count = shared.choice((1, 2, 9, 10, 11, 40, 300, 5000, shared.randrange(1, 5000), 60_000 if i % 50 == 0 else 3))
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


def explain_everything(comm: Any) -> list[str]:
    gaps = []
    for collective, dtype in itertools.product(COLLECTIVES, ("float32", "bfloat16", "int8")):
        for nbytes in sorted({max(0, 2**k + d) for k in range(35) for d in (-1, 0, 1)} | {39, 40, 41}):
            sharded = collective in ("all_gather", "reduce_scatter")
            nbytes -= nbytes % (oracle.numpy_dtype(dtype).itemsize * (comm.world_size if sharded else 1))
            plan = comm.explain(collective, nbytes, dtype)
            if plan.algorithm not in ALGORITHMS[collective] or plan.order != "rank" or not plan.reason or not str(plan):
                gaps.append(str(plan))
            payload = nbytes // comm.world_size if collective == "all_gather" else nbytes
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
        assert receipt.staged_bytes == 0 or receipt.staged_bytes >= 0
    comm.all_reduce(np.ones((100, 2), np.float32)[:, 0])
    assert comm.last_receipt().staged_bytes >= 400


def test_receipt(pool: Pool) -> None:
    pool.run(receipt_agrees_with_plan)
