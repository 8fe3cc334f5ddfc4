"""The flight record: the last calls of every rank, readable by the other ranks also after a rank's death.

Each rank keeps its last 64 calls of each communicator in the shared memory of that communicator, at a cost of
two looks at the clock a call. :meth:`collectives.Communicator.flight_record` reads it, errors quote it, and
:func:`dump` writes it to files that PyTorch's ``torchfrtrace`` reads (docs/flight_record.md). With
``COLLECTIVES_DUMP=<prefix>`` a dump is written when a communicator breaks, and when the process gets SIGUSR2.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import signal
import struct
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from collectives import _native, environment

_FORMAT = struct.Struct("=6Q6q2I6B18x")  # collectives_record of csrc/native/table.h
_STATES = ("", "queued", "started", "completed", "failed")
_NO_SHAPE = 255
_ANYBODY = 0xFFFFFFFF  # the peer of a receive from any rank, until a message has come
_PROCESS = slice(8, 24)  # where an announcement says which process it comes from
_RANK = struct.Struct("<i")

logger = logging.getLogger("collectives")


@dataclass(frozen=True)
class Record:
    """One call, or one message between two ranks, as the rank that made it recorded it.

    Attributes:
        rank: the rank that made it.
        epoch: number of the call in its communicator, from 1, refused calls included; of a message: its
            number among those from its sender to its receiver.
        collective: such as ``"all_reduce"``; ``"send"`` or ``"recv"`` for a message.
        op: operator, or None where nothing is reduced.
        dtype: element type, or None for a barrier.
        count: elements of one part: what a rank puts in, or gets out where it puts in a part for each rank.
        shape: of the caller's array; None where it is not known, as in a call that was refused, or has more
            than 6 dimensions.
        root: root rank, or None where there is none.
        algorithm: the one that ran; ``"automatic"`` where none was chosen.
        state: ``"queued"`` (called; other ranks have not all come), ``"started"`` (all ranks are in it),
            ``"completed"`` or ``"failed"``.
        queued_at: when it was called, in nanoseconds since 1970.
        started_at: when all ranks had come; None before that, and in calls of up to 40 bytes, which end then.
        ended_at: when it completed or failed; None before that.
        peer: the other rank of a message; None for a collective, and for a receive from any rank that waits.
        tag: of a message; None for a collective.
        serial: how many calls (or messages) this rank had recorded, this one included.
    """

    rank: int
    epoch: int
    collective: str
    op: str | None
    dtype: str | None
    count: int
    shape: tuple[int, ...] | None
    root: int | None
    algorithm: str
    state: str
    queued_at: int
    started_at: int | None
    ended_at: int | None
    peer: int | None
    tag: int | None
    serial: int

    @property
    def is_p2p(self) -> bool:
        """Whether this is a message between two ranks."""
        return self.collective in ("send", "recv")


@functools.cache
def _words() -> dict[str, tuple[str, ...]]:
    return _native.vocabulary()


def decode(raw: bytes, rank: int) -> list[Record]:
    """The records of a rank from what ``_native.flight_record`` or the C table's ``flight`` gave."""
    words = _words()
    records = []
    for fields in _FORMAT.iter_unpack(raw):
        serial, epoch, count, queued, started, ended = fields[:6]
        root, tag, collective, op, dtype, algorithm, state, dims = fields[12:]
        name = words["collective"][collective]
        is_p2p = name in ("send", "recv")
        records.append(
            Record(
                rank=rank,
                epoch=epoch,
                collective=name,
                op=words["op"][op] if name in ("all_reduce", "reduce_scatter", "reduce") else None,
                dtype=None if name in ("barrier", "delegated") else words["dtype"][dtype],
                count=count,
                shape=None if dims == _NO_SHAPE else tuple(fields[6 : 6 + dims]),
                root=root if name in ("broadcast", "reduce", "gather", "scatter") else None,
                algorithm=words["algorithm"][algorithm],
                state=_STATES[state],
                queued_at=queued,
                started_at=started or None,
                ended_at=ended or None,
                peer=root if is_p2p and root != _ANYBODY else None,
                tag=tag if is_p2p else None,
                serial=serial,
            )
        )
    return records


class Owner(Protocol):
    """What has a flight record: a communicator, or whatever else holds one of the core's."""

    @property
    def healthy(self) -> bool:
        """False once it is broken or closed."""

    @property
    def closed(self) -> bool:
        """True once it is closed."""


@dataclass(frozen=True)
class Group:
    """What a dump says of a communicator beside its records.

    Attributes:
        name: equal on all its ranks, and no other communicator's.
        description: equal on all its ranks.
        rank: this rank.
        ranks: by rank, its number among all ranks of the job: the number in the name of its file.
        processes: by rank, which process it is.
        owner: the communicator.
        read: gives the raw record of a rank.
    """

    name: str
    description: str
    rank: int
    ranks: tuple[int, ...]
    processes: tuple[bytes, ...]
    owner: weakref.ReferenceType[Any]
    read: Callable[[Any, int], bytes]

    def records(self) -> list[list[Record]]:
        """Of each rank; empty lists once the owner is gone."""
        owner = self.owner()
        return [decode(self.read(owner, rank), rank) if owner else [] for rank in range(len(self.ranks))]

    @property
    def live(self) -> bool:
        """Whether the owner is there and not closed."""
        owner = self.owner()
        return owner is not None and not owner.closed

    @property
    def broken(self) -> bool:
        """Whether the owner has failed and is not closed yet."""
        owner = self.owner()
        return owner is not None and not owner.healthy and not owner.closed


_groups: dict[int, Group] = {}
_dumped: set[str] = set()  # names of broken communicators whose dump has been written


def launch_rank() -> bytes:
    """The rank that the launcher gave this process, as a few bytes for the rendezvous; -1 if it gave none."""
    try:
        launch = environment.launched()
    except ValueError:
        return _RANK.pack(-1)
    return _RANK.pack(-1 if launch.launcher == "none" else launch.rank)


def job_ranks(said: Sequence[bytes]) -> tuple[int, ...]:
    """The ranks of the job from what :func:`launch_rank` gave on each rank of a communicator.

    Where some rank has none, or two have the same, the communicator's own ranks.
    """
    ranks = tuple(_RANK.unpack(blob)[0] for blob in said)
    return ranks if min(ranks) >= 0 and len(set(ranks)) == len(ranks) else tuple(range(len(ranks)))


def register(
    owner: Owner,
    rank: int,
    announcements: Sequence[bytes],
    *,
    ranks: Sequence[int] | None = None,
    name: str | None = None,
    description: str = "Communicator",
    read: Callable[[Any, int], bytes] = _native.flight_record,
) -> None:
    """Make the owner part of later dumps, as long as it lives and is not closed.

    Args:
        owner: the communicator; only a weak reference to it is kept.
        rank: its rank.
        announcements: of all its ranks, in rank order.
        ranks: by rank, the number of that rank in the whole job; by default its own ranks.
        name: equal on all ranks and unique; by default made from the announcements.
        description: equal on all ranks.
        read: ``read(owner, rank)`` gives the raw record of a rank.
    """
    key = id(owner)
    group = _groups[key] = Group(
        name=name or hashlib.sha256(b"".join(announcements)).hexdigest()[:8],
        description=description,
        rank=rank,
        ranks=tuple(range(len(announcements)) if ranks is None else ranks),
        processes=tuple(bytes(blob[_PROCESS]) for blob in announcements),
        owner=weakref.ref(owner, lambda _: _groups.pop(key, None)),
        read=read,
    )
    logger.debug("%s %s is connected: rank %d of %s", description, group.name, rank, group.ranks)


def dump(prefix: str, owners: Iterable[Owner] | None = None) -> list[str]:
    """Write the flight records of all ranks to files ``<prefix><rank>``, in the form that torchfrtrace reads.

    The records of all ranks are read from shared memory, so one rank can write the files of all of them,
    those of dead and of stuck ranks included. Where several ranks write at once, or one after another, a file
    holds the newest of each communicator. Files that another process left there are replaced.

    Args:
        prefix: of the files' paths; its last character must not be a digit. Folders are made.
        owners: which communicators; None for all that this process holds and has not closed.

    Returns:
        The paths of the files.

    Raises:
        ValueError: the prefix ends in a digit.
        OSError: a file cannot be written.
    """
    from collectives import flight_dump

    chosen = [group for group in list(_groups.values()) if group.live]
    if owners is not None:
        wanted = {id(owner) for owner in owners}
        chosen = [group for group in chosen if id(group.owner()) in wanted]
    return flight_dump.write(prefix, chosen)


def on_error() -> None:
    """Dump where COLLECTIVES_DUMP asks for it and a communicator has broken since: once for each.

    Called whenever a CollectiveError is about to be raised. Raises nothing.
    """
    try:
        prefix = environment.read("DUMP")
        broken = {group.name for group in list(_groups.values()) if group.broken} - _dumped
        if prefix is not None and broken:
            _dumped.update(broken)
            dump(prefix)
    except Exception as error:
        logger.warning("the flight record could not be written: %s", error)


def _on_signal(number: int, frame: object) -> None:
    try:
        logger.info("flight record written: %s", ", ".join(dump(environment.read("DUMP"))))
    except Exception as error:
        logger.warning("the flight record could not be written: %s", error)


def install_handler() -> None:
    """Dump at SIGUSR2, if COLLECTIVES_DUMP is set and nobody else handles that signal.

    A rank that waits in a call takes signals too. Only the main thread can install a handler.
    """
    if (
        environment.read("DUMP") is not None
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGUSR2, _on_signal)
