"""The frame of a run that is no sweep: threads and header before it, verdict and JSON after it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any

from collectives import __version__
from collectives.bench import report
from collectives.bench.arguments import OWN_BACKEND
from collectives.bench.header import machine, ranks_and_load
from collectives.bench.host import environment, gather_ranks, load_average, load_warning
from collectives.communicator import Communicator
from collectives.environment import Launch

JSON_VERSION = 1


class Run:
    """One run; made and finished by all ranks together.

    Args:
        comm, launch, yields: see on_ranks.
        args: with `json` and `backend`, which is None where torch has no part in it.
        argv: the command line, for the JSON.
        about: lines on what is run and how, for the header.
        config: the same as numbers, for the JSON.
        versions: of further packages.
    """

    def __init__(
        self,
        comm: Communicator,
        launch: Launch,
        yields: bool,
        args: argparse.Namespace,
        argv: Sequence[str],
        about: Sequence[str],
        config: Mapping[str, Any],
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self._comm, self._json = comm, args.json
        known = dict(versions or {})
        if args.backend is not None:
            import torch

            known = {"torch": str(torch.__version__), **known}
        if args.backend in (OWN_BACKEND, None):
            known = {OWN_BACKEND: __version__, **known}
        self._facts = environment(launch, known)
        threads = max(1, int(self._facts["cores"]) // comm.world_size)
        cores = []
        if args.backend is not None:
            torch.set_num_threads(threads)
            cores = [f"threads: torch computes on {threads} in each rank"]
        ranks = gather_ranks(comm)
        self._load = {"start": load_average()}
        self._head = {
            "version": JSON_VERSION,
            "start_time": time.strftime(report.TIME_FORMAT),
            "args": ["collectives.bench", *argv],
            "config": {"backend": args.backend, **config, "threads": threads, "devices": ranks},
            "environment": self._facts,
        }
        for line in (*machine(self._facts), *about, *cores, *ranks_and_load(self._facts, ranks, yields)):
            self.say("# " + line)

    def say(self, text: str) -> None:
        """Print on rank 0."""
        if self._comm.rank == 0:
            print(text, flush=True)

    def finish(
        self,
        table: Sequence[str],
        results: Sequence[Mapping[str, Any]],
        check: Mapping[str, Any] | None = None,
    ) -> int:
        """Print the table and the verdict, write the JSON; returns the exit status.

        Args:
            table: its lines.
            results: the same for the JSON.
            check: of the results, with "okay"; None if there is nothing to check.
        """
        self._load["end"] = load_average()
        for line in table:
            self.say(line)
        if check is not None:
            self.say(f"# {'results':<20} : {'OK' if check['okay'] else 'FAILED'}")
        warning = load_warning(self._load.values(), self._facts)
        if warning:
            self.say(f"# {'WARNING':<20} : {warning}")
        if self._json and self._comm.rank == 0:
            tail = {"load_average": self._load, "end_time": time.strftime(report.TIME_FORMAT)}
            report.write_json(self._json, {**self._head, "results": list(results), "check": check, **tail})
            print(f"# JSON: {self._json}")
        self._comm.barrier()  # the others wait for rank 0's file, so that no launcher takes it down early
        return 0 if check is None or check["okay"] else 1
