"""What a collective raises when it cannot give a result.

Bad input of one's own is a plain ``ValueError`` or ``TypeError``. Everything that involves another rank is a
``CollectiveError``, which names the collective, its call number and the ranks at fault.
"""

from __future__ import annotations

from collections.abc import Iterable


class CollectiveError(RuntimeError):
    """A collective failed because of what another rank did, or did not do.

    Attributes:
        collective: name of the collective, such as ``"all_reduce"``; ``"rendezvous"`` while a communicator is
            made.
        epoch: how many calls this communicator had begun, this one included; 0 before the first.
        ranks: the ranks at fault, in ascending order; empty when it is not known which.
    """

    def __init__(self, message: str, collective: str = "", epoch: int = 0, ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.collective = collective
        self.epoch = epoch
        self.ranks = tuple(sorted(ranks))

    def __reduce__(self) -> tuple[type, tuple[str, str, int, tuple[int, ...]]]:
        return type(self), (str(self), self.collective, self.epoch, self.ranks)


class MismatchError(CollectiveError):
    """The ranks described different calls. No data moved; the communicator stays usable."""


class RefusedError(CollectiveError):
    """Another rank refused its own arguments for this call. No data moved; the communicator stays usable."""


class PeerDiedError(CollectiveError):
    """The process of another rank ended before it had done its part. The communicator is broken."""


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """Ranks did not arrive within the timeout. The communicator is broken."""


class AbortedError(CollectiveError):
    """``abort()`` was called, or a call was interrupted, on some rank. The communicator is broken."""


class ClosedError(CollectiveError):
    """A rank closed the communicator, or this rank uses it after closing it."""
