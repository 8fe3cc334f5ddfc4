"""The bench as a program: how tests start it, by itself and under mpirun."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = [sys.executable, "-m", "collectives.bench"]
QUICK = ["-n", "2", "-w", "1", "--rounds", "2"]
LAUNCHERS = ("OMPI_", "PMI_", "PMIX_", "PRTE_", "SLURM_", "MPI_", "TORCHELASTIC_", "RANK", "WORLD_SIZE")
OPEN_MPI = Path(sys.prefix) / "bin" / "mpirun"
MPICH = Path(sys.prefix) / "opt" / "mpich"


def environment(**extra: str) -> dict[str, str]:
    """This environment without its launcher; MPI may run as root and with more ranks than cores."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return inherited | root | {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"} | extra


def run(command: list[str], timeout: float = 120, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def rows_of(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines() if line and not line.startswith("#")]


def mpi_commands(name: str, world: int) -> tuple[list[str], dict[str, str]]:
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    if name == "Open MPI":
        if not OPEN_MPI.exists():
            pytest.skip(f"Open MPI is not installed: no {OPEN_MPI}")
        return [str(OPEN_MPI), "-n", str(world)], {}
    if not (MPICH / "bin" / "mpiexec").exists():
        pytest.skip(f"MPICH is not installed: no {MPICH}")
    return [str(MPICH / "bin" / "mpiexec"), "-n", str(world)], {
        "MPI4PY_LIBMPI": str(MPICH / "lib" / "libmpi.so.12")
    }


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)
