"""The command line of the bench: bad words, packages that are missing, launchers that do not fit."""

from __future__ import annotations

import importlib.util

import pytest
from bench_program import BENCH, mpi_commands, no_launcher, rows_of, run  # noqa: F401

from collectives.bench.cli import main


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["all_reduce"], "-np 2"),
        (["all_to_some", "-np", "2"], "all_to_some"),
        (["all_reduce", "-np", "2", "-b", "8Q"], "8Q"),
        (["all_reduce", "-np", "2", "-b", "16", "-e", "8"], "larger than"),
        (["all_reduce", "-np", "2", "-d", "float128"], "float128"),
        (["all_reduce", "-np", "2", "-o", "median"], "median"),
        (["all_reduce", "-np", "2", "-d", "float32", "-o", "band"], "defined"),
        (["all_reduce", "-np", "2", "-d", "complex64", "-o", "max,product"], "defined"),
        (["broadcast", "-np", "2", "-r", "2"], "0 .. 1"),
        (["all_gather", "-np", "2", "--algorithm", "two_shot"], "no two_shot"),
        (["sendrecv", "-np", "2", "--algorithm", "direct"], "no direct; it has one way only"),
        (["all_reduce", "-np", "2", "--peers", "nccl"], "nccl"),
        (["all_reduce", "-np", "0"], "-np"),
        (["all_reduce", "-np", "2", "-n", "0"], "-n"),
        (["all_reduce", "-np", "2", "-f", "1"], "-f"),
        (["all_reduce", "-np", "2", "-J", "/proc/here/r.json"], "--json"),
    ],
)
@pytest.mark.usefixtures("no_launcher")
def test_bad_arguments(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
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
@pytest.mark.usefixtures("no_launcher")
def test_a_missing_package_is_told_once_before_anything_runs(
    package: str,
    extra: str,
    arguments: list[str],
    rank: int | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
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
