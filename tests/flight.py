"""What tests of the flight record share: dumps, and what torch's analyser says of them."""

from __future__ import annotations

import gc
import importlib.util
import io
import logging
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

CALLS = 64  # that a rank keeps

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch's analyser")


def set_dump(_: Any, prefix: str) -> None:
    from collectives import flight_record

    os.environ["COLLECTIVES_DUMP"] = prefix
    flight_record.install_handler()


def analyse(folder: Path) -> str:
    """What torchfrtrace says of the dump files in a folder. In this process: importing torch takes long."""
    from torch.distributed.flight_recorder import fr_trace

    said = io.StringIO()
    handler = logging.StreamHandler(said)
    logger = logging.getLogger("Flight Recorder")
    logger.addHandler(handler)
    try:
        fr_trace.main([str(folder)])
    finally:
        logger.removeHandler(handler)
        gc.enable()  # which it has switched off
    return said.getvalue()


def load(path: Path) -> Any:
    return pickle.loads(path.read_bytes())


def wait_until(condition: Any, limit: float = 20.0) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
