"""What tests of messages between two ranks share: data that tell their sender, and a blocking exchange."""

from __future__ import annotations

from typing import Any

import numpy as np

LARGE = 1_500_000  # elements of float32: far more than a ring holds


def pattern(count: int, *numbers: int) -> Any:
    """Elements that tell who sent what."""
    rng = np.random.default_rng(numbers)
    return rng.integers(0, 256, 4 * count, dtype=np.uint8).view(np.int32)


def blocking_shift(comm: Any, counts: list[int]) -> None:
    """Even ranks send first, odd ranks receive first; the messages are larger than the ring."""
    if comm.world_size % 2 and comm.rank == comm.world_size - 1:
        return
    other = comm.rank ^ 1
    for count in counts:
        x, y = pattern(count, comm.rank), np.zeros(count, np.int32)
        if comm.rank % 2:
            assert comm.recv(y, other) == other
            comm.send(x, other)
        else:
            comm.send(x, other)
            assert comm.recv(y, None) == other
        assert (y == pattern(count, other)).all()
