"""Runs tests/mpi under the mpirun of each MPI that is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PREFIX = Path(sys.prefix)
# Two MPIs in one environment would overwrite each other's files, so MPICH has a prefix of its own.
MPICH = PREFIX / "opt" / "mpich"


def open_mpi() -> tuple[list[str], dict[str, str]]:
    mpirun = PREFIX / "bin" / "mpirun"
    if not mpirun.exists() or "Open MPI" not in version(mpirun):
        pytest.skip("Open MPI is not installed in this environment")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    return [str(mpirun)], {**root, "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


def mpich() -> tuple[list[str], dict[str, str]]:
    mpiexec = MPICH / "bin" / "mpiexec"
    libraries = sorted(MPICH.glob("lib/**/libmpi.so.12"))
    if not mpiexec.exists() or not libraries:
        pytest.skip("MPICH is not installed below this environment's opt/mpich")
    return [str(mpiexec)], {"MPI4PY_LIBMPI": str(libraries[0])}


def version(mpirun: Path) -> str:
    return subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("mpi", [open_mpi, mpich], ids=lambda mpi: mpi.__name__)
def test_under_mpirun(mpi: object, world: int) -> None:
    pytest.importorskip("mpi4py")
    pytest.importorskip("pytest_mpi")
    launcher, environment = mpi()  # type: ignore[operator]
    command = [
        *launcher,
        "-n",
        str(world),
        sys.executable,
        "-m",
        "pytest",
        "--with-mpi",
        "--color=no",
        "-q",
        "-x",
    ]
    command += ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", str(HERE / "mpi")]
    done = subprocess.run(
        command,
        env={**os.environ, **environment, "TEST_WORLD_SIZE": str(world)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # pytest-mpi skips in silence where it takes itself not to be under MPI.
    passed = [int(count) for count in re.findall(r"(\d+) passed", done.stdout)]
    assert len(passed) == world and min(passed) > 50 and "skipped" not in done.stdout, done.stdout
