"""The bench as users start it: by itself, with every dtype and root, and with a wrong result."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from bench_program import BENCH, QUICK, rows_of, run

from collectives.bench import cases

REDUCIBLE = [
    (dtype, op) for dtype in cases.DTYPES for op in cases.OPS if cases.supports("all_reduce", dtype, op)
]


def test_a_run_by_itself(tmp_path: Path) -> None:
    numbers, picture = tmp_path / "new" / "r.json", tmp_path / "new" / "p.png"
    sweep = ["-b", "8", "-e", "256K", "-f", "32", "-J", str(numbers), "--plot", str(picture), *QUICK]
    result = run([*BENCH, *cases.COLLECTIVES, "-np", "2", *sweep])
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("# Out of bounds values : 0 OK") == len(cases.COLLECTIVES)
    rows = rows_of(result.stdout)
    assert [row[0] for row in rows] == ["8", "256", "8192", "262144"] * len(cases.COLLECTIVES)
    assert {row[8] for row in rows} == {row[12] for row in rows} == {"0", "N/A"}
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
    assert (gather["root"], gather["out_of_place"]["bus_bw"]) == (-1, gather["out_of_place"]["alg_bw"] / 2)
    for row in document["results"]:
        name = row["experiment_name"]
        assert (row["out_of_place"] is None) == (name == "broadcast")
        assert (row["in_place"] is None) == (name == "sendrecv")
        assert row["root"] == (0 if name in ("reduce", "gather", "scatter", "broadcast") else -1)
        assert (row["algorithm"] is None) == (name == "sendrecv")

    again = run([*BENCH, "plot", str(numbers), str(tmp_path / "again.png")])
    assert again.returncode == 0, again.stderr
    assert again.stdout.strip() == str(tmp_path / "again.png")
    assert run([*BENCH, "plot", str(tmp_path / "none.json"), "x.png"]).returncode == 2


def test_every_dtype_and_operator() -> None:
    sweep = ["-b", "7680", "-e", "7680", "-d", "all", "-o", "all", "-n", "1", "-w", "0", "--rounds", "1"]
    result = run([*BENCH, *cases.COLLECTIVES, "-np", "3", "-r", "2", *sweep], 300)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = rows_of(result.stdout)
    assert len(rows) == 3 * len(REDUCIBLE) + 6 * len(cases.DTYPES)
    assert [row[8] for row in rows].count("N/A") == len(cases.DTYPES)  # broadcast
    assert [row[12] for row in rows].count("N/A") == len(cases.DTYPES)  # sendrecv
    assert {row[8] for row in rows} == {row[12] for row in rows} == {"0", "N/A"}


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_root_and_empty_messages(world: int) -> None:
    sweep = ["-b", "0", "-e", "90K", "-i", "45K", "-d", "complex64", "-r", "all", *QUICK]
    result = run([*BENCH, *cases.COLLECTIVES, "-np", str(world), *sweep])
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("# Out of bounds values : 0 OK") == len(cases.COLLECTIVES)
    roots = [row[4] for row in rows_of(result.stdout)]
    assert len(roots) == 3 * (5 + 4 * world)
    assert {root: roots.count(root) for root in set(roots)} == {"-1": 15} | {str(r): 12 for r in range(world)}


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
