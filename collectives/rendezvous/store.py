"""Meeting through the key-value store of a torch process group."""

from __future__ import annotations

import time
from typing import Any

from collectives.errors import CollectiveError
from collectives.rendezvous.base import absent


class StoreRendezvous:
    """Ranks meet through a ``torch.distributed`` store.

    Each exchange has keys of its own: ``collectives/<n>/<rank>``, where n counts the exchanges of this rank.
    The store itself counts them, so that the count does not depend on which Python object the store is
    reached through. Groups that share a store need a ``PrefixStore`` each, as the groups of torch have.

    Args:
        store: a ``torch.distributed.Store``.
        rank: rank of this process.
        world_size: number of ranks.
    """

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        if world_size < 1 or not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}: no such rank")
        self._store = store
        self.rank = rank
        self.world_size = world_size
        self.source = f"torch {type(store).__name__}"

    @classmethod
    def from_group(cls, group: Any) -> StoreRendezvous:
        """Meet through the store of a ``torch.distributed.ProcessGroup``."""
        return cls(group.get_group_store(), group.rank(), group.size())

    def exchange(self, blob: bytes, timeout: float) -> list[bytes]:
        """See Rendezvous.exchange."""
        try:
            return self._exchange(blob, timeout)
        except CollectiveError:
            raise
        except RuntimeError as error:
            # Stores live in a process, most often rank 0's, and end with it.
            text = f"rendezvous: the {self.source} failed: {error}"
            raise CollectiveError(text, collective="rendezvous") from error

    def _exchange(self, blob: bytes, timeout: float) -> list[bytes]:
        deadline = time.monotonic() + timeout
        exchange = self._store.add(f"collectives/exchanges/{self.rank}", 1)
        keys = [f"collectives/{exchange}/{rank}" for rank in range(self.world_size)]
        self._store.set(keys[self.rank], blob)
        pause = 1e-4
        # Not Store.wait: it cannot be interrupted, and does not say which key was missing.
        while not self._store.check(keys):
            if time.monotonic() > deadline:
                missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
                if missing:
                    check = (
                        "that every rank of the torch group gets here, in the same order as its other groups"
                    )
                    raise absent(missing, self.world_size, timeout, check)
            time.sleep(pause)
            pause = min(pause * 1.5, 5e-3)
        return [bytes(self._store.get(key)) for key in keys]
