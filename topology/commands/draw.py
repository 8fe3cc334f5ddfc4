"""Draw a machine: devices by NUMA node or island, links by kind and count, switches, network cards."""

from __future__ import annotations

import argparse

from collectives.topology.commands.arguments import add_file, read_file
from collectives.topology.graph import TopologyError


def add(command: argparse.ArgumentParser) -> None:
    """The options."""
    add_file(command)
    command.add_argument(
        "picture", metavar="PICTURE", help="where to write it; its ending names the format: .svg, .png, .pdf"
    )
    command.add_argument("--title", help="above the picture (what the machine is)")


def run(options: argparse.Namespace) -> None:
    """Draws it. TopologyError: the file cannot be used, or the picture not be written."""
    topology = read_file(options.file)
    try:
        from collectives.topology import draw
    except ImportError as error:
        raise TopologyError(f"pictures need matplotlib: pip install matplotlib ({error})") from error
    draw.draw(topology, options.picture, options.title)
    print(options.picture)
