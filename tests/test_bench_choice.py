"""``bench choice``: the automatic algorithm beside the forced ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_program import BENCH, run

from collectives.bench.choice import Choice, table
from collectives.bench.sweep import Measurement, PeerResult, Row


def row(times: dict[str, float | None], mine: float) -> Row:
    peers = {
        name: PeerResult(time=t, ratio=None if t is None else t / mine, nwrong=0) for name, t in times.items()
    }
    measured = Measurement(time=mine, nwrong=0, algorithm="one_shot", peers=peers)
    return Row("all_reduce", 1024, 256, "float32", "sum", 0, out_of_place=measured)


def test_what_a_choice_loses() -> None:
    found = Choice.of(row({"inline": None, "one_shot": 3e-6, "two_shot": 2e-6}, 3e-6), "out_of_place")
    assert found is not None and found.best == "two_shot" and found.loss == pytest.approx(1.5)
    assert Choice.of(row({"one_shot": 1e-6}, 1e-6), "in_place") is None
    lines = table([found])
    assert "N/A" in lines[2] and lines[2].split()[-2:] == ["two_shot", "1.50"]
    assert "0 of 1 choices; the worst takes 1.50 x the best" in lines[-1]


@pytest.mark.parametrize("world", [1, 3])
def test_a_run(world: int, tmp_path: Path) -> None:
    numbers = tmp_path / "r.json"
    sweep = ["-b", "8", "-e", "8K", "-f", "32", "--rounds", "1", "-J", str(numbers)]
    result = run([*BENCH, "choice", "all_reduce", "broadcast", "-np", str(world), *sweep])
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(numbers.read_text())
    assert document["check"]["okay"] and document["check"]["of"] == len(document["results"]) == 9
    for one in document["results"]:
        assert one["time"] > 0 and one["loss"] > 0 and one["algorithm"] in one["forced"]
        assert one["forced"][one["algorithm"]] is not None
    assert "# results              : OK" in result.stdout
