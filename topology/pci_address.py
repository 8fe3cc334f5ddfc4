"""PCI addresses, which every tool writes in a way of its own."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-9a-f])", re.ASCII)


def normal(text: str | bytes | None) -> str | None:
    """An address as ``0000:1b:00.0``: domain of at least four digits, lower case; None if it is not one.

    NVML writes domains of eight digits, some tools none. An address with every bit of bus and device set is
    none: tools put it where they know nothing.
    """
    if isinstance(text, bytes):
        text = text.decode("ascii", "replace")
    match = _ADDRESS.fullmatch((text or "").strip().strip("\0").lower())
    if not match:
        return None
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    if device > 0x1F:
        return None
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
