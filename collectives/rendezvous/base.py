"""What every way to meet has in common."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, runtime_checkable

from collectives.errors import CollectiveTimeoutError


@runtime_checkable
class Rendezvous(Protocol):
    """How the ranks of a new communicator find each other.

    Attributes:
        rank: rank of this process.
        world_size: number of ranks.
        source: what the ranks meet through, in words.
    """

    rank: int
    world_size: int
    source: str

    def exchange(self, blob: bytes, timeout: float) -> list[bytes]:
        """Give every rank the blobs of all ranks, in rank order. All ranks call it the same number of times.

        Args:
            blob: what this rank has to say; of equal length on all ranks.
            timeout: seconds to wait for the others.

        Raises:
            CollectiveTimeoutError: ranks were missing at the timeout; its ``ranks`` are those.
            CollectiveError: ranks contradict each other, or one went away.
        """
        ...


def name_ranks(ranks: Collection[int]) -> str:
    """Name ranks in words: "rank 2", or "ranks 0, 1 and 3"."""
    *most, last = [str(rank) for rank in sorted(ranks)]
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"


def absent(missing: Collection[int], world_size: int, timeout: float, check: str) -> CollectiveTimeoutError:
    """The error for ranks that did not come in time; ``check`` says what the user should look at."""
    text = (
        f"rendezvous: no word from {name_ranks(missing)} of {world_size} within {timeout:g} s; check {check}"
    )
    return CollectiveTimeoutError(text, collective="rendezvous", ranks=missing)
