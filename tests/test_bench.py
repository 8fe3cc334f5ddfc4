"""The bench: sizes, inputs with an exactly known result, what counts as wrong, reports, and real runs."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from collectives.bench import cases, plot, report, verify
from collectives.bench.cases import Case, numpy_dtype
from collectives.bench.cli import main
from collectives.bench.host import load_warning
from collectives.bench.sweep import Measurement, PeerResult, Row

BENCH = [sys.executable, "-m", "collectives.bench"]
QUICK = ["-n", "2", "-w", "1", "--rounds", "2"]
WORLDS = (1, 2, 3, 4, 5, 8, 17)
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


# Sizes and names


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8", 8),
        ("1K", 1024),
        ("64M", 64 << 20),
        ("1G", 1 << 30),
        ("1.5k", 1536),
        ("2MiB", 2 << 20),
        ("4KB", 4096),
    ],
)
def test_sizes_have_binary_units(text: str, size: int) -> None:
    assert cases.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "-8", "8X", "1e6"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        cases.parse_size(text)


def test_sweeps_multiply_or_add() -> None:
    assert list(cases.sweep_sizes(8, 64)) == [8, 16, 32, 64]
    assert list(cases.sweep_sizes(8, 100, factor=3)) == [8, 24, 72]
    assert list(cases.sweep_sizes(8, 40, step=16)) == [8, 24, 40]
    assert list(cases.sweep_sizes(0, 4)) == [0, 1, 2, 4]


@pytest.mark.parametrize("world", WORLDS)
def test_size_is_the_larger_side(world: int) -> None:
    size, itemsize = 1000, 4
    reduced = cases.shape_of("all_reduce", size, itemsize, world)
    assert (reduced.send, reduced.receive, reduced.count) == (250, 250, 250)
    gathered = cases.shape_of("all_gather", size, itemsize, world)
    assert (gathered.send, gathered.receive, gathered.count) == (
        250 // world,
        250 // world * world,
        250 // world,
    )
    scattered = cases.shape_of("reduce_scatter", size, itemsize, world)
    assert (scattered.send, scattered.receive, scattered.count) == (
        gathered.receive,
        gathered.send,
        250 // world,
    )
    assert gathered.total == scattered.total <= 250


def test_bus_factors_are_those_of_nccl_tests() -> None:
    assert cases.bus_factor("all_reduce", 4) == 1.5
    assert cases.bus_factor("all_gather", 4) == cases.bus_factor("reduce_scatter", 4) == 0.75
    assert cases.bus_factor("broadcast", 4) == 1.0


def test_names_of_nccl_tests_are_understood() -> None:
    assert cases.parse_dtype("half") == "float16"
    assert cases.parse_dtype("f8e4m3") == "float8_e4m3fn"
    assert cases.parse_op("prod") == "product"
    for bad in ("float128", "FLOAT"):
        with pytest.raises(ValueError, match="unknown datatype"):
            cases.parse_dtype(bad)


# Inputs with an exactly known result


def combine(dtype: str, op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One step of a reduction in the dtype itself, rounded at once, as a careless peer does it."""
    if dtype == "bool":
        return {"and": np.logical_and, "xor": np.logical_xor}.get(verify._LOGICAL[op], np.logical_or)(a, b)
    steps = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}
    bitwise = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
    return (steps | bitwise)[op](a, b)


@pytest.mark.parametrize(("dtype", "op"), [case for case in REDUCIBLE if case[1] != "avg"])
def test_results_are_exact_in_every_order(dtype: str, op: str) -> None:
    count, random = 400, np.random.default_rng(1)
    for world in WORLDS:
        inputs = [verify.table("all_reduce", dtype, op, r, world, 5, count) for r in range(world)]
        expected = verify.reduced_table(dtype, op, world, 5, count)
        assert expected.dtype == numpy_dtype(dtype)
        for _ in range(4):
            first, *others = random.permutation(world)
            total = inputs[first]
            for other in others:
                total = combine(dtype, op, total, inputs[other])
            assert verify.count_wrong(total, expected) == 0
        if dtype in cases.FLOATS:
            assert np.isfinite(expected.astype(np.float64)).all()


ARITHMETIC = [(dtype, op) for dtype, op in REDUCIBLE if dtype != "bool" and op in ("sum", "avg", "product")]


@pytest.mark.parametrize(("dtype", "op"), ARITHMETIC)
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_results_agree_with_arithmetic_without_rounding(dtype: str, op: str, world: int) -> None:
    count, kind = 60, numpy_dtype(dtype)
    inputs = [verify.table("all_reduce", dtype, op, r, world, 9, count) for r in range(world)]
    got = verify.reduced_table(dtype, op, world, 9, count)
    for i in range(count):
        if dtype in cases.INTEGERS:
            values = [int(x[i]) for x in inputs]
            exact = math.prod(values) if op == "product" else sum(values)
            if op == "avg":
                exact = math.trunc(Fraction(exact, world))
            assert int(got[i]) == exact
            continue
        fractions = [Fraction(float(x[i])) for x in inputs]
        total = math.prod(fractions) if op == "product" else sum(fractions)
        if op == "avg":
            wide = np.float64 if dtype == "float64" else np.float32
            assert float(got[i]) == float((wide(float(total)) / wide(world)).astype(kind))
        else:
            assert Fraction(float(got[i])) == total


def test_inputs_differ_between_ranks_seeds_and_offsets() -> None:
    for dtype, op in REDUCIBLE:
        if dtype == "bool":
            continue
        a, b, c = (verify.table("all_reduce", dtype, op, r, 2, s, 300) for r, s in ((0, 1), (1, 1), (0, 2)))
        assert verify.count_wrong(a, b) > 100
        assert verify.count_wrong(a, c) > 100
        assert verify.count_wrong(a[:256].copy(), a[44:].copy()) > 50


def case_of(collective: str, dtype: str, world: int, rank: int, in_place: bool) -> Case:
    kind, k = numpy_dtype(dtype), 37
    whole, part = np.zeros(k * world, kind), np.zeros(k, kind)
    own = whole[rank * k : (rank + 1) * k] if in_place else part
    x, out = {"all_gather": (own, whole), "reduce_scatter": (whole, own)}.get(collective, (whole, whole))
    if collective == "all_reduce" and not in_place:
        out = np.zeros_like(whole)
    return Case(collective, x, out, in_place, dtype, "sum", root=world - 1)


def perform(group: list[Case]) -> None:
    """What the collective promises, in one process; sums of exact inputs need no care."""
    inputs, k = [case.x.copy() for case in group], len(group[0].x)
    for rank, case in enumerate(group):
        if case.collective == "all_gather":
            case.out[:] = np.concatenate(inputs)
        elif case.collective == "broadcast":
            case.out[:] = inputs[case.root]
        else:
            total = inputs[0]
            for x in inputs[1:]:
                total = combine(case.dtype, "sum", total, x)
            k = len(case.out)
            case.out[:] = total[rank * k : (rank + 1) * k] if case.collective == "reduce_scatter" else total


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "int16", "bool"])
@pytest.mark.parametrize("collective", cases.COLLECTIVES)
def test_one_corrupted_element_is_one_wrong(collective: str, dtype: str, in_place: bool) -> None:
    world = 3
    group = [case_of(collective, dtype, world, rank, in_place) for rank in range(world)]
    verifiers = [verify.Verifier(case, rank, world, seed=3) for rank, case in enumerate(group)]
    for verifier in verifiers:
        verifier.prepare()
    assert sum(verifier.wrong() for verifier in verifiers) > 0  # nothing has been communicated yet
    perform(group)
    assert [verifier.wrong() for verifier in verifiers] == [0] * world
    group[1].out.view(np.uint8)[-1] ^= 1
    assert [verifier.wrong() for verifier in verifiers] == [0, 1, 0]


def test_long_arrays_are_checked_to_the_end() -> None:
    count = 2 * verify.PERIOD + 1001
    source = verify.table("all_reduce", "float32", "sum", 0, 2, 1)
    data = np.empty(count, np.float32)
    verify.fill(data, source, start=77)
    assert verify.count_wrong(data, source, start=77) == 0
    assert verify.count_wrong(data, source, start=78) > count // 2
    data.view(np.uint32)[[0, verify.PERIOD, count - 1]] ^= 1
    assert verify.count_wrong(data, source, start=77) == 3
    halves = np.zeros(10, np.complex128)
    halves.imag[4] = 1
    assert verify.count_wrong(halves, np.zeros(10, np.complex128)) == 1


# Reports


def test_the_table_never_shows_a_number_for_what_was_not_measured() -> None:
    row = Row("broadcast", 64, 16, "float32", "sum", 1, None, Measurement(peers={"mpi": PeerResult()}))
    assert report.table_line(row, ["mpi"]).split() == ["64", "16", "float", "none", "1", *["N/A"] * 11]
    summary = report.summarize([row], ["mpi"])
    assert "mpi / ours           : N/A" in report.footer(summary, ["mpi"])
    assert "Avg bus bandwidth    : N/A" in report.footer(summary, ["mpi"])


def test_the_footer_has_geometric_mean_and_minimum() -> None:
    rows = []
    for size, ratio in ((8, 4.0), (16, 1.0)):
        m = Measurement(1e-6, 1.0, 2.0, 0, "inline", 10, {"mpi": PeerResult(ratio * 1e-6, ratio, 0)})
        rows.append(Row("all_reduce", size, size // 4, "float32", "sum", 0, m, None))
    text = report.footer(report.summarize(rows, ["mpi"]), ["mpi"])
    assert "# Out of bounds values : 0 OK" in text
    assert "# Avg bus bandwidth    : 2" in text
    assert "# mpi / ours           : out-of-place geometric mean 2.00x, minimum 1.00x at 16 B" in text
    rows[0].out_of_place.peers["mpi"].nwrong = 5
    assert "WRONG:5" in report.table_line(rows[0], ["mpi"])


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "N/A"), (0.171, "0.17"), (12345.678, "12345.7"), (1234567.8, "1234568"), (1e9, "1.0e+09")],
)
def test_numbers_fit_their_columns(value: float | None, text: str) -> None:
    assert report.number(value, 7) == text


def test_small_ratios_keep_two_digits() -> None:
    values = (None, 1234567.0, 2.0, 0.0432, 0.0043, 0.00043, 0.0000431)
    texts = [report.ratio_text(value) for value in values]
    assert texts == ["N/A", "1.2e+06", "2.00", "0.043", "0.0043", "4e-04", "4e-05"]


def test_a_load_beyond_the_cores_is_told() -> None:
    facts = {"cores": 2.0, "world_size": 2}
    assert load_warning([], facts) is None
    assert load_warning([0.3, 2.2], facts) is None  # the ranks themselves
    told = load_warning([3.1, 0.5], facts)
    assert told is not None and "3.1" in told and "2 usable cores" in told
    assert told in report.footer(report.summarize([], []), [], told).splitlines()[-1]


def test_the_picture_compares_like_with_like() -> None:
    both = {"size": 8, "out_of_place": {"time": 1.0}, "in_place": {"time": 2.0}, "memcpy": 3.0}

    def drawn(**peers: str) -> list[tuple[str, str]]:
        told = {name: {"time": 9.0, "form": form} for name, form in peers.items()}
        return [line[:2] for line in plot._series([both | {"peers": told}])]

    ours, memcpy = ("collectives", "out_of_place"), ("memcpy", "")
    assert drawn() == [ours, memcpy]
    assert drawn(mpi="out_of_place") == [ours, ("mpi", "out_of_place"), memcpy]
    assert drawn(gloo="in_place") == [ours, ("collectives", "in_place"), ("gloo", "in_place"), memcpy]
    only = both | {"out_of_place": None, "peers": {}}
    assert [line[:2] for line in plot._series([only])] == [("collectives", "in_place"), memcpy]


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
