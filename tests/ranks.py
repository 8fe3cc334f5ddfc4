"""Rank processes for tests: a pool of ranks, each with one communicator, that run functions of test modules.

`pool.run(function, *args)` calls `function(communicator, *args)` on every rank and returns the values in rank
order; `pool.outcomes(...)` returns what happened on each rank instead, errors and deaths included. A pool
that exceeds its limit is killed and the error shows the Python stacks of its workers.

The ranks are forked from a small server process that has imported the library and holds no communicator and
no thread, so that a pool of eight starts in milliseconds. Run as a program (`python ranks.py WORLD
module:function [JSON arguments]`) the same harness serves tests that need a whole job in another mount,
network or CPU group.
"""

from __future__ import annotations

import faulthandler
import importlib
import itertools
import json
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PRELOAD = ["ranks", "oracle", "inputs", "pytest", "hypothesis", "collectives"]
# The environments of every launcher, so that a pool inside `mpirun` or `torchrun` still takes its own.
LAUNCHERS = ("OMPI_", "PMI_", "PMIX_", "PRTE_", "SLURM_", "MPI_", "TORCHELASTIC_")

_jobs = itertools.count()


def use_replacement_native() -> None:
    """Load `collectives._native` from the file that TEST_NATIVE_MODULE names, if it names one.

    The negative controls run the suite against a core that was built with a known fault.
    """
    path = os.environ.get("TEST_NATIVE_MODULE")
    if path and "collectives._native" not in sys.modules:
        import importlib.util

        spec = importlib.util.spec_from_file_location("collectives._native", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["collectives._native"] = module
        spec.loader.exec_module(module)


use_replacement_native()


@dataclass
class Outcome:
    """What one rank did: a value, an error (type name and text), or a death (exit code)."""

    rank: int
    value: Any = None
    error: str = ""
    bases: tuple[str, ...] = ()
    text: str = ""
    ranks: tuple[int, ...] = ()
    collective: str | None = None
    epoch: int | None = None
    stack: str = ""
    died: int | None = None
    elapsed: float = 0.0
    finished: float = field(default_factory=time.monotonic)

    @property
    def ok(self) -> bool:
        return not self.error and self.died is None

    def __str__(self) -> str:
        if self.died is not None:
            return f"rank {self.rank}: died with exit code {self.died}"
        if self.error:
            return f"rank {self.rank}: {self.error}: {self.text} (after {self.elapsed:.2f} s)\n{self.stack}"
        return f"rank {self.rank}: returned {self.value!r:.200}"


class RanksFailed(AssertionError):
    """At least one rank raised or died where every rank should have returned."""


class PoolHung(AssertionError):
    """The pool exceeded its limit and was killed."""


def describe(error: BaseException) -> dict[str, Any]:
    return {
        "error": type(error).__name__,
        "bases": tuple(base.__name__ for base in type(error).__mro__),
        "text": str(error),
        "ranks": tuple(getattr(error, "ranks", ()) or ()),
        "collective": getattr(error, "collective", None),
        "epoch": getattr(error, "epoch", None),
        "stack": "".join(traceback.format_exception(error)),
    }


def attempt(rank: int, function: Callable[..., Any], *args: Any) -> Outcome:
    """Call and tell what happened; for use inside rank functions too."""
    start = time.monotonic()
    try:
        outcome = Outcome(rank, value=function(*args))
    except BaseException as error:  # KeyboardInterrupt is an outcome that tests look for
        outcome = Outcome(rank, **describe(error))
    outcome.finished = time.monotonic()
    outcome.elapsed = outcome.finished - start
    return outcome


def set_environment(environment: dict[str, str]) -> None:
    for name in list(os.environ):
        if name.startswith(LAUNCHERS):
            del os.environ[name]
    os.environ.update(environment)


def connect(timeout: float) -> Any:
    import collectives

    return collectives.Communicator(timeout=timeout)


def worker(rank: int, environment: dict[str, str], timeout: float | None, trace: str, link: Any) -> None:
    set_environment(environment)
    stacks = open(trace, "w")
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    comm = None
    if timeout is not None:
        started = attempt(rank, connect, timeout)
        comm, started.value = started.value, None
        link.send(started)
        if not started.ok:
            return
    while True:
        try:
            message = link.recv_bytes()
        except (EOFError, OSError):
            break
        if not message:
            break
        outcome = attempt(rank, pickle.loads, message)
        if outcome.ok:
            function, args = outcome.value
            outcome = attempt(rank, function, comm, *args)
        try:
            link.send(outcome)
        except Exception as error:
            link.send(Outcome(rank, **describe(error)))
    if comm is not None:
        comm.close()


def context() -> Any:
    """The fork server's context, its server started with this folder on the path."""
    result = multiprocessing.get_context("forkserver")
    result.set_forkserver_preload(PRELOAD)
    path = os.environ.get("PYTHONPATH")
    # Up to Python 3.13 the server imports the preloads with the path of its environment, not with ours.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *([path] if path else [])])
    try:
        forkserver.ensure_running()
    finally:
        if path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = path
    return result


def new_key() -> str:
    return f"test-{os.getpid()}-{next(_jobs)}-{os.urandom(4).hex()}"


def rank_environment(rank: int, world: int, key: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": key,
    }


class Pool:
    """`world` rank processes. `timeout` is the communicator's, in seconds; None makes no communicator."""

    def __init__(
        self, world: int, *, timeout: float | None = 60.0, key: str | None = None, limit: float = 60.0
    ):
        self.world = world
        self.limit = limit
        self.key = key or new_key()
        self.broken = False
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._links = []
        self._processes = []
        self._busy: set[int] = set()
        server = context()
        for rank in range(world):
            ours, theirs = server.Pipe()
            args = (rank, rank_environment(rank, world, self.key), timeout, self._trace(rank), theirs)
            process = server.Process(target=worker, args=args, daemon=True)
            process.start()
            theirs.close()
            self._links.append(ours)
            self._processes.append(process)
        if timeout is not None:
            self._raise_unless_ok(self.collect(limit))

    def _trace(self, rank: int) -> str:
        return str(Path(self._folder.name) / f"stacks-{rank}")

    def run(self, function: Callable[..., Any], *args: Any, limit: float | None = None) -> list[Any]:
        """The values that `function(communicator, *args)` returned, in rank order."""
        return self._raise_unless_ok(self.outcomes(function, *args, limit=limit))

    def outcomes(
        self,
        function: Callable[..., Any],
        *args: Any,
        limit: float | None = None,
        ranks: Iterable[int] | None = None,
    ) -> list[Outcome]:
        """What each rank (or each of `ranks`) did with `function(communicator, *args)`, in rank order."""
        self.start(function, *args, ranks=ranks)
        return self.collect(limit, ranks)

    def start(self, function: Callable[..., Any], *args: Any, ranks: Iterable[int] | None = None) -> None:
        message = pickle.dumps((function, args))
        for rank in self._choose(ranks):
            self._busy.add(rank)
            try:
                self._links[rank].send_bytes(message)
            except OSError:
                pass  # a dead rank is reported by collect()

    def collect(self, limit: float | None = None, ranks: Iterable[int] | None = None) -> list[Outcome]:
        wanted = self._choose(ranks)
        outcomes: dict[int, Outcome] = {}
        limit = limit or self.limit
        end = time.monotonic() + limit
        while len(outcomes) < len(wanted):
            waiting = {self._links[rank]: rank for rank in wanted if rank not in outcomes}
            ready = connection.wait(list(waiting), max(0.0, end - time.monotonic()))
            if not ready:
                self._hung(limit, sorted(waiting.values()), outcomes)
            for link in ready:
                rank = waiting[link]  # type: ignore[index]
                try:
                    outcomes[rank] = link.recv()  # type: ignore[union-attr]
                except (EOFError, OSError):
                    self._processes[rank].join(10)
                    outcomes[rank] = Outcome(rank, died=self._processes[rank].exitcode)
                self._busy.discard(rank)
        return [outcomes[rank] for rank in wanted]

    def pid(self, rank: int) -> int:
        return self._processes[rank].pid  # type: ignore[no-any-return]

    def signal(self, rank: int, number: int) -> float:
        """Send a signal to one rank; returns the time of sending on the clock of Outcome.finished."""
        now = time.monotonic()
        os.kill(self.pid(rank), number)
        return now

    def close(self) -> None:
        """End the ranks: politely where they listen, by SIGKILL where they do not."""
        end = time.monotonic() + (0.0 if self.broken else 5.0)
        for rank, link in enumerate(self._links):
            try:
                link.send_bytes(b"")
            except OSError:
                pass
            if rank in self._busy:
                self._processes[rank].kill()
        for process in self._processes:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        for link in self._links:
            link.close()
        self._folder.cleanup()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self.broken = self.broken or error[0] is not None
        self.close()

    def _choose(self, ranks: Iterable[int] | None) -> list[int]:
        return list(range(self.world)) if ranks is None else sorted(ranks)

    def _raise_unless_ok(self, outcomes: list[Outcome]) -> list[Any]:
        bad = [outcome for outcome in outcomes if not outcome.ok]
        if bad:
            self.broken = True
            # One stack is enough where the ranks failed alike.
            raise RanksFailed("\n".join([str(bad[0]), *(str(outcome)[:300] for outcome in bad[1:])]))
        return [outcome.value for outcome in outcomes]

    def _hung(self, limit: float, waiting: list[int], outcomes: dict[int, Outcome]) -> None:
        self.broken = True
        for rank in waiting:
            self.signal(rank, signal.SIGCONT)
            self.signal(rank, signal.SIGUSR1)
        time.sleep(0.5)
        report = [f"ranks {waiting} of {self.world} gave no answer in {limit:.0f} s"]
        report += [str(outcome) for outcome in outcomes.values()]
        report += [f"rank {rank}:\n{Path(self._trace(rank)).read_text()}" for rank in waiting]
        self.close()
        raise PoolHung("\n".join(report))


def main(world: int, name: str, args: list[Any]) -> int:
    """Run `module:function` on a new pool and print the values as JSON; 1 if a rank failed."""
    module, function = name.split(":")
    with Pool(world, key=os.environ.get("TEST_JOB_KEY")) as pool:
        outcomes = pool.outcomes(getattr(importlib.import_module(module), function), *args)
    for outcome in outcomes:
        if not outcome.ok:
            print(outcome, file=sys.stderr)
    print(json.dumps([outcome.value for outcome in outcomes]))
    return 0 if all(outcome.ok for outcome in outcomes) else 1


if __name__ == "__main__":
    # The same names as the imported module, so that outcomes unpickle to one class.
    import ranks

    sys.exit(ranks.main(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]) if len(sys.argv) > 3 else []))
