"""The bench as users start it: by itself, under mpirun, with bad words, and with a wrong result."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collectives.bench import cases
from collectives.bench.cli import main

BENCH = [sys.executable, "-m", "collectives.bench"]
QUICK = ["-n", "2", "-w", "1", "--rounds", "2"]
REDUCIBLE = [
    (dtype, op) for dtype in cases.DTYPES for op in cases.OPS if cases.supports("all_reduce", dtype, op)
]
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


# The command line


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["all_reduce"], "-np 2"),
        (["all_to_all", "-np", "2"], "all_to_all"),
        (["all_reduce", "-np", "2", "-b", "8Q"], "8Q"),
        (["all_reduce", "-np", "2", "-b", "16", "-e", "8"], "larger than"),
        (["all_reduce", "-np", "2", "-d", "float128"], "float128"),
        (["all_reduce", "-np", "2", "-o", "median"], "median"),
        (["all_reduce", "-np", "2", "-d", "float32", "-o", "band"], "defined"),
        (["all_reduce", "-np", "2", "-d", "complex64"], "defined"),
        (["broadcast", "-np", "2", "-r", "2"], "0 .. 1"),
        (["all_gather", "-np", "2", "--algorithm", "two_shot"], "no two_shot"),
        (["all_reduce", "-np", "2", "--peers", "nccl"], "nccl"),
        (["all_reduce", "-np", "0"], "-np"),
        (["all_reduce", "-np", "2", "-n", "0"], "-n"),
        (["all_reduce", "-np", "2", "-f", "1"], "-f"),
        (["all_reduce", "-np", "2", "-J", "/proc/here/r.json"], "--json"),
    ],
)
def test_bad_arguments(
    arguments: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in list(os.environ):
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("ml_dtypes", "bench", ["-d", "float32,bfloat16"]),
        ("ml_dtypes", "bench", ["-d", "all"]),
        ("matplotlib", "bench", ["--plot", "picture.png"]),
        ("torch", "torch", ["--peers", "gloo"]),
    ],
)
@pytest.mark.parametrize("rank", [None, 0, 1])
def test_a_missing_package_is_told_once_before_anything_runs(
    package: str,
    extra: str,
    arguments: list[str],
    rank: int | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in list(os.environ):
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)
    if rank is not None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    assert main(["all_reduce", *([] if rank is not None else ["-np", "2"]), *arguments]) == 2
    out, err = capsys.readouterr()
    told = f"needs {package}: pip install 'peer-collectives[{extra}]'\n" if rank != 1 else ""
    assert (out, err.count("\n"), err[-len(told) :] if told else err) == ("", int(rank != 1), told)


def test_the_mpi_peer_needs_mpirun() -> None:
    result = run([*BENCH, "all_reduce", "-np", "2", "--peers", "mpi"])
    assert result.returncode == 2
    assert "mpirun -n 2 python -m collectives.bench" in result.stderr
    assert result.stderr.count("\n") == 1


# Real runs


def test_a_run_by_itself(tmp_path: Path) -> None:
    numbers, picture = tmp_path / "new" / "r.json", tmp_path / "new" / "p.png"
    sweep = ["-b", "8", "-e", "256K", "-f", "32", "-J", str(numbers), "--plot", str(picture), *QUICK]
    result = run([*BENCH, *cases.COLLECTIVES, "-np", "2", *sweep])
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("# Out of bounds values : 0 OK") == 4
    rows = rows_of(result.stdout)
    assert [row[0] for row in rows] == ["8", "256", "8192", "262144"] * 4
    assert all(row[8] == row[12] == "0" for row in rows[:12])
    assert all(row[5:9] == ["N/A"] * 4 for row in rows[12:])  # a broadcast is in place
    assert f"# picture: {picture}" in result.stdout
    assert picture.read_bytes()[:4] == b"\x89PNG"

    document = json.loads(numbers.read_text())
    for key in ("version", "start_time", "end_time", "args", "config", "results", "out_of_bounds"):
        assert key in document
    assert document["config"]["minimum_bytes"] == 8
    assert document["config"]["step_factor"] == 32
    assert [device["rank"] for device in document["config"]["devices"]] == [0, 1]
    assert document["out_of_bounds"] == {"count": 0, "okay": "true"}
    assert document["average_bus_bandwidth"]["bandwidth"] > 0
    assert document["environment"]["world_size"] == 2
    assert set(document["summaries"]["broadcast"]["load_average"]) == {"start", "end"}
    assert "env" not in document  # the whole environment may hold secrets
    first = document["results"][0]
    assert (first["size"], first["count"], first["type"], first["redop"], first["root"]) == (
        8,
        2,
        "float",
        "sum",
        -1,
    )
    assert first["algorithm"] == "inline"
    assert first["memcpy"] > 0
    for form in ("out_of_place", "in_place"):
        assert first[form]["nwrong"] == 0
        assert first[form]["alg_bw"] == pytest.approx(8 / first[form]["time"] / 1e3)
        assert first[form]["bus_bw"] == pytest.approx(first[form]["alg_bw"])
    gather = next(row for row in document["results"] if row["experiment_name"] == "all_gather")
    assert (gather["size"], gather["count"], gather["redop"]) == (8, 1, "none")
    assert document["results"][-1]["out_of_place"] is None

    again = run([*BENCH, "plot", str(numbers), str(tmp_path / "again.png")])
    assert again.returncode == 0, again.stderr
    assert again.stdout.strip() == str(tmp_path / "again.png")
    assert run([*BENCH, "plot", str(tmp_path / "none.json"), "x.png"]).returncode == 2


def test_every_dtype_and_operator() -> None:
    sweep = ["-b", "7680", "-e", "7680", "-d", "all", "-o", "all", "-n", "1", "-w", "0", "--rounds", "1"]
    result = run([*BENCH, *cases.COLLECTIVES, "-np", "3", "-r", "all", *sweep])
    assert result.returncode == 0, result.stdout + result.stderr
    rows = rows_of(result.stdout)
    reductions, dtypes = len(REDUCIBLE), len(cases.DTYPES)
    assert len(rows) == 2 * reductions + dtypes + 3 * dtypes
    assert {row[8] for row in rows} <= {"0", "N/A"}
    assert {row[12] for row in rows} == {"0"}


def test_iterations_adapt_and_checking_can_be_left_out() -> None:
    result = run([*BENCH, "all_reduce", "-np", "2", "-b", "64", "-e", "64", "-c", "0", "--rounds", "2"])
    assert result.returncode == 0, result.stderr
    assert "as many calls as fill 5 ms" in result.stdout
    (row,) = rows_of(result.stdout)
    assert row[8] == row[12] == "N/A"


def test_a_forced_algorithm_that_cannot_serve_a_size_is_not_measured() -> None:
    sweep = ["-b", "32", "-e", "64", "--algorithm", "inline", *QUICK]
    result = run([*BENCH, "all_reduce", "-np", "2", *sweep])
    assert result.returncode == 0, result.stderr
    small, large = rows_of(result.stdout)
    assert (small[8], small[12], small[13]) == ("0", "0", "inline")
    assert large[5:] == ["N/A"] * 9


SPAWN = "import sys; from collectives.launch import spawn; sys.exit(spawn(sys.argv[1:], 2))"
# What seccomp and ptrace_scope do to process_vm_readv; the text is the library's own.
FORBID = """
import sys
from collectives.bench.cli import main
from collectives.communicator import Communicator

def refusing(self, x, out, algorithm=None, gather=Communicator.all_gather):
    if algorithm == "direct":
        raise ValueError("algorithm direct: this system does not let the ranks read each other's memory")
    return gather(self, x, out, algorithm=algorithm)

Communicator.all_gather = refusing
sys.exit(main(sys.argv[1:]))
"""


def test_a_forced_algorithm_that_the_system_forbids_is_told_once(tmp_path: Path) -> None:
    program = tmp_path / "forbid.py"
    program.write_text(FORBID)
    arguments = ["broadcast", "-e", "64", "--algorithm", "direct", *QUICK]
    result = run([sys.executable, "-c", SPAWN, sys.executable, str(program), *arguments])
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("does not let the ranks read") == 1
    assert "Traceback" not in result.stderr


CORRUPT = """
import sys
from collectives.bench import peers
from collectives.bench.cli import main

bind = peers.Ours.bind

def corrupting(self, case):
    call = bind(self, case)
    def corrupted():
        call()
        if self.comm.rank == 1 and not case.in_place:
            case.out.view("u1")[5] ^= 4
    return corrupted

peers.Ours.bind = corrupting
sys.exit(main(sys.argv[1:]))
"""


def test_a_wrong_result_fails_the_run(tmp_path: Path) -> None:
    program = tmp_path / "corrupt.py"
    program.write_text(CORRUPT)
    arguments = ["all_reduce", "-b", "64", "-e", "64", *QUICK]
    result = run([sys.executable, "-c", SPAWN, sys.executable, str(program), *arguments])
    assert result.returncode == 1, result.stdout + result.stderr
    (row,) = rows_of(result.stdout)
    assert (row[8], row[12]) == ("1", "0")
    assert "# Out of bounds values : 1 FAILED" in result.stdout


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_gloo_beside_ours(tmp_path: Path) -> None:
    numbers = tmp_path / "r.json"
    sweep = ["-b", "1K", "-e", "1K", "-d", "float32,int32", "-o", "sum,avg", *QUICK]
    result = run([*BENCH, *cases.COLLECTIVES, "-np", "2", "--peers", "gloo", "-J", str(numbers), *sweep])
    assert result.returncode == 0, result.stderr
    for row in json.loads(numbers.read_text())["results"]:
        peer = row["peers"]["gloo"]
        if (row["type"], row["redop"]) == ("int32", "avg"):  # which gloo does not have
            assert peer["time"] is None
        else:
            assert peer["ratio"] > 0
            assert row[peer["form"]]["peers"]["gloo"]["nwrong"] == 0
            assert peer["form"] == (
                "in_place" if row["experiment_name"] in ("all_reduce", "broadcast") else "out_of_place"
            )


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


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", ["Open MPI", "MPICH"])
def test_under_mpirun(name: str, world: int, tmp_path: Path) -> None:
    launcher, extra = mpi_commands(name, world)
    numbers = tmp_path / "r.json"
    sweep = ["-b", "64", "-e", "64K", "-f", "1024", "--peers", "mpi", "-J", str(numbers), *QUICK]
    result = run([*launcher, *BENCH, *cases.COLLECTIVES, *sweep], **extra)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("# Out of bounds values : 0 OK") == 4
    document = json.loads(numbers.read_text())
    assert document["environment"]["world_size"] == world
    assert name in document["environment"]["versions"]["mpi"]
    for row in document["results"]:
        peer = row["peers"]["mpi"]
        assert peer["ratio"] > 0
        assert row[peer["form"]]["peers"]["mpi"]["nwrong"] == 0


def test_launcher_and_library_of_different_mpis() -> None:
    mpi_commands("Open MPI", 2)
    launcher, _ = mpi_commands("MPICH", 2)
    result = run([*launcher, *BENCH, "all_reduce", "-e", "8"])
    assert result.returncode != 0
    assert result.stderr.count("launcher and library are of different MPIs") == 1
    assert not rows_of(result.stdout)


def test_under_mpirun_a_bad_line_is_told_once() -> None:
    launcher, extra = mpi_commands("Open MPI", 2)
    result = run([*launcher, *BENCH, "all_reduce", "-b", "8Q"], **extra)
    assert result.returncode != 0
    assert result.stderr.count("8Q") == 1
