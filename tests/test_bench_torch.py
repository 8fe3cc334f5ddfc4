"""The bench through torch.distributed: sweeps, a Llama, DDP, cost of groups; few rounds, small models."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench_program import BENCH, QUICK, mpi_commands, no_launcher, rows_of, run  # noqa: F401

import collectives

pytest.importorskip("torch")

import torch.distributed as dist

from collectives.bench import cases, compare, ddp
from collectives.bench.cli import main

LLAMA = ["model", "--layers", "2", "--hidden", "128", "--tokens", "2", "--rounds", "2"]
PERCEPTRON = ["ddp", "--layers", "2", "--hidden", "64", "--rounds", "3"]
PATIENCE = 300.0  # imports of torch by several ranks on a busy machine
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


@pytest.fixture(params=["collectives", "gloo"])
def backend(request: pytest.FixtureRequest) -> str:
    """The backend that is measured; Gloo's place in the bench can be taken by any."""
    if request.param not in dist.Backend.backend_list:
        pytest.skip(f"this build has no torch.distributed backend {request.param}")
    return str(request.param)


# The command line


@pytest.mark.usefixtures("no_launcher")
def test_the_help_names_every_subject(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for subject in ("model", "ddp", "groups", "plot", "COLLECTIVE"):
        assert f"python -m collectives.bench {subject} " in text or f" {subject} " in text
    for subject in ("model", "ddp", "groups"):
        with pytest.raises(SystemExit) as stop:
            main([subject, "--help"])
        assert stop.value.code == 0
        assert f"python -m collectives.bench {subject} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["all_reduce", "-np", "2", "--peers", "noop"], "--api torch"),
        (["all_reduce", "-np", "2", "--api", "torch", "--algorithm", "inline"], "--algorithm inline"),
        (["model"], "-np 2"),
        (["model", "-np", "1"], "nothing to communicate"),
        (["model", "-np", "3"], "multiple of 192"),
        (["ddp", "-np", "1"], "nothing to communicate"),
        (["ddp", "-np", "2", "--layers", "0"], "--layers"),
        (["groups"], "-np 2"),
        (["groups", "-np", "2", "-J", "/proc/here/r.json"], "--json"),
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
        ("transformers", "model", ["model"]),
        ("torch", "torch", ["ddp"]),
        ("torch", "torch", ["groups"]),
        ("torch", "torch", ["all_reduce", "--api", "torch"]),
    ],
)
@pytest.mark.usefixtures("no_launcher")
def test_a_missing_package_is_told(
    package: str,
    extra: str,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    assert main([*arguments, "-np", "2"]) == 2
    assert f"needs {package}: pip install 'peer-collectives[{extra}]'" in capsys.readouterr().err


def test_an_unknown_backend_is_told_once() -> None:
    result = run([*BENCH, *PERCEPTRON, "-np", "2", "--backend", "morse"], PATIENCE)
    assert result.returncode == 2
    assert result.stderr.count("unknown torch.distributed backend 'morse'; --backend takes one of") == 1
    assert "Traceback" not in result.stderr


# What is reported


def test_communication_is_the_time_beyond_the_variant_without() -> None:
    times = {"ours": [3.0, 4.0, 9.0], "gloo": [12.0, 13.0, 13.0], "none": [2.0, 2.0, 3.0]}
    ours, gloo, none = compare.outcomes(times)
    assert (ours.time, ours.communication, ours.speed) == (4e3, 2e3, pytest.approx(1 / 2))
    assert (gloo.communication, gloo.to_gloo, none.communication) == (10e3, 1.0, 0.0)
    assert ours.to_gloo == pytest.approx(0.2)
    assert (none.speed, none.to_gloo) == (1.0, 0.0)
    # Gloo is not slower than nothing: there is no ratio to tell.
    assert compare.outcomes(times | {"gloo": [1.0, 1.0, 1.0]})[0].to_gloo is None


def losses(**series: list[float]) -> Any:
    return {name: SimpleNamespace(losses=values) for name, values in series.items()}


@pytest.mark.usefixtures("no_launcher")
def test_losses_that_differ_fail_and_so_do_losses_that_prove_nothing() -> None:
    with collectives.Communicator() as comm:

        def okay(**series: list[float]) -> bool:
            return bool(ddp._check(comm, losses(**series))[1]["okay"])

        assert okay(ours=[2.0, 1.0], gloo=[2.0, 1.0], none=[2.0, 1.1])
        assert not okay(ours=[2.0, 1.01], gloo=[2.0, 1.0], none=[2.0, 1.1])
        assert not okay(ours=[float("nan"), 1.0], gloo=[2.0, 1.0], none=[2.0, 1.1])
        assert not okay(ours=[2.0, 1.0], gloo=[2.0, 1.0], none=[2.0, 1.0])


# Real runs


def test_a_sweep_through_torch(backend: str, tmp_path: Path) -> None:
    numbers = tmp_path / "r.json"
    sweep = ["-b", "8", "-e", "8", "-n", "1", "-w", "0", "--rounds", "2", "-J", str(numbers)]
    through = ["--api", "torch", "--backend", backend, "--peers", "gloo,noop"]
    result = run([*BENCH, "all_reduce", "all_gather", "-np", "2", *through, *sweep], PATIENCE)
    assert result.returncode == 0, result.stdout + result.stderr
    reduced, gathered = rows_of(result.stdout)
    assert (reduced[8], reduced[12], gathered[8], gathered[12]) == ("N/A", "0", "0", "N/A")
    assert result.stdout.count("# ours - noop") == 2
    document = json.loads(numbers.read_text())
    assert (document["config"]["api"], document["config"]["backend"]) == ("torch", backend)
    row = document["results"][0]
    peers = row["in_place"]["peers"]
    assert (peers["gloo"]["nwrong"], peers["noop"]["nwrong"]) == (0, None)
    assert isinstance(peers["noop"]["excess"], float)  # of either sign on a busy machine
    summary = document["summaries"]["all_reduce"]["peers"]["noop"]["in_place"]
    assert (summary["excess_us"], summary["excess_size"]) == (peers["noop"]["excess"], 8)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_collective_through_torch(world: int, tmp_path: Path) -> None:
    numbers = tmp_path / "r.json"
    sweep = ["-b", "48", "-e", "48", "-d", "float32,complex64", "-r", "all", "-J", str(numbers), *QUICK]
    through = ["--api", "torch", "--peers", "gloo"]
    result = run([*BENCH, *cases.COLLECTIVES, "-np", str(world), *through, *sweep], PATIENCE)
    assert result.returncode == 0, result.stdout + result.stderr
    results = json.loads(numbers.read_text())["results"]
    assert len(results) == 2 * (5 + 4 * world)
    for row in results:
        name, in_place = row["experiment_name"], row["in_place"]
        form = "in_place" if name in ("all_reduce", "reduce", "broadcast") else "out_of_place"
        ours = row[form]
        assert ours["time"] > 0 and ours["nwrong"] == 0, row
        other = row["out_of_place"] if form == "in_place" else in_place
        assert other is None or other["time"] is None
        # Which gloo does not have: a gather of complex numbers, and a message to the rank itself.
        if (name, row["type"]) == ("gather", "complex64") or (name, world) == ("sendrecv", 1):
            continue
        assert (row["peers"]["gloo"]["form"], ours["peers"]["gloo"]["nwrong"]) == (form, 0), row


@needs_transformers
def test_a_llama(backend: str, tmp_path: Path) -> None:
    numbers = tmp_path / "r.json"
    result = run([*BENCH, *LLAMA, "-np", "2", "--backend", backend, "-J", str(numbers)], PATIENCE)
    assert result.returncode == 0, result.stdout + result.stderr
    label = f"{backend} (ours)" if backend == "collectives" else backend
    assert f" {label} " in result.stdout and "# results              : OK" in result.stdout
    document = json.loads(numbers.read_text())
    assert [one["name"] for one in document["results"]] == ["ours", "gloo", "none"]
    assert all(one["time"] > 0 and len(one["rounds"]) == 2 for one in document["results"])
    assert document["check"]["okay"] and 0 < document["check"]["logits"]["ours"] < 0.25
    assert (document["config"]["backend"], document["environment"]["world_size"]) == (backend, 2)
    assert document["environment"]["versions"]["transformers"]


@needs_transformers
def test_a_llama_whose_sums_lack_a_part_fails_the_run() -> None:
    result = run([*BENCH, *LLAMA, "-np", "2", "--backend", "fake"], PATIENCE)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "# results              : FAILED" in result.stdout


TORCHRUN = [
    str(Path(sys.prefix) / "bin" / "torchrun"),
    "--standalone",
    "--no-python",
    "--nproc-per-node",
    "2",
]


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_training_steps(launcher: str, backend: str, tmp_path: Path) -> None:
    command, extra = (TORCHRUN, {}) if launcher == "torchrun" else mpi_commands("Open MPI", 2)
    numbers = tmp_path / "r.json"
    arguments = [*PERCEPTRON, "--backend", backend, "-J", str(numbers)]
    result = run([*command, *BENCH, *arguments], PATIENCE, **extra)
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(numbers.read_text())
    assert document["environment"]["launcher"] == ("torchrun" if launcher == "torchrun" else "Open MPI")
    assert document["config"]["parameters"] == 2 * 65 * 64
    assert document["check"]["losses"]["ours"] <= document["check"]["tolerance"]
    assert [len(one["rounds"]) for one in document["results"]] == [3, 3, 3]


def test_what_groups_cost(backend: str, tmp_path: Path) -> None:
    numbers = tmp_path / "r.json"
    arguments = ["groups", "-np", "2", "--groups", "3", "--backend", backend, "-J", str(numbers)]
    result = run([*BENCH, *arguments], PATIENCE)
    assert result.returncode == 0, result.stdout + result.stderr
    cost = {(row["name"], row["which"]): row for row in json.loads(numbers.read_text())["results"]}
    assert len(cost) == 2 * len({"communicator", backend, "gloo", "fake"})
    first, more = cost["communicator", "first"], cost["communicator", "each of 3 more"]
    assert first["memfd"] > 0 and first["descriptors"] > 0 and first["microseconds"] is None
    assert more["descriptors"] == more["threads"] == 0  # a slice of what the process has
    gloo, fake = cost["gloo", "each of 3 more"], cost["fake", "each of 3 more"]
    assert gloo["threads"] > fake["threads"] == 0
    assert gloo["descriptors"] > fake["descriptors"] == 0
    assert all(row["microseconds"] > 0 for row in (more, gloo, fake))
    table = [line for line in result.stdout.splitlines() if line.startswith("| ")]
    assert len(table) == 1 + len(cost)
