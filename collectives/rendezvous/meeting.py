"""Meeting at an abstract Unix socket: rank 0 listens, the others connect.

Each guest says hello (rank, world size, patience, blob); when all have come, rank 0 answers each with all
blobs, or with what went wrong, so that every rank raises the same error. The shortest patience of those
present rules: whoever runs out of time first, all of them learn who was missing.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import selectors
import socket
import struct
import time
from dataclasses import dataclass, field

from collectives.errors import CollectiveError, CollectiveTimeoutError, MismatchError, PeerDiedError
from collectives.processes import credentials
from collectives.rendezvous.base import absent

_HELLO = struct.Struct(
    "<8sIIddQ"
)  # magic, rank, world size, timeout, seconds left of it, bytes of the blob that follows
_ANSWER = struct.Struct("<?Q")  # whether all is well, bytes that follow: all blobs, or the error as JSON
_MAGIC = b"collect1"
_LARGEST_BLOB = 1 << 26
_GRACE = 1.0  # seconds beyond its patience that a guest gives rank 0 to say who was missing
_LINGER = 2.0  # seconds that rank 0 keeps telling newcomers what went wrong
_CHECK = (
    "that it was started on this host, in the same network namespace and by the same launcher, and gets here"
)

_ERRORS = {kind.__name__: kind for kind in (CollectiveTimeoutError, MismatchError, PeerDiedError)}

_log = logging.getLogger("collectives.rendezvous")


def meet(name: str, rank: int, world_size: int, blob: bytes, timeout: float) -> list[bytes]:
    """Exchange blobs with the other ranks, which give the same name. See Rendezvous.exchange."""
    address = "\0" + name
    deadline = time.monotonic() + timeout
    if rank != 0:
        return _visit(address, rank, world_size, blob, timeout, deadline)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listener:
        try:
            listener.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            listener.listen(world_size)
            return _Host(listener, world_size, blob, timeout, deadline).run()
    # Whoever has the name should be told that there are two of us, as it will tell the others.
    try:
        return _visit(address, rank, world_size, blob, timeout, min(deadline, time.monotonic() + _LINGER))
    except (CollectiveTimeoutError, PeerDiedError, OSError) as error:
        text = "rendezvous: another process listens where rank 0 of this job should: is there a second one?"
        raise CollectiveError(text, collective="rendezvous", ranks=[0]) from error


@dataclass
class _Guest:
    connection: socket.socket
    pid: int
    received: bytearray = field(default_factory=bytearray)
    rank: int | None = None


class _Host:
    """Rank 0's side of one meeting."""

    def __init__(
        self, listener: socket.socket, world_size: int, blob: bytes, timeout: float, deadline: float
    ) -> None:
        self._listener = listener
        self._world_size = world_size
        self._timeout = timeout
        self._deadline = deadline
        self._blobs = {0: blob}
        self._pids = {0: os.getpid()}
        self._guests: list[_Guest] = []
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def run(self) -> list[bytes]:
        try:
            while len(self._blobs) < self._world_size and time.monotonic() < self._deadline:
                self._serve(self._deadline)
            missing = [rank for rank in range(self._world_size) if rank not in self._blobs]
            if missing:
                raise absent(missing, self._world_size, self._timeout, _CHECK)
            blobs = [self._blobs[rank] for rank in range(self._world_size)]
            self._answer(True, b"".join(blobs))
            return blobs
        except CollectiveError as error:
            self._refuse(error)
            raise
        finally:
            self._selector.close()
            for guest in self._guests:
                guest.connection.close()

    def _serve(self, until: float) -> None:
        """Wait for what guests do, at most until the given time, and take it in."""
        for key, _ in self._selector.select(max(0.0, min(until - time.monotonic(), 60.0))):
            if key.data is None:
                self._welcome()
            else:
                self._listen_to(key.data)

    def _welcome(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        pid, uid = credentials(connection)
        if uid != os.geteuid():
            _log.warning("rendezvous: process %d of another user (%d) was turned away", pid, uid)
            connection.close()
            return
        connection.setblocking(False)
        guest = _Guest(connection, pid)
        self._guests.append(guest)
        self._selector.register(connection, selectors.EVENT_READ, guest)

    def _listen_to(self, guest: _Guest) -> None:
        try:
            data = guest.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._part_from(guest)
            return
        guest.received += data
        if len(guest.received) < _HELLO.size:
            return
        magic, rank, world_size, timeout, patience, length = _HELLO.unpack_from(guest.received)
        if magic != _MAGIC or length > _LARGEST_BLOB:
            self._part_from(guest)
        elif len(guest.received) == _HELLO.size + length:
            self._introduce(guest, rank, world_size, timeout, patience)

    def _part_from(self, guest: _Guest) -> None:
        self._dismiss(guest)
        if guest.rank is not None:
            text = f"rendezvous: rank {guest.rank} (process {guest.pid}) went away before all ranks had come"
            raise PeerDiedError(text, collective="rendezvous", ranks=[guest.rank])

    def _dismiss(self, guest: _Guest) -> None:
        self._selector.unregister(guest.connection)
        self._guests.remove(guest)
        guest.connection.close()

    def _introduce(self, guest: _Guest, rank: int, world_size: int, timeout: float, patience: float) -> None:
        guest.rank = rank
        who = f"rendezvous: rank {rank} (process {guest.pid})"
        blob = bytes(guest.received[_HELLO.size :])
        wrong = None
        if world_size != self._world_size:
            wrong = f"{who} says that there are {world_size} ranks, rank 0 says {self._world_size}"
        elif rank in self._blobs:
            wrong = (
                f"{who} is the second to say that it is rank {rank}: the first is process {self._pids[rank]}"
            )
        elif len(blob) != len(self._blobs[0]):
            wrong = (
                f"{who} brings {len(blob)} bytes, rank 0 {len(self._blobs[0])}: they run different versions"
            )
        if wrong:
            raise MismatchError(wrong, collective="rendezvous", ranks={0, rank})
        self._blobs[rank] = blob
        self._pids[rank] = guest.pid
        if time.monotonic() + patience < self._deadline:
            self._deadline = time.monotonic() + patience
            self._timeout = timeout

    def _answer(self, well: bool, payload: bytes) -> set[int]:
        """Answer all guests that have said hello, and say which ranks those are."""
        answered: set[int] = set()
        for guest in list(self._guests):
            if guest.rank is None:
                continue
            answered.add(guest.rank)
            try:
                guest.connection.settimeout(_GRACE)
                guest.connection.sendall(_ANSWER.pack(well, len(payload)) + payload)
            except OSError as error:
                _log.warning(
                    "rendezvous: could not answer rank %d (process %d): %s", guest.rank, guest.pid, error
                )
            self._dismiss(guest)
        return answered

    def _refuse(self, error: CollectiveError) -> None:
        """Tell everyone what went wrong, also those that are still on their way."""
        payload = json.dumps(
            {"kind": type(error).__name__, "text": str(error), "ranks": error.ranks}
        ).encode()
        informed = {0, *error.ranks} | self._answer(False, payload)
        until = time.monotonic() + _LINGER
        while len(informed) < self._world_size and time.monotonic() < until:
            try:
                self._serve(until)
            except CollectiveError as another:
                _log.debug("rendezvous: after the first error: %s", another)
            informed |= self._answer(False, payload)


def _visit(
    address: str, rank: int, world_size: int, blob: bytes, timeout: float, deadline: float
) -> list[bytes]:
    """The side of a rank that connects."""
    with _connect(address, rank, world_size, timeout, deadline) as connection:
        try:
            left = deadline - time.monotonic()
            connection.settimeout(max(left, _GRACE))
            connection.sendall(_HELLO.pack(_MAGIC, rank, world_size, timeout, left, len(blob)) + blob)
            well, length = _ANSWER.unpack(_receive(connection, _ANSWER.size, deadline + _GRACE))
            payload = _receive(connection, length, deadline + 2 * _GRACE)
        except TimeoutError as error:
            text = f"rendezvous: rank 0 gave rank {rank} no answer within {timeout:g} s: is it stopped?"
            raise CollectiveTimeoutError(text, collective="rendezvous", ranks=[0]) from error
        except OSError as error:
            text = f"rendezvous: rank 0 went away before it had answered rank {rank}"
            raise PeerDiedError(text, collective="rendezvous", ranks=[0]) from error
    if not well:
        report = json.loads(payload)
        raise _ERRORS[report["kind"]](report["text"], collective="rendezvous", ranks=report["ranks"])
    return [payload[i * len(blob) : (i + 1) * len(blob)] for i in range(world_size)]


def _connect(address: str, rank: int, world_size: int, timeout: float, deadline: float) -> socket.socket:
    pause = 1e-3
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.connect(address)
            pid, uid = credentials(connection)
            if uid != os.geteuid():
                raise RuntimeError(
                    f"rendezvous: process {pid} of another user ({uid}) listens where rank 0 should"
                )
            return connection
        except (ConnectionRefusedError, BlockingIOError):
            # Rank 0 is not there yet, or has more guests at its door than it has let in.
            connection.close()
        except BaseException:
            connection.close()
            raise
        if time.monotonic() > deadline:
            raise absent([0], world_size, timeout, _CHECK)
        time.sleep(pause)
        pause = min(pause * 1.5, 5e-3)


def _receive(connection: socket.socket, length: int, deadline: float) -> bytes:
    received = bytearray()
    while len(received) < length:
        connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        data = connection.recv(length - len(received))
        if not data:
            raise ConnectionResetError
        received += data
    return bytes(received)
