"""Start copies of a program as the ranks of one job, and end them together."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType

from collectives.rendezvous.base import name_ranks
from collectives.topology import cpu

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_INHERITED = ("TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMIX_", "PMI_", "MPI_LOCAL", "SLURM_STEP", "SLURM_PROCID")
_PR_SET_PDEATHSIG = 1
_GRACE = 5.0

_libc = ctypes.CDLL(None, use_errno=True)


def bindings(cores: Iterable[int], world_size: int) -> list[set[int]] | None:
    """Deal cores out to ranks, the same number to each; None if there are fewer cores than ranks.

    A rank gets cores that follow each other, so cores should come in the order of what they share.
    """
    given = list(cores)
    share = len(given) // world_size
    return [set(given[rank * share : (rank + 1) * share]) for rank in range(world_size)] if share else None


def spawn(
    argv: Sequence[str], world_size: int, *, bind: bool = False, environ: Mapping[str, str] | None = None
) -> int:
    """Run world_size copies of a program as ranks 0 .. world_size-1 of one job, and wait for all of them.

    The ranks get RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT as under
    torchrun, and a run id of their own. Each is the leader of a session; rank 0 keeps stdin. If one fails,
    what it started is killed, and the others are sent SIGTERM and, 5 seconds later, SIGKILL. Signals that
    this process gets meanwhile go to all ranks, if the caller is the main thread. If this process is killed,
    so are the ranks.

    Args:
        argv: program and arguments.
        world_size: how many copies.
        bind: give each rank cores of its own, if there are enough.
        environ: environment of the ranks; that of this process if None.

    Returns:
        0 if all ranks returned 0, else the exit status of the rank that failed first (128 + n if signal n
        ended it).

    Raises:
        ValueError: there is no rank to start.
        OSError: the program cannot be started.
    """
    if world_size < 1:
        raise ValueError(f"cannot start {world_size} ranks: want at least 1")
    shares = bindings(cpu.near_first(cpu.allowed_cores()), world_size) if bind else None
    if bind and shares is None:
        _say(
            f"not binding: {world_size} ranks, but this process may use only {len(cpu.allowed_cores())} cores"
        )
    with ExitStack() as stack:
        port = stack.enter_context(_reserved_port())
        ranks: list[subprocess.Popen[bytes]] = []
        stack.callback(_kill, ranks)
        # Handlers first: a signal between the first fork and them would leave ranks to themselves.
        stack.enter_context(_forwarding(ranks))
        # A rank may run before it is in the list: signals wait until all are.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_FORWARDED, signal.SIGTSTP))
        try:
            for rank, environment in enumerate(
                _environments(world_size, port, os.environ if environ is None else environ)
            ):
                ranks.append(_start(argv, environment, shares[rank] if shares else None, rank, mask))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return _wait(ranks)


def _environments(world_size: int, port: int, environ: Mapping[str, str]) -> Iterator[dict[str, str]]:
    # What an outer launcher said about the parent is not true of its ranks.
    base = {name: value for name, value in environ.items() if not name.startswith(_INHERITED)}
    run = f"collectives.launch-{uuid.uuid4()}"
    for rank in range(world_size):
        yield base | {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": run,
            "TORCHELASTIC_RESTART_COUNT": "0",
        }


@contextmanager
def _reserved_port() -> Iterator[int]:
    # Held but not listened to: with SO_REUSEADDR on both sides rank 0 can still listen at it, and nobody else
    # is given it.
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def _start(
    argv: Sequence[str],
    environ: dict[str, str],
    cores: set[int] | None,
    rank: int,
    mask: set[int] | set[signal.Signals],
) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def prepare() -> None:
        # The kernel kills the child when the *thread* that made it ends: that one waits in spawn() for all.
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it ended before the line above
            os._exit(1)
        if cores:
            os.sched_setaffinity(0, cores)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    # A session of its own: Ctrl-C of the terminal reaches a rank once, by way of us, and what a rank started
    # can be ended with it.
    stdin = None if rank == 0 else subprocess.DEVNULL
    return subprocess.Popen(argv, env=environ, stdin=stdin, start_new_session=True, preexec_fn=prepare)


def _signal_all(ranks: Iterable[subprocess.Popen[bytes]], number: int) -> None:
    for process in ranks:
        if process.returncode is None:  # not reaped, so the number is still its own
            try:
                os.killpg(process.pid, number)
            except (ProcessLookupError, PermissionError):
                pass


@contextmanager
def _forwarding(ranks: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Pass signals on to the ranks; Ctrl-Z stops them as well."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def forward(number: int, _: FrameType | None) -> None:
        _signal_all(ranks, number)

    def suspend(number: int, _: FrameType | None) -> None:
        _signal_all(ranks, signal.SIGSTOP)  # SIGTSTP does nothing in a session without a terminal
        os.kill(os.getpid(), signal.SIGSTOP)
        _signal_all(ranks, signal.SIGCONT)

    wanted = dict.fromkeys(_FORWARDED, forward) | {signal.SIGTSTP: suspend}
    # What is ignored stays so, for nohup's sake: the ranks inherit it.
    before = {
        number: signal.signal(number, handler)
        for number, handler in wanted.items()
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(ranks: list[subprocess.Popen[bytes]]) -> int:
    """Wait until all have ended; after the first failure end the rest. Returns the first failure's status."""
    with ExitStack() as stack:
        poller = select.poll()
        running: dict[int, int] = {}
        for rank, process in enumerate(ranks):
            descriptor = os.pidfd_open(process.pid)
            stack.callback(os.close, descriptor)
            poller.register(descriptor, select.POLLIN)
            running[descriptor] = rank
        status = 0
        deadline: float | None = None
        while running:
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            failed = []
            for descriptor, _ in poller.poll(left):
                poller.unregister(descriptor)
                rank = running.pop(descriptor)
                if _reap(ranks[rank]):
                    failed.append(rank)
            if failed and status == 0:
                # Of those seen at once, one that a signal ended is the cause, one that complains the effect.
                first = min(failed, key=lambda rank: (ranks[rank].returncode > 0, rank))
                status = _report(first, ranks[first], len(running))
                _signal_all(ranks, signal.SIGTERM)
                deadline = time.monotonic() + _GRACE
            elif running and deadline is not None and time.monotonic() >= deadline:
                _say(f"killing {name_ranks(running.values())}: SIGTERM was ignored for {_GRACE:g} s")
                _signal_all(ranks, signal.SIGKILL)
                deadline = None
        return status


def _reap(process: subprocess.Popen[bytes]) -> int:
    """The status of a rank that has ended; what a failed one has started is ended as well."""
    # Its number names its process group for certain only until it is reaped.
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    if ended and ended.si_status:
        _signal_all([process], signal.SIGKILL)
    return process.wait()


def _report(rank: int, process: subprocess.Popen[bytes], others: int) -> int:
    code = process.returncode
    how = f"exited with status {code}"
    if code < 0:
        try:
            how = f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            how = f"was ended by signal {-code}"
    _say(f"rank {rank} (process {process.pid}) {how}" + (f"; ending the other {others}" if others else ""))
    return code if code > 0 else 128 - code


def _kill(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Leave nothing behind when spawn() ends early, for instance because a rank could not be started."""
    _signal_all(ranks, signal.SIGKILL)
    for process in ranks:
        process.wait()


def _say(text: str) -> None:
    print(f"collectives.launch: {text}", file=sys.stderr, flush=True)
