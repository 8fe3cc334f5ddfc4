"""Rank processes for tests of the torch.distributed backend: torch stays imported, groups come and go.

`ranks.values(function, *args)` calls `function(*args)` on every rank in a new process group and returns the
values in rank order; `ranks.both(...)` does so with the backend under test and with Gloo, for comparison;
`ranks.each(...)` tells what happened on each rank, errors and deaths included.

The backend is the one that TEST_TORCH_BACKEND names. Named gloo, the tests test themselves.
"""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Callable, Iterable
from datetime import timedelta
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import ranks
from ranks import Outcome, Pool

BACKEND = os.environ.get("TEST_TORCH_BACKEND", "collectives")
PRELOAD = [*ranks.PRELOAD, "torch_preload", "torch_ranks"]
# Gloo cannot do what the test asks; the reason says what that is.
needs_backend = pytest.mark.skipif(BACKEND == "gloo", reason="Gloo does not do this")

# torch takes seconds to import, and ranks of the other tests must start without it: so a server of its own.
_server = forkserver.ForkServer()
_calls = itertools.count()


def import_backend() -> None:
    if BACKEND == "collectives":
        import collectives  # noqa: F401


def initialize(backend: str, path: str, timeout: float = 60.0) -> None:
    """Join the process group that meets at the file `path`; rank and world size are the environment's."""
    import torch.distributed as dist

    import_backend()
    dist.init_process_group(
        backend,
        init_method=f"file://{path}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=timeout),
    )


def in_group(
    _: None, function: Callable[..., Any], args: Any, backend: str, path: str, timeout: float
) -> bytes:
    """The rank's side of Ranks.begin."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    initialize(backend, path, timeout)
    try:
        # torch would pass tensors by shared files; bytes need none.
        return pickle.dumps(function(*args))
    finally:
        torch._dynamo.reset()
        if dist.is_initialized():
            dist.destroy_process_group()


def without_group(_: None, function: Callable[..., Any], args: Any) -> bytes:
    import torch

    torch.set_num_threads(1)
    import_backend()
    return pickle.dumps(function(*args))


class Ranks(Pool):
    """`world` processes with torch imported and no process group of their own."""

    def __init__(self, world: int, **options: Any):
        with (
            patch.object(ranks, "PRELOAD", PRELOAD),
            patch.object(forkserver, "set_forkserver_preload", _server.set_forkserver_preload),
            patch.object(forkserver, "ensure_running", _server.ensure_running),
            patch.object(forkserver, "connect_to_new_process", _server.connect_to_new_process),
        ):
            super().__init__(world, timeout=None, **options)

    def new_path(self) -> str:
        return str(Path(self._folder.name) / f"group-{next(_calls)}")

    def begin(
        self,
        function: Callable[..., Any],
        *args: Any,
        backend: str = BACKEND,
        timeout: float = 60.0,
        ranks: Iterable[int] | None = None,
    ) -> None:
        """Start `function(*args)` in a new process group; finish() waits for it."""
        self.start(in_group, function, args, backend, self.new_path(), timeout, ranks=ranks)

    def finish(self, limit: float | None = None, ranks: Iterable[int] | None = None) -> list[Outcome]:
        outcomes = self.collect(limit, ranks)
        for outcome in outcomes:
            if isinstance(outcome.value, bytes):
                outcome.value = pickle.loads(outcome.value)
        return outcomes

    def each(
        self, function: Callable[..., Any], *args: Any, limit: float | None = None, **options: Any
    ) -> list[Outcome]:
        """What each rank did with `function(*args)` in a new process group."""
        self.begin(function, *args, **options)
        return self.finish(limit)

    def values(self, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """The values that `function(*args)` returned in a new process group, in rank order."""
        return self._raise_unless_ok(self.each(function, *args, **options))

    def both(self, function: Callable[..., Any], *args: Any, **options: Any) -> tuple[list[Any], list[Any]]:
        """The values with the backend under test, and with Gloo."""
        ours = self.values(function, *args, **options)
        return ours, self.values(function, *args, backend="gloo", **options)

    def alone(self, function: Callable[..., Any], *args: Any, limit: float | None = None) -> list[Any]:
        """The values that `function(*args)` returned; it makes process groups itself, if any."""
        self.start(without_group, function, args)
        return self._raise_unless_ok(self.finish(limit))


def assert_same(ours: Any, theirs: Any, where: str = "", **tolerance: Any) -> None:
    """Both alike to within the dtype's rounding (torch.testing's defaults), whatever nests them."""
    import torch

    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), (where, ours.keys(), theirs.keys())
        for name in ours:
            assert_same(ours[name], theirs[name], f"{where} {name}", **tolerance)
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs), (where, len(ours), len(theirs))
        for index, pair in enumerate(zip(ours, theirs, strict=True)):
            assert_same(*pair, f"{where} {index}", **tolerance)
    elif ours is None or isinstance(ours, str):
        assert ours == theirs, (where, ours, theirs)
    else:
        torch.testing.assert_close(
            ours, theirs, equal_nan=True, msg=lambda text: f"{where}: {text}", **tolerance
        )
