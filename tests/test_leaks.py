"""What a communicator takes, and gives back when it is closed: descriptors, threads, mappings, memory."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import Pool, new_key


def resources() -> dict[str, int]:
    status = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "kB": int(status["VmRSS"].split()[0]),
    }


def open_and_close(comm: Any, key: str, rounds: int) -> list[dict[str, int]]:
    import collectives

    seen = []
    for i in range(rounds):
        os.environ["TORCHELASTIC_RUN_ID"] = f"{key}-{i}"
        with collectives.Communicator(timeout=30) as new:
            x = new.all_reduce(np.ones(100_000, np.float32))
            assert (x == new.world_size).all()
        seen.append(resources())
    return seen


def many_open(comm: Any, key: str, groups: int) -> int:
    """Descriptors that `groups` communicators take while all are open; each works."""
    import collectives

    before = resources()["descriptors"]
    made = []
    for i in range(groups):
        os.environ["TORCHELASTIC_RUN_ID"] = f"{key}-{i}"
        made.append(collectives.Communicator(timeout=30))
    taken = resources()["descriptors"] - before
    for i, new in enumerate(made):
        assert new.all_reduce(np.full(3, i))[0] == i * comm.world_size
    for new in made:
        new.close()
    assert resources()["descriptors"] == before
    return taken


def thread_count(comm: Any) -> int:
    comm.all_reduce(np.ones(1 << 20, np.float32))
    return resources()["threads"]


@pytest.mark.parametrize("world", [2, 4])
def test_open_and_close_leaks_nothing(world: int) -> None:
    rounds = 200
    with Pool(world) as pool:
        for seen in pool.run(open_and_close, new_key(), rounds):
            # A closed slice is given back when all ranks have closed theirs, so the counts go up and down.
            early, late = (
                {name: max(sample[name] for sample in part) for name in seen[0]}
                for part in (seen[20 : rounds // 2], seen[rounds // 2 :])
            )
            assert late["descriptors"] <= early["descriptors"], (early, late)
            assert late["threads"] == early["threads"], (early, late)
            assert late["mappings"] <= early["mappings"] + 4 * world, (early, late)
            assert late["kB"] <= early["kB"] + 16384, (early, late)


def test_many_communicators_take_few_descriptors(pools: Any) -> None:
    groups = 30
    for taken in pools(4).run(many_open, new_key(), groups):
        # 30 groups of 64 ranks must fit into the usual limit of 1024 descriptors.
        assert taken <= groups * 3 * 0.5, f"{taken} descriptors for {groups} communicators of 4 ranks"


def test_descriptor_limit_gives_an_error_in_words() -> None:
    with Pool(2, timeout=None) as pool:
        for outcome in pool.outcomes(without_descriptors, limit=30):
            assert outcome.error in ("OSError", "RuntimeError", "CollectiveTimeoutError"), outcome
            assert len(outcome.text) > 10, outcome


def test_memory_of_a_communicator_is_modest(pools: Any) -> None:
    """Slots are touched only when used: small calls must not make a process resident by the megabyte."""
    for grown in pools(2).run(memory_after_small_calls, new_key()):
        assert grown < 4096, f"{grown} kB"


def test_threads_are_not_started(pools: Any) -> None:
    assert pools(3).run(thread_count) == [1] * 3


def without_descriptors(comm: Any) -> None:
    import collectives

    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 10, used + 10))
    fillers = []
    try:
        while True:
            fillers.append(os.dup(0))
    except OSError:
        pass
    try:
        collectives.Communicator(timeout=2)
    finally:
        for filler in fillers:
            os.close(filler)


def memory_after_small_calls(comm: Any, key: str) -> int:
    import collectives

    os.environ["TORCHELASTIC_RUN_ID"] = key
    before = resources()["kB"]
    with collectives.Communicator(timeout=30) as new:
        for _ in range(100):
            new.all_reduce(np.ones(10, np.float32))
        return resources()["kB"] - before
