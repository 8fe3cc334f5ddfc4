"""Shared fixtures: rank pools that live as long as the session, and the option for nightly tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ranks import Pool

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


@pytest.fixture(scope="session")
def pools() -> Iterator[Callable[[int], Pool]]:
    """The session's pool of a world size; a pool that a test broke is replaced at the next request."""
    alive: dict[int, Pool] = {}

    def get(world: int) -> Pool:
        if world in alive and alive[world].broken:
            alive.pop(world).close()
        if world not in alive:
            alive[world] = Pool(world)
        return alive[world]

    yield get
    for pool in alive.values():
        pool.close()


@pytest.fixture(params=WORLDS, ids=lambda world: f"world{world}")
def pool(request: pytest.FixtureRequest, pools: Callable[[int], Pool]) -> Pool:
    """The session's pool at each world size."""
    return pools(request.param)
