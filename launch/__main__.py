"""``python -m collectives.launch -np N [--bind] [--] program args``: run N ranks on this host."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence

from collectives.launch.spawn import spawn


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m collectives.launch",
        usage="%(prog)s -np N [--bind] [--] (prog.py | -m module | program) [arguments]",
        description="Run N copies of a program on this host as ranks 0 to N-1 of one job. "
        "If one fails the others are ended, and its exit status is returned.",
    )
    parser.add_argument(
        "-np", "-n", dest="world_size", type=int, required=True, metavar="N", help="number of ranks"
    )
    parser.add_argument(
        "--bind", action="store_true", help="give each rank cores of its own, if there are enough"
    )
    return parser


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part our own options from the program and its arguments, which may look alike."""
    i = 0
    while i < len(arguments) and arguments[i].startswith("-") and arguments[i] not in ("--", "-m"):
        i += 2 if arguments[i] in ("-np", "-n") else 1
    program = list(arguments[i:])
    return list(arguments[:i]), program[1:] if program[:1] == ["--"] else program


def _command(program: list[str]) -> list[str]:
    """The command line that runs a program: scripts and modules by this very Python.

    Raises:
        FileNotFoundError: there is no such script or program.
        ValueError: there is no program, or no module after -m.
    """
    if not program or program == ["-m"]:
        raise ValueError("no program to run: want prog.py, -m module or a program, after the options")
    name = program[0]
    if name == "-m":
        return [sys.executable, *program]
    if name.endswith(".py"):
        if not os.path.isfile(name):
            raise FileNotFoundError(f"no such script: {name}")
        return [sys.executable, *program]
    if shutil.which(name) is None:
        raise FileNotFoundError(f"no such program: {name}")
    return program


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run the ranks and return the exit status."""
    own, program = _split(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    options = parser.parse_args(own)
    try:
        command = _command(program)
        return spawn(command, options.world_size, bind=options.bind)
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
