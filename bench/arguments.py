"""What the command lines of the bench have in common: the parser, its types, the options of every run."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from collectives.bench.cases import parse_size
from collectives.environment import Launch

PROGRAM = "python -m collectives.bench"
OWN_BACKEND = "collectives"


# Long enough for rank 0 to start and complain. A launcher ends the others as soon as rank 0 has ended.
SECONDS_FOR_RANK_0 = 3.0


def complain_once(rank: int, text: str) -> None:
    """Of all ranks that met the same fault, rank 0 prints `text` to stderr.

    The others wait for it: a launcher kills every rank when the first one fails, before it has complained
    perhaps.
    """
    if rank == 0:
        print(text, file=sys.stderr, flush=True)
    else:
        time.sleep(SECONDS_FOR_RANK_0)


class Parser(argparse.ArgumentParser):
    """Of all ranks that were given the same bad line, one complains."""

    rank = 0

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and end the process with status 2."""
        complain_once(self.rank, f"{self.format_usage()}{self.prog}: error: {message}")
        raise SystemExit(2)


def list_of(parse: Callable[[str], str]) -> Callable[[str], list[str] | str]:
    """The type of ``A,B`` or ``all``: the parsed names, each once, or the word all."""

    def convert(text: str) -> list[str] | str:
        try:
            return "all" if text == "all" else list(dict.fromkeys(parse(part) for part in text.split(",")))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def size_in_bytes(text: str) -> int:
    """The type of a size in bytes."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def at_least(minimum: int) -> Callable[[str], int]:
    """The type of a whole number from `minimum` up."""

    def convert(text: str) -> int:
        if not text.lstrip("-").isdigit() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {minimum} up")
        return int(text)

    return convert


def add_world(p: argparse.ArgumentParser) -> None:
    """The option that starts ranks without a launcher."""
    p.add_argument(
        "-np", "--np", type=at_least(1), metavar="N", help="start N ranks here, without a launcher"
    )


def add_json(p: argparse.ArgumentParser, help: str = "also write JSON") -> None:
    """The option for a file of results."""
    p.add_argument("-J", "--json", metavar="FILE", help=help)


def add_backend(p: argparse.ArgumentParser) -> None:
    """The option for what is measured through torch.distributed."""
    p.add_argument(
        "--backend",
        default=OWN_BACKEND,
        metavar="NAME",
        help=f"the torch.distributed backend that is measured ({OWN_BACKEND})",
    )


def check_world(p: argparse.ArgumentParser, args: argparse.Namespace, launch: Launch) -> int:
    """The number of ranks; complains where ``-np`` and the launcher disagree, or both are absent."""
    if args.np is not None and launch.launcher != "none" and args.np != launch.world_size:
        p.error(f"-np {args.np}, but {launch.launcher} has started {launch.world_size} ranks; leave -np out")
    if args.np is None and launch.launcher == "none":
        p.error(
            "one process alone measures nothing: start it with mpirun -n 2, torchrun or srun, or give -np 2"
        )
    return int(args.np or launch.world_size)


def check_files(p: argparse.ArgumentParser, args: argparse.Namespace, names: Sequence[str]) -> None:
    """See that the files of these options can be written; complains where their folders cannot be made."""
    for name in names:
        # Not after the run, which may have taken an hour.
        try:
            if getattr(args, name):
                Path(getattr(args, name)).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            p.error(f"--{name}: {error}")


def parser(rank: int, subject: str, description: str, **extra: Any) -> Parser:
    """A parser for one subject of the bench (the sweep has none); only rank 0's prints complaints."""
    p = Parser(prog=f"{PROGRAM} {subject}".strip(), allow_abbrev=False, description=description, **extra)
    p.rank = rank
    return p
