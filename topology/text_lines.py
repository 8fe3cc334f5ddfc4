"""The lines of what a tool has printed, whichever way it was saved or pasted."""

from __future__ import annotations

import re

from collectives.topology.graph import TopologyError

_ESCAPES = re.compile(
    r"\x1b\[[0-9;]*[A-Za-z]|\[(?:4m|0m)"
)  # terminals' colours, or what a paste left of them

MAX_BYTES = 16 << 20
"""Of a text; tables of machines have thousands of bytes."""


def clean(text: str | bytes, source: str = "") -> list[str]:
    """The lines without terminal escapes, tabs made spaces as a terminal shows them.

    Raises:
        TopologyError: bytes that are no UTF-8 or UTF-16, or too many.
    """
    if len(text) > MAX_BYTES:
        raise TopologyError(f"more than {MAX_BYTES} bytes; expected a table that a tool printed", source)
    if isinstance(text, bytes):
        utf16 = text[:2] in (b"\xff\xfe", b"\xfe\xff")  # what a redirection in PowerShell writes
        try:
            text = text.decode("utf-16" if utf16 else "utf-8-sig")
        except UnicodeDecodeError as error:
            raise TopologyError(f"not text: {error}", source) from None
    plain = _ESCAPES.sub("", text).replace("\xa0", " ").replace("\r\n", "\n").replace("\r", "\n")
    return [line.expandtabs(8).rstrip() for line in plain.split("\n")]
