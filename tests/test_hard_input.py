"""Hard arguments: odd exporters, memory that cannot be read, lazy views, huge sizes, names, float modes."""

from __future__ import annotations

import array
import ctypes
import mmap
import os
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cases import may_pull
from ranks import Outcome, Pool, attempt
from test_bad_input import f32, good

needs_direct = pytest.mark.skipif(not may_pull(), reason="needs to read another process's memory")


torch_pools: list[Pool] = []  # at most one: importing torch takes seconds


@pytest.fixture
def torch_pool() -> Pool:
    """Two ranks that import torch, in place of those that a test broke."""
    pytest.importorskip("torch")
    if torch_pools and torch_pools[0].broken:
        torch_pools.pop().close()
    if not torch_pools:
        torch_pools.append(Pool(2))
    return torch_pools[0]


@pytest.fixture(scope="module", autouse=True)
def close_torch_pool() -> Iterator[None]:
    yield
    while torch_pools:
        torch_pools.pop().close()


def ctypes_arrays(comm: Any) -> list[Any]:
    """ctypes exports its arrays without strides."""
    flat = (ctypes.c_float * 4)(*range(4))
    assert comm.all_reduce(flat) is flat
    grid = ((ctypes.c_int32 * 3) * 2)((1, 2, 3), (4, 5, 6))
    gathered = comm.all_gather(grid)
    total = (ctypes.c_double * 2)()
    comm.reduce_scatter((ctypes.c_double * (2 * comm.world_size))(*range(2 * comm.world_size)), total)
    sent = (ctypes.c_uint8 * 100_000)(*([comm.rank] * 100_000))
    comm.broadcast(sent, comm.world_size - 1)
    return [list(flat), gathered.tolist(), list(total), sorted(set(sent))]


def test_ctypes_arrays(pools: Any) -> None:
    for world in (1, 3):
        for rank, (flat, gathered, total, sent) in enumerate(pools(world).run(ctypes_arrays)):
            assert flat == [0.0, world, 2.0 * world, 3.0 * world]
            assert gathered == [[1, 2, 3], [4, 5, 6]] * world
            assert total == [2.0 * rank * world, (2.0 * rank + 1) * world]
            assert sent == [world - 1]


def secret(count: int) -> np.ndarray[Any, Any] | None:
    """Memory that this process can use and no other one can be given, or None if the kernel has none."""
    memfd_secret = 447
    descriptor = ctypes.CDLL(None).syscall(memfd_secret, 0)
    if descriptor < 0:
        return None
    try:
        os.ftruncate(descriptor, count * 4)
        return np.frombuffer(mmap.mmap(descriptor, count * 4), np.float32)
    except OSError:  # it counts as locked memory
        return None
    finally:
        os.close(descriptor)


def move_secret(comm: Any, owner: int, count: int) -> tuple[list[list[float]], list[str]] | None:
    x: Any = secret(count) if comm.rank == owner else np.empty(count, np.float32)
    if comm.all_reduce(np.array([x is None]), op="bor")[0]:
        return None
    values, algorithms = [], []
    for algorithm in ("direct", "direct", None):
        x[:] = comm.rank + 1
        values.append(np.unique(comm.all_gather(x, algorithm=algorithm)).tolist())
        algorithms.append(comm.last_receipt().algorithm)
        values.append(np.unique(comm.broadcast(x, owner, algorithm=algorithm)).tolist())
        algorithms.append(comm.last_receipt().algorithm)
    return values, algorithms


@needs_direct
@pytest.mark.parametrize(("world", "owner"), [(2, 0), (3, 1)])
def test_direct_stages_memory_that_cannot_be_read(pools: Any, world: int, owner: int) -> None:
    everyone = [rank + 1.0 for rank in range(world)]
    for found in pools(world).run(move_secret, owner, 10_000):
        if found is None:
            pytest.skip("needs memfd_secret")
        assert found == ([everyone, [owner + 1.0]] * 3, ["one_shot"] * 6)


def hide_one(comm: Any, hidden: int, count: int) -> tuple[list[bool], list[str]]:
    """all_gather before and after a rank forbids others to read it, as one does that drops its privileges."""
    import collectives

    if os.geteuid() == 0:  # who may read all memory would not notice
        os.setgid(65534)
        os.setuid(65534)
    set_dumpable, libc = 4, ctypes.CDLL(None)
    libc.prctl(set_dumpable, 1)
    right, algorithms = [], []
    with collectives.Communicator(timeout=20) as new:
        for turn in range(3):
            if turn == 1 and new.rank == hidden:
                libc.prctl(set_dumpable, 0)
            new.barrier()
            gathered = new.all_gather(np.full(count, new.rank + 1.0, np.float32))
            right.append(bool((gathered.reshape(-1, count) == np.arange(new.world_size)[:, None] + 1).all()))
            algorithms.append(new.last_receipt().algorithm)
    return right, algorithms


@needs_direct
@pytest.mark.parametrize(("world", "hidden"), [(2, 0), (3, 1)])
def test_direct_stages_where_a_rank_became_undumpable(world: int, hidden: int) -> None:
    with Pool(world, timeout=None) as pool:
        for right, algorithms in pool.run(hide_one, hidden, 1_000_000):
            if algorithms[0] != "direct":
                pytest.skip("ranks without privileges may not read each other's memory here")
            assert right == [True] * 3 and algorithms == ["direct", "one_shot", "one_shot"]


def strange_tensor(name: str) -> Any:
    import torch

    z = torch.tensor([1 + 2j, 3 - 4j])
    return {
        "expanded": lambda: torch.zeros(1).expand(2**62),
        "expanded twice": lambda: torch.zeros(1, 1).expand(2**31, 2**31),
        "conj": lambda: z.conj(),
        "neg": lambda: z.conj().imag,
    }[name]()


def pass_strange(comm: Any, name: str, collective: str) -> Outcome:
    x = strange_tensor(name) if comm.rank == 1 else f32(2)
    method = getattr(comm, collective)
    outcome = attempt(comm.rank, method, x, *([1] if collective == "broadcast" else []))
    outcome.value = None
    return outcome


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("expanded", "ValueError", "memory"),
        ("expanded twice", "ValueError", "memory"),
        ("conj", "TypeError", "resolve_conj()"),
        ("neg", "TypeError", "resolve_neg()"),
    ],
)
def test_strange_tensors_are_refused(
    torch_pool: Pool, name: str, error: str, words: str, collective: str
) -> None:
    peer, own = torch_pool.run(pass_strange, name, collective, limit=20)
    assert own.error == error and words in own.text, own
    assert peer.error == "RefusedError" and peer.ranks == (1,) and peer.collective == collective, peer
    torch_pool.run(good)


def resolved(comm: Any) -> bool:
    import torch

    z = torch.tensor([1 + 2j, 3 - 4j]) * (comm.rank + 1)
    lazy = z.conj().imag
    return (
        comm.all_gather(z.conj().resolve_conj()).tolist() == [1 - 2j, 3 + 4j, 2 - 4j, 6 + 8j]
        and comm.all_reduce(lazy.resolve_neg()).tolist() == [-6.0, 12.0]
        and comm.all_gather(z).tolist() == [1 + 2j, 3 - 4j, 2 + 4j, 6 - 8j]
    )


def test_lazy_views_that_were_resolved(torch_pool: Pool) -> None:
    assert torch_pool.run(resolved) == [True, True]


DENORMAL = np.float32(1e-40)


def add_denormals(comm: Any) -> tuple[list[bytes], bool]:
    """Sums of denormal numbers, on rank 1 in a program that flushes them to zero."""
    import torch

    inputs = [np.full(count, DENORMAL) for count in (8, 1000, 1000, 16 * comm.world_size)]
    two = np.float32(2)
    torch.set_flush_denormal(comm.rank == 1)
    try:
        for x, algorithm in zip(inputs, ("inline", "one_shot", "two_shot"), strict=False):
            comm.all_reduce(x, algorithm=algorithm)
        inputs[3] = comm.reduce_scatter(inputs[3])
        kept_mode = bool(inputs[0][0] * two == 0) == (comm.rank == 1)
    finally:
        torch.set_flush_denormal(False)
    return [x.tobytes() for x in inputs], kept_mode


def test_denormal_sums_where_a_rank_flushes_to_zero(torch_pool: Pool) -> None:
    total = DENORMAL + DENORMAL
    assert total > 0
    for found, kept_mode in torch_pool.run(add_denormals):
        assert found == [np.full(count, total).tobytes() for count in (8, 1000, 1000, 16)]
        assert kept_mode, "the call must leave the program's own mode as it was"


def name_badly(comm: Any, names: list[str]) -> list[Outcome]:
    return [
        attempt(comm.rank, lambda op=op: comm.all_reduce(f32(4), op=op if comm.rank == 0 else "sum"))
        for op in names
    ]


def test_bad_names_beyond_ascii(pools: Any) -> None:
    """The peers get a part of the reason, and none of its characters may be cut in two."""
    names = ["x" * offset + letter * 40 for offset in range(4) for letter in ("ö", "€", "𝄞")]
    own, *peers = pools(3).run(name_badly, names, limit=20)
    for outcome, name in zip(own, names, strict=True):
        assert outcome.error == "ValueError" and name in outcome.text, outcome
    for outcome in (outcome for outcomes in peers for outcome in outcomes):
        assert outcome.error == "RefusedError" and outcome.ranks == (0,), outcome
        assert "unknown op" in outcome.text and "\ufffd" not in outcome.text, outcome
    pools(3).run(good)


class Watched(np.ndarray):
    """An array that can be referred to weakly whatever the version of NumPy."""


def refuse_and_forget(comm: Any) -> tuple[list[str], list[str]]:
    """The errors of buffers that are refused, and those that are still held afterwards."""
    errors, held = [], []
    for name, dtype in {"big": ">f4", "struct": [("a", "f4")], "object": object, "long": "g"}.items():
        x = np.zeros(4, dtype).view(Watched)
        alive = weakref.ref(x)
        errors.append(attempt(comm.rank, comm.all_reduce, x).error)
        del x
        if alive() is not None:
            held.append(name)
    letters = array.array("w" if "w" in array.typecodes else "u", "text")
    errors.append(attempt(comm.rank, comm.all_reduce, letters).error)
    numbers = array.array("f", [1, 2])
    errors.append(attempt(comm.rank, lambda: comm.all_reduce(numbers, op="mean")).error)
    view = memoryview(bytearray(8)).cast("c")
    errors.append(attempt(comm.rank, comm.all_reduce, view).error)
    steps = {"u": lambda: letters.append("s"), "f": lambda: numbers.append(3), "view": view.release}
    held += [name for name, step in steps.items() if attempt(comm.rank, step).error]
    return errors, held


def test_refused_buffers_are_released(pools: Any) -> None:
    for errors, held in pools(2).run(refuse_and_forget):
        assert errors == [*["TypeError"] * 5, "ValueError", "TypeError"]
        assert held == []
    pools(2).run(good)


def call_after(comm: Any, end: str) -> list[Outcome]:
    """Calls on a communicator that is broken or closed, each unlike the one before."""
    comm.all_gather(f32(5))
    comm.barrier()
    getattr(comm, end)()
    return [
        attempt(comm.rank, comm.all_reduce, f32(10)),
        attempt(comm.rank, comm.barrier),
        attempt(comm.rank, comm.broadcast, f32(10)),
    ]


@pytest.mark.parametrize(("end", "error"), [("abort", "AbortedError"), ("close", "ClosedError")])
def test_an_error_names_the_call_that_raised_it(end: str, error: str) -> None:
    with Pool(2) as pool:
        for outcomes in pool.run(call_after, end):
            for outcome, collective in zip(outcomes, ("all_reduce", "barrier", "broadcast"), strict=True):
                assert outcome.error == error and outcome.collective == collective, outcome
                assert outcome.text.startswith(collective), outcome


def explain_nonsense(comm: Any) -> list[str]:
    return [
        attempt(comm.rank, comm.explain, "all_reduce", nbytes).error for nbytes in (-5, -(2**70), 8.0, "8")
    ]


def test_explain_wants_a_number_of_bytes(pools: Any) -> None:
    assert pools(2).run(explain_nonsense) == [["ValueError"] * 4] * 2
