"""Whatever holds the elements: layouts, shapes, scalars, empty arrays, DLPack objects and torch tensors."""

from __future__ import annotations

import itertools
from typing import Any

import inputs
import numpy as np
import oracle
import pytest
from ranks import Pool

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
    """An array of shape (6, 8), laid out as named, and all of the buffer below it, filled with `fill`."""
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
        assert oracle.same_bits(buffer, marker), (
            f"bytes between the elements changed ({x_layout}, {out_layout})"
        )
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
    for op in oracle.OPS[:5]:
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
        for op in oracle.OPS[:5]:
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
            for dtype in (*oracle.FLOATS, "int64", "int8", "uint16", "bool"):
                rows = [row.reshape(6, 8) for row in inputs.rows(dtype, 48, world, 2)]
                total = oracle.reduce(rows, "sum")
                want = dict.fromkeys(
                    ["all_reduce", "transposed", "strided", "offset", "reduce_scatter"], total
                )
                want |= {"all_gather": np.concatenate(rows), "broadcast": rows[0]}
                for found in pool.run(torch_tensors, dtype, 2):
                    for name, got in found.items():
                        assert (text := oracle.difference(got, want[name])) == "", f"{dtype} {name}: {text}"
