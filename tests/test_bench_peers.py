"""The bench beside its peers: Gloo, and the MPI whose mpirun starts it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from bench_program import BENCH, QUICK, mpi_commands, run

from collectives.bench import cases


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
                "in_place"
                if row["experiment_name"] in ("all_reduce", "reduce", "broadcast")
                else "out_of_place"
            )


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["Open MPI", "MPICH"])
def test_under_mpirun(name: str, world: int, tmp_path: Path) -> None:
    launcher, extra = mpi_commands(name, world)
    numbers = tmp_path / "r.json"
    sweep = [
        "-b",
        "64",
        "-e",
        "64K",
        "-f",
        "1024",
        "-r",
        "all",
        "-d",
        "float32,complex64",
        "--peers",
        "mpi",
        "-J",
        str(numbers),
        *QUICK,
    ]
    result = run([*launcher, *BENCH, *cases.COLLECTIVES, *sweep], **extra)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("# Out of bounds values : 0 OK") == len(cases.COLLECTIVES)
    document = json.loads(numbers.read_text())
    assert document["environment"]["world_size"] == world
    assert name in document["environment"]["versions"]["mpi"]
    for row in document["results"]:
        peer = row["peers"]["mpi"]
        assert peer["ratio"] > 0
        assert row[peer["form"]]["peers"]["mpi"]["nwrong"] == 0
