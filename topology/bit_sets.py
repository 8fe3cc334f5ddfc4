"""Sets of cores and NUMA nodes as the kernel and hwloc write them: words of 32 bits, the highest first."""

from __future__ import annotations

import re

_WORD = "(?:(?:0x)?[0-9a-fA-F]{1,8})?"
_SET = re.compile(f"{_WORD}(?:,{_WORD})*")

MAX_LENGTH = 4096
"""Characters; more than ten thousand cores fit."""


def parse(text: str) -> int | None:
    """The bits of such a set, as ``0000ffff,0000ffff`` or ``0x3,,0x1``; None if it is not one."""
    if len(text) > MAX_LENGTH or not _SET.fullmatch(text):
        return None
    value = 0
    for word in text.split(","):
        value = value << 32 | int(word or "0", 16)
    return value


def members(bits: int) -> tuple[int, ...]:
    """The numbers of the bits that are set, ascending."""
    return tuple(number for number, bit in enumerate(reversed(f"{bits:b}")) if bit == "1")


def text(numbers: tuple[int, ...]) -> str:
    """The set of those numbers, in words without 0x."""
    bits = sum(1 << number for number in numbers)
    words = max(1, -(-bits.bit_length() // 32))
    return ",".join(f"{bits >> 32 * word & 0xFFFFFFFF:08x}" for word in reversed(range(words)))
