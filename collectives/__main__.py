"""``python -m collectives [--json]``: what a bug report should say about installation and machine.

``python -m collectives build-torch`` compiles the torch backend for the torch that is installed.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any

from collectives import build_torch, environment, torch_backend
from collectives.topology import cpu

_PACKAGES = ("peer-collectives", "numpy", "ml_dtypes", "mpi4py", "torch")
_NOTHING = {"cpu_quota": "unlimited"} | dict.fromkeys(_PACKAGES, "not installed")


def _version(package: str) -> str | None:
    # From the metadata: importing torch takes seconds, and importing mpi4py starts MPI.
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> dict[str, Any]:
    cores = cpu.allowed_cores()
    nodes = {cpu.numa_node(core) for core in cores}
    return {
        "model": cpu.model_name(),
        "architecture": platform.machine(),
        "cores_allowed": len(cores),
        "cpu_quota": cpu.cpu_quota(),
        "cores_usable": cpu.usable_cores(),
        "numa_nodes": sorted(node for node in nodes if node is not None) or None,
        "caches": [
            {
                "level": cache.level,
                "kind": cache.kind,
                "bytes": cache.nbytes,
                "shared_by_cores": len(cache.cores),
            }
            for cache in cpu.caches(cores[0])
        ],
    }


def _instruction_set() -> str:
    try:
        from collectives import _native

        return str(_native.instruction_set())
    except ImportError as error:
        return f"not available: {error}"


def _try_shared_memory() -> str:
    """Make a communicator of this process alone and reduce with it; "works", or what went wrong."""
    try:
        import numpy as np

        from collectives import Communicator
        from collectives.rendezvous import EnvironmentRendezvous

        alone = EnvironmentRendezvous(environment.Launch("none", 0, 1))
        with Communicator(alone) as comm:
            result = comm.all_reduce(np.arange(1000, dtype=np.float32))
        return "works" if np.array_equal(result, np.arange(1000)) else "gives wrong results"
    except Exception as error:  # any failure at all is what the report is for
        return f"{type(error).__name__}: {error}"


def _torch_backend() -> str:
    # Without importing torch.
    torch = _version("torch")
    if torch is None:
        return "needs torch"
    try:
        torch_backend.check_supported(torch)
    except ImportError as error:
        return str(error)
    if torch_backend.installed_fits(torch):
        return f"installed, built for torch {torch_backend.built_for()}"
    path = build_torch.module_path(torch)
    return str(path) if path.exists() else "not built for this torch: run `python -m collectives build-torch`"


def _launch() -> dict[str, Any]:
    try:
        return asdict(environment.launched())
    except ValueError as error:
        return {"launcher": f"contradictory: {error}"}


def report() -> dict[str, Any]:
    """Everything that is printed, as plain data."""
    return {
        "versions": {"python": platform.python_version()}
        | {package: _version(package) for package in _PACKAGES},
        "system": {"kernel": platform.platform(), "libc": " ".join(platform.libc_ver())},
        "cpu": _processor(),
        "instruction_set": _instruction_set(),
        "devices": ["cpu"],
        "transports": {"shared_memory": _try_shared_memory()},
        "torch_backend": _torch_backend(),
        "environment": environment.variables_set(),
        "launch": _launch(),
    }


def _lines(key: str, value: Any, indent: str = "") -> list[str]:
    title = indent + key.replace("_", " ")
    if isinstance(value, dict) and value:
        return [
            title,
            *(line for name, inner in value.items() for line in _lines(name, inner, indent + "  ")),
        ]
    if key == "caches" and value:
        text = ", ".join(
            f"L{c['level']} {c['kind'].lower()} {_size(c['bytes'])} shared by {c['shared_by_cores']}"
            for c in value
        )
    elif isinstance(value, list):
        text = ", ".join(str(item) for item in value)
    else:
        text = _NOTHING.get(key, "unknown") if value is None else "none" if value == {} else str(value)
    return [f"{title:<22} {text}"]


def _size(nbytes: int | None) -> str:
    if nbytes is None:
        return "of unknown size"
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; the status is 0 if shared memory works. Or build-torch."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["build-torch"]:
        return build_torch.main(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m collectives", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    data = report()
    if options.json:
        print(json.dumps(data, indent=2))
    else:
        print("\n".join(line for key, value in data.items() for line in _lines(key, value)))
    return 0 if data["transports"]["shared_memory"] == "works" else 1


if __name__ == "__main__":
    sys.exit(main())
