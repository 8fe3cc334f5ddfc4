"""What calls say once a communicator is broken, and what they say of ranks that are stuck elsewhere."""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np
import pytest
from ranks import Pool, attempt


def late_and_later(comm: Any) -> list[str]:
    x = np.ones(4, np.float32)
    comm.barrier()
    if comm.rank == 1:
        time.sleep(1.5)
    first = attempt(comm.rank, comm.all_reduce, x)
    later = [attempt(comm.rank, comm.broadcast, x), attempt(comm.rank, comm.barrier)]
    assert [o.error for o in later] == ["CollectiveTimeoutError"] * 2, later
    assert all(o.ranks == (1,) and o.elapsed < 0.5 for o in later), later
    assert [o.epoch for o in (first, *later)] == [2, 3, 4]
    return [first.text, *(o.text for o in later)]


def test_later_calls_tell_of_the_one_that_broke_it() -> None:
    with Pool(2, timeout=0.5) as pool:
        waiting, late = pool.run(late_and_later)
    assert "rank 1 did not arrive within the timeout of 0.5 s" in waiting[0]
    assert "another rank gave up waiting for this one" in late[0]
    for texts in (waiting, late):
        for text, call in zip(texts[1:], ("broadcast(", "barrier()"), strict=True):
            assert (
                text.startswith(call)
                and f": not made, since the communicator has been broken since {texts[0]}" in text
            )


def crossed(comm: Any) -> str:
    """Rank 0 waits in a barrier for rank 1, which waits for a message of rank 0."""
    x = np.ones(4, np.float32)
    comm.barrier()
    if comm.rank == 0:
        return attempt(0, comm.barrier).text
    return attempt(1, lambda: comm.recv(x, 0, tag=7, timeout=20)).text


def test_a_barrier_against_a_receive() -> None:
    with Pool(2, timeout=0.7) as pool:
        waiting, blamed = pool.run(crossed)
    last = r"last call: recv\(float32, 4 elements, from rank 0, tag 7\), message 1, waiting in it for \d"
    assert re.search(last, waiting), waiting
    assert "another rank gave up waiting for this one; rank 0's last call: barrier(), call 2, " in blamed


def names(comm: Any) -> list[str]:
    class Elsewhere:
        device = "cuda:1"

        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("not here")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 1

    texts = [
        attempt(0, comm.all_reduce, np.array(["a", "b"])).text,
        attempt(0, comm.all_reduce, np.ones(2, "datetime64[s]")).text,
        attempt(0, comm.all_reduce, Elsewhere()).text,
        attempt(0, lambda: comm.all_reduce(np.ones(2), op=7)).text,
        attempt(0, lambda: comm.all_reduce(np.ones(2), algorithm=7)).text,
    ]
    comm.barrier()
    return texts


def test_what_cannot_be_moved_is_named() -> None:
    with Pool(1) as pool:
        [texts] = pool.run(names)
    assert "element type str" in texts[0] and "known are float32" in texts[0]
    assert "datetime64" in texts[1]
    assert "on cuda:1" in texts[2] and "CPU memory only" in texts[2]
    assert "op must be a string, one of sum, avg" in texts[3] and "not 7" in texts[3]
    assert "algorithm must be a string, one of inline" in texts[4]


@pytest.mark.parametrize("kind", ["meta", "sparse"])
def test_tensors_without_dense_memory(kind: str) -> None:
    torch = pytest.importorskip("torch")
    import collectives

    x = torch.empty(3, device="meta") if kind == "meta" else torch.ones(3).to_sparse()
    with (
        collectives.Communicator() as comm,
        pytest.raises(TypeError, match="meta" if kind == "meta" else "sparse_coo"),
    ):
        comm.all_reduce(x)
