"""Collective communication over peer-to-peer memory.

Ranks are processes (or threads) of one host; a :class:`Communicator` connects them through shared memory::

    import collectives, numpy as np

    comm = collectives.Communicator()  # the ranks that mpirun, torchrun, srun or collectives.launch started
    x = np.full(4, float(comm.rank), dtype=np.float32)
    comm.all_reduce(x)  # in place: every rank now holds the sum
"""

from typing import TYPE_CHECKING, Any

try:
    import collectives._native  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "collectives._native":
        raise
    raise ImportError(
        f"{__file__} is in a source tree without its compiled module: run `make build` and use "
        ".venv/bin/python, or leave this folder if collectives is installed"
    ) from None

from collectives import environment, flight_record, torch_backend
from collectives.communicator import Communicator
from collectives.errors import (
    AbortedError,
    ClosedError,
    CollectiveError,
    CollectiveTimeoutError,
    MismatchError,
    PeerDiedError,
    RefusedError,
)
from collectives.plan import Plan, Receipt
from collectives.symmetric import empty

if TYPE_CHECKING:
    from collectives.ops import *  # noqa: F403

__version__ = "0.1.0"

# These need torch, and importing torch takes seconds: so not before one is asked for.
_OPS = (
    "all_gather",
    "all_reduce",
    "all_reduce_",
    "all_to_all",
    "broadcast",
    "broadcast_",
    "reduce",
    "reduce_scatter",
)

__all__ = [
    "AbortedError",
    "ClosedError",
    "CollectiveError",
    "CollectiveTimeoutError",
    "Communicator",
    "MismatchError",
    "PeerDiedError",
    "Plan",
    "Receipt",
    "RefusedError",
    "__version__",
    "empty",
]


def __getattr__(name: str) -> Any:
    if name == "Options":
        value = torch_backend.load().Options
    elif name in _OPS:
        from collectives import ops

        value = getattr(ops, name)
    else:
        raise AttributeError(f"module 'collectives' has no attribute {name!r}")
    globals()[name] = value
    return value


environment.configure_logging()
environment.warn_unknown()
flight_record.install_handler()
torch_backend.register()
