"""Write this machine, or what a file says, as a recording: all that was read, without names and serials."""

from __future__ import annotations

import argparse
import sys

from collectives.topology import record
from collectives.topology.commands.arguments import read_file
from collectives.topology.sources.live import detect


def add(command: argparse.ArgumentParser) -> None:
    """The options."""
    command.add_argument("file", metavar="FILE", help="where to write it; - for standard output")
    command.add_argument(
        "--from", dest="origin", metavar="OTHER", help="a description to record in place of this machine"
    )


def run(options: argparse.Namespace) -> None:
    """Writes it. TopologyError: the machine or the file cannot be read, or the recording not be written."""
    topology = read_file(options.origin) if options.origin else detect().topology
    if options.file == "-":
        sys.stdout.write(record.dumps(topology))
    else:
        record.record(options.file, topology)
        print(f"{options.file}: {len(topology.gpus)} devices, {len(topology.links)} links")
