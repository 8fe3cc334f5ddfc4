"""Shared fixtures: rank pools that live as long as the session, and the option for nightly tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ranks import Pool
from torch_ranks import Ranks

# Those run under mpirun, which test_mpi.py starts.
collect_ignore = [] if "--with-mpi" in sys.argv else ["mpi"]
WORLDS = (1, 2, 3, 4, 5, 8)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="also run tests that need much memory or time")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "nightly: needs 10 GB or minutes; run with --nightly")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--nightly") or os.environ.get("TEST_NIGHTLY"):
        return
    skip = pytest.mark.skip(reason="nightly: run with --nightly")
    for item in items:
        if "nightly" in item.keywords:
            item.add_marker(skip)


def keep(kind: type[Pool]) -> Iterator[Callable[[int], Pool]]:
    """The pools by world size; one that a test broke is replaced at the next request."""
    alive: dict[int, Pool] = {}

    def get(world: int) -> Pool:
        if world in alive and alive[world].broken:
            alive.pop(world).close()
        if world not in alive:
            alive[world] = kind(world)
        return alive[world]

    yield get
    for pool in alive.values():
        pool.close()


@pytest.fixture(scope="session")
def pools() -> Iterator[Callable[[int], Pool]]:
    """The session's pool of a world size."""
    yield from keep(Pool)


@pytest.fixture(scope="session")
def torch_pools() -> Iterator[Callable[[int], Ranks]]:
    """The session's ranks of a world size for tests of the torch.distributed backend."""
    yield from keep(Ranks)  # type: ignore[misc]


@pytest.fixture(params=[2, 4], ids=lambda world: f"world{world}")
def ranks(request: pytest.FixtureRequest, torch_pools: Callable[[int], Ranks]) -> Ranks:
    """The session's ranks at the world sizes of the training tests."""
    return torch_pools(request.param)


@pytest.fixture(params=WORLDS, ids=lambda world: f"world{world}")
def pool(request: pytest.FixtureRequest, pools: Callable[[int], Pool]) -> Pool:
    """The session's pool at each world size."""
    return pools(request.param)
