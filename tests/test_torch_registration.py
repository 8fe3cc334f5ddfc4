"""How torch learns of the backend, whichever way round the imports come, and at what cost."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

REGISTERED = """
import torch.distributed as dist
assert dist.Backend.backend_capability["collectives"] == ["cpu", "cuda"]
assert dist.Backend.default_device_backend_map["cpu"] == "gloo"
assert dist.Backend._plugins["COLLECTIVES"].extended_api
"""


def run(program: str, autoload: str) -> None:
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", ["import collectives, torch", "import torch, collectives"])
def test_import_of_both_registers_in_any_order(first: str) -> None:
    run(first + REGISTERED, autoload="0")


def test_torch_alone_registers_and_does_not_import_the_library() -> None:
    run("import sys, torch" + REGISTERED + "assert 'collectives' not in sys.modules", autoload="1")


def test_the_library_does_not_import_torch() -> None:
    run("import sys, collectives; dir(collectives); assert 'torch' not in sys.modules", autoload="1")


FAILS = """
import torch.distributed as dist, warnings, _collectives_autoload
assert "collectives" not in dist.Backend.backend_list

def broken(*_, **__):
    raise TypeError("new signature")

dist.Backend.register_backend = broken
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    _collectives_autoload.register()
assert len(said) == 1 and "TypeError: new signature" in str(said[0].message), said
"""


def test_a_failure_to_register_is_one_warning() -> None:
    run(FAILS, autoload="0")
