"""What commands print: headings, facts and tables, by rich on a terminal, as plain lines elsewhere.

Nothing is cut off: on a terminal a table too wide for it is printed in blocks of columns, each beside the
same first column; in a file or a pipe a row is one line, however long.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def console() -> Console:
    """Standard output as it is now; tests and pipes exchange it."""
    return Console(file=sys.stdout, highlight=False, emoji=False, markup=False)


def heading(text: str) -> None:
    """A line above a section."""
    screen = console()
    if screen.is_terminal:
        screen.print()
        screen.print(Text(text, style="bold"))
    else:
        print(f"\n{text}")


def line(text: str, style: str = "") -> None:
    """A line of text; on a terminal it is wrapped between words."""
    screen = console()
    if screen.is_terminal:
        screen.print(Text(text, style=style))
    else:
        print(text)


def facts(pairs: Sequence[tuple[str, str]]) -> None:
    """Names with what they are."""
    screen = console()
    width = max((len(name) for name, _ in pairs), default=0)
    if not screen.is_terminal:
        for name, value in pairs:
            print(f"{name:<{width}}  {value}")
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(name, Text(value))
    screen.print(grid)


def _blocks(widths: Sequence[int], room: int) -> Iterator[range]:
    """Columns after the first in runs that fit beside it, each with 2 more for the gap."""
    start, used = 1, widths[0] + 2
    for column in range(1, len(widths)):
        if used + widths[column] + 2 > room and column > start:
            yield range(start, column)
            start, used = column, widths[0] + 2
        used += widths[column] + 2
    yield range(start, len(widths))


def table(names: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> None:
    """A table.

    Args:
        names: of the columns.
        rows: as many cells each.
        left: columns that are aligned to the left, as words are; numbers to the right.
    """
    screen = console()
    widths = [max(len(row[column]) for row in (names, *rows)) for column in range(len(names))]
    if not screen.is_terminal:
        for row in (names, *rows):
            cells = [
                cell.ljust(width) if column in left else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            print("  ".join(cells).rstrip())
        return
    for block in _blocks(widths, screen.width):
        drawn = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for column in (0, *block):
            drawn.add_column(
                Text(names[column]),
                justify="left" if column in left else "right",
                overflow="fold",
                no_wrap=widths[column] + 2 <= screen.width - widths[0],
                style="bold" if column == 0 else "",
            )
        for row in rows:
            drawn.add_row(*(Text(row[column], style=_colour(row[column])) for column in (0, *block)))
        screen.print(drawn)


def _colour(cell: str) -> str:
    if re.fullmatch(r"(NV|XG)[0-9?]+", cell):
        return "green"
    return {"?": "yellow", "X": "dim"}.get(cell, "")


def as_json(data: Any) -> None:
    """Data as JSON."""
    print(json.dumps(data, indent=2))


def size(nbytes: int) -> str:
    """Bytes as people write them: 1 KiB is 1K."""
    for unit, factor in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if nbytes >= factor and nbytes % factor == 0:
            return f"{nbytes // factor}{unit}"
    return str(nbytes)


def numbers(values: Sequence[int]) -> str:
    """Whole numbers as runs: 0-3,8; - for none."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and runs[-1][1] == value - 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "-"
