"""Symmetric memory as memory: blocks come, serve again and go, views keep them, and ranks allocate unlike."""

from __future__ import annotations

import ctypes
import gc
import random
import threading
import time
from typing import Any

import numpy as np
import oracle
import pytest
from ranks import Pool
from test_capsule import Table
from test_leaks import resources

import collectives
from collectives import _native


def allocate_unlike(comm: Any, rounds: int) -> int:
    """Each rank's arrays lie elsewhere, in new blocks or in used ones; no rank allocates as another."""
    rng, own = random.Random(5), random.Random(comm.rank)
    kept: list[Any] = []
    wrong = 0
    for i in range(rounds):
        for _ in range(own.randrange(3)):
            kept.append(collectives.empty(own.randrange(1, 300_000), "uint8"))
            kept[-1][:] = 255
        while len(kept) > 4:
            del kept[own.randrange(len(kept))]
        x = collectives.empty(rng.randrange(1, 60_000), "int32")
        x[:] = np.arange(x.size) + comm.rank + i
        want = comm.world_size * (np.arange(x.size) + i) + sum(range(comm.world_size))
        comm.all_reduce(x, algorithm="symmetric")
        wrong += not (x == want).all()
    return wrong


@pytest.mark.parametrize("world", [2, 3, 8])
def test_ranks_allocate_unlike_and_reuse(pools: Any, world: int) -> None:
    assert pools(world).run(allocate_unlike, 150) == [0] * world


def grown_by_steps(comm: Any, steps: int) -> list[dict[str, int]]:
    """What FSDP2 does: the same few sizes at each step."""
    seen = []
    for i in range(steps):
        for nbytes in (3 << 20, 1 << 20, 300_000, 4096):
            x, y = collectives.empty(nbytes, "uint8"), collectives.empty(nbytes, "uint8")
            x[:] = 1
            comm.all_reduce(x, y, op="max", algorithm="symmetric")
            assert y[0] == 1 and y[-1] == 1
        if i >= 5:
            seen.append(resources() | _native.heap_usage() | {"address": x.ctypes.data})
    return seen


@pytest.mark.parametrize("world", [2, 4])
def test_steps_leave_memory_flat(world: int) -> None:
    with Pool(world) as pool:
        for seen in pool.run(grown_by_steps, 60):
            first, last = seen[0], seen[-1]
            assert last["mappings"] <= first["mappings"] + 3, (first, last)
            assert last["descriptors"] == first["descriptors"], (first, last)
            # The blocks of a step change places, so that a peer touches more and more of their pages; but not
            # those of new blocks, of which 60 steps would make half a gigabyte.
            assert last["kB"] <= first["kB"] + world * 9000, (first, last)
            assert last["kept_bytes"] == first["kept_bytes"], (first, last)
            assert last["kept_bytes"] + last["live_bytes"] <= (6 << 20) + 8192, last


def usage_of_sizes(comm: Any) -> None:
    """Memory that was given back serves again, or goes."""
    gc.collect()
    start = _native.heap_usage()["live_bytes"]
    for _ in range(300):
        collectives.empty(random.randrange(1, 20 << 20), "uint8")[:1] = 1
        assert _native.heap_usage()["live_bytes"] == start
        assert _native.heap_usage()["kept_bytes"] <= max(start, 0) + (20 << 20) + 8192


def test_what_is_kept_is_bounded() -> None:
    with Pool(1) as pool:
        pool.run(usage_of_sizes)


def owners(_: Any) -> None:
    import torch

    live = _native.heap_usage()["live_bytes"]
    for dtype in (
        "float32",
        np.float64,
        np.dtype("int8"),
        "bfloat16",
        "bool",
        oracle.numpy_dtype("float8_e5m2"),
    ):
        x = collectives.empty((3, 5), dtype)
        assert isinstance(x, np.ndarray) and x.shape == (3, 5) and x.flags.writeable and x.flags.c_contiguous
        assert x.dtype == (oracle.numpy_dtype(dtype) if isinstance(dtype, str) else np.dtype(dtype))
        assert x.ctypes.data % 4096 == 0
        view = x[1:].T
        del x
        view[...] = 0
        assert _native.heap_usage()["live_bytes"] == live + 4096
        del view
        assert _native.heap_usage()["live_bytes"] == live
    for dtype in (
        torch.float32,
        torch.bfloat16,
        torch.bool,
        torch.float8_e4m3fn,
        torch.complex64,
        torch.int64,
    ):
        t = collectives.empty([2, 0, 3], dtype)
        assert t.shape == (2, 0, 3) and t.dtype == dtype
        t = collectives.empty((4, 6), dtype)
        assert t.shape == (4, 6) and t.dtype == dtype and t.is_contiguous() and t.data_ptr() % 4096 == 0
        rows = t[1:].detach().unbind(0)
        numbers = t.view(torch.uint8).numpy()
        storage = t.untyped_storage()
        assert storage.nbytes() == 24 * dtype.itemsize
        del t
        for last in (rows, numbers, storage):
            assert _native.heap_usage()["live_bytes"] == live + 4096, type(last)
        del rows, last
        assert _native.heap_usage()["live_bytes"] == live + 4096
        numbers[...] = 0
        del numbers, storage
        assert _native.heap_usage()["live_bytes"] == live
    x = collectives.empty(5, torch.float32)
    kept = [x.requires_grad_()]
    threading.Thread(target=kept.clear).start()
    del x
    while _native.heap_usage()["live_bytes"] > live:
        time.sleep(0.01)
    assert collectives.empty(7).shape == (7,) and collectives.empty((), "int8").shape == ()


def test_memory_lives_as_long_as_the_last_view() -> None:
    with Pool(1) as pool:
        pool.run(owners)


@pytest.mark.parametrize(
    ("shape", "dtype", "error"),
    [
        (-1, "float32", ValueError),
        ((3, -2), "float32", ValueError),
        (2.5, "float32", TypeError),
        ((2, "x"), "float32", TypeError),
        (3, "float33", TypeError),
        (3, "bfloat32", TypeError),
        (3, object, TypeError),
        (3, "U4", TypeError),
        (3, np.dtype("i4").newbyteorder(), TypeError),
        (3, "datetime64[s]", TypeError),
        (3, np.dtype("i4,i4"), TypeError),
        (1 << 34, "float64", MemoryError),
        ((1 << 40, 1 << 40), "int8", MemoryError),
    ],
)
def test_bad_arguments(shape: Any, dtype: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        collectives.empty(shape, dtype)


def test_through_the_table() -> None:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    at = get(_native.table(), b"collectives._native.table")
    entries = Table.from_address(at)
    allocate, give_back = entries.allocate, entries.give_back
    live = _native.heap_usage()["live_bytes"]
    memory = allocate(5000)
    assert memory % 4096 == 0 and _native.heap_usage()["live_bytes"] == live + 8192
    ctypes.memset(memory, 1, 5000)
    give_back(memory)
    give_back(memory)  # not in use any more: ignored
    give_back(None)
    assert _native.heap_usage()["live_bytes"] == live
    assert allocate(5000) == memory
    give_back(memory)
    assert allocate(1 << 50) is None
