"""Facts about other processes of this host, by /proc and by sockets."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class Process:
    """One process; the start time (clock ticks since boot) tells it from a later one of the same number."""

    pid: int
    start: int

    def __str__(self) -> str:
        return f"process {self.pid} started at {self.start}"


def credentials(peer: socket.socket) -> tuple[int, int]:
    """Process and user id of the other end of a Unix socket; process 0 if this namespace cannot see it."""
    pid, uid, _ = _CREDENTIALS.unpack(
        peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return pid, uid


def ancestors() -> Iterator[tuple[str, Process]]:
    """The name (first 15 bytes of it) and identity of the parent, its parent, and so on."""
    pid = os.getppid()
    while pid > 0:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                stat = file.read()
        except OSError:
            return
        # The name stands in parentheses and may itself hold spaces and parentheses.
        name, _, rest = stat.partition("(")[2].rpartition(")")
        fields = rest.split()
        yield name, Process(pid, int(fields[19]))
        pid = int(fields[1])


def ancestor_named(prefix: str) -> Process | None:
    """The nearest ancestor whose name starts with the prefix."""
    return next((process for name, process in ancestors() if name.startswith(prefix)), None)


def server_of(descriptor: str) -> Process | None:
    """The process behind an inherited Unix socket, given by its descriptor as text, if it is an ancestor.

    The socket may have been closed since, and its number given to something else: then the other end, if
    there is one, is not an ancestor.
    """
    try:
        copy = os.dup(int(descriptor))
    except (ValueError, OSError, OverflowError):
        return None
    try:
        peer = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None
    with peer:
        if peer.family != socket.AF_UNIX:
            return None
        try:
            pid, _ = credentials(peer)
        except OSError:
            return None
    return next((process for _, process in ancestors() if process.pid == pid), None)
