"""The command line: which command, and how its failures end."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from collectives.topology.commands import convert, draw, machine, plan, record, show, simulate
from collectives.topology.graph import TopologyError

PROGRAM = "python -m collectives.topology"
_COMMANDS = (record, show, plan, draw, convert, simulate)
_FILES = """FILE is any description of a machine: what nvidia-smi topo -m, topo -p2p or nvlink -s, rocm-smi
--showtopo or amd-smi topology print (text or JSON), the XML of NCCL, RCCL or hwloc, a folder of KFD or
sysfs, a recording of `record`; or - for standard input."""


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = argparse.ArgumentParser(
        prog=PROGRAM,
        description="What a machine is made of, and what follows for collectives. Without a command: this "
        "machine.",
        epilog=_FILES,
    )
    machine.add(top)
    commands = top.add_subparsers(metavar="COMMAND", title="commands")
    for module in _COMMANDS:
        summary = (module.__doc__ or "").splitlines()[0]
        name = module.__name__.rpartition(".")[2]
        command = commands.add_parser(name, help=summary, description=summary, epilog=_FILES)
        module.add(command)
        command.set_defaults(run=module.run)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        0; 2 where a description or an argument cannot be used, with one line on stderr that says why.
    """
    options = parser().parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except TopologyError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    except BrokenPipeError:  # somebody has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0
