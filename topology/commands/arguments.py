"""Types and options that commands have in common."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable

from collectives.topology.graph import Topology, TopologyError
from collectives.topology.sources.files import load, parse

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size_in_bytes(text: str) -> int:
    """The type of a size: bytes, or K, M and G of 1024, its square and its cube."""
    match = re.fullmatch(r"([0-9]{1,15})([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    nbytes = int(match[1]) * _UNITS[match[2].upper()] if match else 0
    if not nbytes:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512, 64K, 1M or 1G")
    return nbytes


def at_least(minimum: int, most: int = 1 << 20) -> Callable[[str], int]:
    """The type of a whole number in a range."""

    def convert(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not minimum <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {minimum} to {most}")
        return int(text)

    return convert


def positive(text: str) -> float:
    """The type of a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def add_file(command: argparse.ArgumentParser) -> None:
    """The file to read."""
    command.add_argument("file", metavar="FILE", help="a description of a machine; - for standard input")


def add_json(command: argparse.ArgumentParser) -> None:
    """JSON in place of tables; asked for before or after the name of a command."""
    command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")


def add_sizes(command: argparse.ArgumentParser, least: str, most: str) -> None:
    """The range of sizes."""
    command.add_argument(
        "-b", "--begin", type=size_in_bytes, default=least, metavar="SIZE", help=f"first size ({least})"
    )
    command.add_argument(
        "-e", "--end", type=size_in_bytes, default=most, metavar="SIZE", help=f"last size ({most})"
    )
    command.add_argument(
        "-f", "--factor", type=at_least(2, 1 << 20), default=4, metavar="N", help="from size to size (4)"
    )


def sizes(options: argparse.Namespace) -> list[int]:
    """The sizes of the range, the last one always among them.

    Raises:
        TopologyError: it ends before it begins.
    """
    if options.end < options.begin:
        raise TopologyError(f"sizes end at {options.end} bytes before they begin at {options.begin}")
    found = [options.begin]
    while found[-1] * options.factor <= options.end:
        found.append(found[-1] * options.factor)
    return found if found[-1] == options.end else [*found, options.end]


def read_file(name: str) -> Topology:
    """The machine that a file, or standard input, describes.

    Raises:
        TopologyError: it cannot be read or used.
    """
    if name != "-":
        return load(name)
    return parse(sys.stdin.buffer.read(), "standard input")
