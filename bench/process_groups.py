"""torch.distributed on the ranks of a communicator: a process group for each backend that is measured."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy as np

from collectives.bench.arguments import OWN_BACKEND
from collectives.bench.start import StartError
from collectives.communicator import Communicator

NOOP = "fake"
"""PyTorch's FakeProcessGroup: a C++ backend whose calls return at once.

Its all_reduce, reduce, broadcast and messages touch nothing and return a new completed Work, on which `dist`
then calls wait(); a backend that returns no Work for a synchronous call saves that. The others copy the
rank's own input into the output.
"""


class ProcessGroups:
    """The default process group and further ones; all ranks make the same calls in the same order.

    Args:
        comm: carries the address of the store from rank 0 to the others.
        backend: of the default process group.

    Raises:
        StartError: there is no such backend; on every rank alike.
    """

    def __init__(self, comm: Communicator, backend: str) -> None:
        import torch.distributed as dist

        self._dist = dist
        check_backend(backend)
        port = np.zeros(1, np.int64)
        store = None
        if comm.rank == 0:
            # Port 0: the store keeps the socket that the system chose, so that nobody can take the port in
            # between.
            store = dist.TCPStore("127.0.0.1", 0, comm.world_size, is_master=True, wait_for_workers=False)
            port[0] = store.port
        comm.broadcast(port, 0)
        if store is None:
            store = dist.TCPStore("127.0.0.1", int(port[0]), comm.world_size, is_master=False)
        self.store = store
        dist.init_process_group(backend, store=store, rank=comm.rank, world_size=comm.world_size)
        self.default: Any = dist.group.WORLD

    def new(self, backend: str) -> Any:
        """A process group of all ranks. StartError on every rank alike if there is no such backend."""
        check_backend(backend)
        return self._dist.new_group(backend=backend)

    def close(self) -> None:
        """Leave all of them."""
        self._dist.destroy_process_group()

    def __enter__(self) -> ProcessGroups:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:  # otherwise the other ranks may wait inside a call
            self.close()


def check_backend(name: str) -> None:
    """See that torch.distributed knows a backend; `collectives` itself has registered its own.

    Raises:
        StartError: it does not.
    """
    import torch.distributed as dist

    if name == NOOP:
        import torch.testing._internal.distributed.fake_pg  # noqa: F401  (registers it)
    known = [backend for backend in dist.Backend.backend_list if backend != "undefined"]
    if name in known:
        return
    why = "this build of collectives has no torch.distributed backend"
    if name != OWN_BACKEND:
        why = f"unknown torch.distributed backend {name!r}"
    raise StartError(f"{why}; --backend takes one of {', '.join(known)}")
