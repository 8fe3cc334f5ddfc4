"""What a run says while a row takes its time."""

from __future__ import annotations

import math
import sys
import time


class Progress:
    """One line on a terminal that says what is being measured, and goes away for the next row."""

    def __init__(self, visible: bool) -> None:
        self._visible, self._shown, self._since = visible, 0, -math.inf

    def __call__(self, text: str) -> None:
        """Show `text`, unless the last one is very recent."""
        # Writing often would disturb what is measured.
        if self._visible and time.monotonic() - self._since > 0.25:
            self._since = time.monotonic()
            print("\r" + text.ljust(self._shown), end="", file=sys.stderr, flush=True)
            self._shown = len(text)

    def clear(self) -> None:
        """Blank the line."""
        if self._shown:
            print("\r" + " " * self._shown + "\r", end="", file=sys.stderr, flush=True)
            self._shown = 0
