"""Write a machine in another form: NCCL's XML, for NCCL_TOPO_FILE, or a recording."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from collectives.topology import record
from collectives.topology.commands.arguments import add_file, read_file
from collectives.topology.graph import Topology, TopologyError
from collectives.topology.sources import nccl_xml_write

FORMS: dict[str, Callable[[Topology], str]] = {"nccl-xml": nccl_xml_write.write, "recording": record.dumps}


def add(command: argparse.ArgumentParser) -> None:
    """The options."""
    add_file(command)
    command.add_argument("--to", required=True, choices=FORMS, help="the form")
    command.add_argument("-o", "--output", metavar="FILE", help="where to write it (standard output)")


def run(options: argparse.Namespace) -> None:
    """Writes it. TopologyError: the file cannot be used, or lacks what the form needs."""
    text = FORMS[options.to](read_file(options.file))
    if options.output is None:
        sys.stdout.write(text)
        return
    try:
        Path(options.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise TopologyError(f"it cannot be written: {error.strerror}", options.output) from error
