"""How the ranks of a new communicator find each other.

Every way to meet is a ``Rendezvous``: each rank gives a few bytes and gets those of all ranks. The data of
collectives never goes this way.
"""

from __future__ import annotations

from typing import Any

from collectives.rendezvous.base import Rendezvous
from collectives.rendezvous.environment import EnvironmentRendezvous
from collectives.rendezvous.mpi import MpiRendezvous
from collectives.rendezvous.store import StoreRendezvous

__all__ = ["EnvironmentRendezvous", "MpiRendezvous", "Rendezvous", "StoreRendezvous", "rendezvous"]


def rendezvous(source: Any = None) -> Rendezvous:
    """Choose how to meet.

    Args:
        source: None for what the environment says (mpirun, torchrun, srun, collectives.launch, or alone), an
            mpi4py communicator, a torch process group, a tuple (torch store, rank, world size), or a
            Rendezvous, which is returned as it is.

    Raises:
        TypeError: the source is none of these.
        ValueError: the source is of the right kind but cannot be used.
        RuntimeError: the environment describes a job that this version cannot connect.
    """
    if source is None:
        return EnvironmentRendezvous()
    if _is(source, "mpi4py", "Comm"):
        return MpiRendezvous(source)
    if _is(source, "torch", "ProcessGroup"):
        return StoreRendezvous.from_group(source)
    if isinstance(source, tuple) and len(source) == 3 and _is(source[0], "torch", "Store"):
        return StoreRendezvous(*source)
    if isinstance(source, Rendezvous):
        return source
    raise TypeError(
        f"no way to meet through an object of type {type(source).__name__}: want None, an mpi4py "
        "communicator, a torch process group that this rank is in, a tuple (torch store, rank, world size) "
        "or a Rendezvous"
    )


def _is(source: Any, package: str, name: str) -> bool:
    """Whether source is an instance of a class of a package that need not be imported to tell."""
    return any(
        base.__name__ == name and base.__module__.split(".")[0] == package for base in type(source).__mro__
    )
