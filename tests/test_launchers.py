"""Ranks that real launchers started meet: both MPIs, torchrun and our own; several jobs at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

BIN = Path(sys.prefix) / "bin"
MPICH = Path(sys.prefix) / "opt" / "mpich"
LAUNCHERS = {
    "Open MPI": [str(BIN / "mpirun"), "-n"],
    "MPICH": [str(MPICH / "bin" / "mpiexec"), "-n"],
    "torchrun": [str(BIN / "torchrun"), "--standalone", "--no-python", "--nproc-per-node"],
    "collectives.launch": [sys.executable, "-m", "collectives.launch", "-np"],
}
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
CROWD = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMP_NUM_THREADS": "1"}

# One line per rank, written at once: what mpirun passes on may otherwise be mixed.
SAY = "import os, sys, time\ndef say(*words): os.write(1, (' '.join(map(str, words)) + '\\n').encode())\n"
TWICE = """
met = rendezvous(source)
for turn in range(2):
    want = [b"%03d%d" % (rank, turn) for rank in range(met.world_size)]
    assert met.exchange(want[met.rank], 30.0) == want
say(met.rank, met.world_size, met.source)
"""
MEET = SAY + "from collectives.rendezvous import rendezvous\nsource = None\n" + TWICE


def environment(launcher: str) -> dict[str, str]:
    """This environment without what an outer launcher set, for a job of its own."""
    outer = (
        "OMPI_C",
        "PMI",
        "PRTE",
        "SLURM_",
        "MPI_",
        "TORCHELASTIC_",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_",
        "MASTER_",
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    environ |= ROOT | CROWD
    if launcher == "MPICH":
        environ["MPI4PY_LIBMPI"] = str(MPICH / "lib" / "libmpi.so.12")
    return environ


def run(launcher: str, world: int, code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = LAUNCHERS[launcher]
    if not Path(command[0]).exists():
        pytest.skip(f"{launcher} is not installed")
    return subprocess.run(
        [*command, str(world), sys.executable, "-c", code],
        env=environment(launcher) | environ,
        capture_output=True,
        text=True,
        timeout=120,
    )


def words(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(line.split(maxsplit=2) for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("launcher", "world"),
    [
        (launcher, world)
        for launcher in LAUNCHERS
        for world in (1, 2, 5)
        if launcher != "torchrun" or world == 2
    ],
)
def test_environment(launcher: str, world: int) -> None:
    name = "Hydra" if launcher == "MPICH" else launcher
    rows = words(run(launcher, world, MEET))
    assert rows == [[str(rank), str(world), f"environment ({name})"] for rank in range(world)]


@pytest.mark.parametrize("launcher", ["Open MPI", "MPICH"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_mpi_communicator(launcher: str, world: int) -> None:
    pytest.importorskip("mpi4py", reason="needs mpi4py")
    code = SAY + (
        "from mpi4py import MPI\nfrom collectives.rendezvous import rendezvous\n"
        "library = MPI.Get_library_version().split()[0]\nsource = MPI.COMM_WORLD\n"
        + TWICE
        + "half = rendezvous(MPI.COMM_WORLD.Split(met.rank % 2))\n"
        "want = [b'%d' % rank for rank in range(met.rank % 2, met.world_size, 2)]\n"
        "assert half.exchange(b'%d' % met.rank, 30.0) == want\n"
    )
    rows = words(run(launcher, world, code))
    assert rows == [[str(rank), str(world), "MPI communicator"] for rank in range(world)]


def test_mpi_communicators_that_cannot_serve() -> None:
    pytest.importorskip("mpi4py", reason="needs mpi4py")
    code = SAY + (
        "from mpi4py import MPI\nfrom collectives.rendezvous import rendezvous\nworld = MPI.COMM_WORLD\n"
        "inter = world.Split(world.rank).Create_intercomm(0, world, 1 - world.rank)\n"
        "for comm in (inter, MPI.COMM_NULL):\n"
        "    try: rendezvous(comm)\n"
        "    except ValueError as error: say(world.rank, error)\n"
    )
    done = run("Open MPI", 2, code)
    assert done.stdout.count("intercommunicator") == 2, done.stderr
    assert done.stdout.count("MPI.COMM_NULL") == 2


@pytest.mark.parametrize("launcher", ["Open MPI", "MPICH"])
def test_rank_that_does_not_come_to_the_mpi_communicator(launcher: str) -> None:
    pytest.importorskip("mpi4py", reason="needs mpi4py")
    code = SAY + (
        "from mpi4py import MPI\nfrom collectives.rendezvous import rendezvous\nworld = MPI.COMM_WORLD\n"
        "world.Barrier()\nmet = rendezvous(world)\nstart = time.monotonic()\n"
        "if world.rank == 1:\n    time.sleep(1.5)\nelse:\n"
        "    try: met.exchange(b'x', 0.5)\n"
        "    except Exception as error:\n"
        "        say(type(error).__name__, error.ranks, time.monotonic() - start < 1.4, error)\n"
    )
    done = run(launcher, 2, code)
    assert "CollectiveTimeoutError (1,) True rendezvous: no word from rank 1 of 2 within 0.5 s" in done.stdout


@pytest.mark.parametrize("launcher", ["Open MPI", "MPICH", "collectives.launch"])
@pytest.mark.parametrize("late", [0, 2])
def test_rank_that_does_not_come_to_the_host(launcher: str, late: int) -> None:
    code = SAY + (
        "from collectives.rendezvous import rendezvous\nmet = rendezvous()\nmet.exchange(b'x', 30.0)\n"
        f"if met.rank == {late}: time.sleep(2); sys.exit()\n"
        "try: met.exchange(b'x', 0.5)\n"
        "except Exception as error: say(met.rank, type(error).__name__, error.ranks, error)\n"
    )
    done = run(launcher, 3, code)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    assert all(
        f"CollectiveTimeoutError ({late},) rendezvous: no word from rank {late} of 3" in line
        for line in lines
    )


def test_rank_behind_a_wrapper_that_closes_descriptors() -> None:
    inner = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {MEET!r}]).returncode)"
    assert len(words(run("MPICH", 2, inner))) == 2


def test_wrong_mpi_library_is_noticed() -> None:
    """MPICH's mpiexec over Open MPI's library would otherwise be two worlds of one."""
    pytest.importorskip("mpi4py", reason="needs mpi4py")
    code = SAY + (
        "from collectives import processes\n"
        "processes.server_of = processes.ancestor_named = lambda name: None\n"
        "from collectives.rendezvous import rendezvous\n"
        "try: rendezvous()\n"
        "except RuntimeError as error: say(error)\n"
    )
    library = Path(sys.prefix) / "lib" / "libmpi.so.40"
    done = run("MPICH", 2, code, MPI4PY_LIBMPI=str(library), OMPI_MCA_btl="self")
    assert done.stdout.count("it loads another MPI than the one whose mpirun was used") == 2, done.stderr


def test_world_of_mpi_serves_where_the_job_has_no_name() -> None:
    pytest.importorskip("mpi4py", reason="needs mpi4py")
    code = SAY + (
        "from collectives import processes\n"
        "processes.server_of = processes.ancestor_named = lambda name: None\n"
        "from collectives.rendezvous import rendezvous\nsource = None\n" + TWICE
    )
    assert words(run("MPICH", 3, code)) == [[str(rank), "3", "environment (Hydra)"] for rank in range(3)]


def test_torch_group() -> None:
    pytest.importorskip("torch")
    code = SAY + (
        "import torch.distributed as dist\nfrom collectives.rendezvous import rendezvous\n"
        "dist.init_process_group('gloo')\nsource = dist.group.WORLD\n"
        + TWICE
        + "pair = dist.new_group([0, 2])\n"
        "if met.rank == 1:\n"
        "    try: rendezvous(dist.GroupMember.NON_GROUP_MEMBER)\n"
        "    except TypeError: say('outside')\n"
        "else:\n"
        "    assert rendezvous(pair).exchange(b'%d' % met.rank, 30.0) == [b'0', b'2']\n"
        "dist.barrier(); dist.destroy_process_group()\n"
    )
    rows = words(run("torchrun", 3, code))
    assert rows == [*([str(rank), "3", "torch PrefixStore"] for rank in range(3)), ["outside"]]


def test_jobs_at_the_same_time_do_not_mix() -> None:
    code = SAY + (
        "from collectives.rendezvous import rendezvous\nmet = rendezvous()\n"
        "got = met.exchange(os.environ['JOB'].encode(), 60.0)\n"
        "assert got == [os.environ['JOB'].encode()] * 2, got\nsay(os.environ['JOB'])\n"
    )
    kinds = ["Open MPI", "MPICH", "collectives.launch"] * 2
    with ThreadPoolExecutor(3) as threads:
        jobs = list(threads.map(lambda i: run(kinds[i], 2, code, JOB=f"job{i}"), range(len(kinds))))
    said = Counter(line for done in jobs for line in done.stdout.split())
    assert said == {f"job{i}": 2 for i in range(len(kinds))}, [done.stderr for done in jobs]
