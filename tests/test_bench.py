"""The bench: sizes, inputs with an exactly known result, what counts as wrong, reports, and real runs."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from collectives.bench import cases, plot, report, verify
from collectives.bench.cases import Case, numpy_dtype
from collectives.bench.host import load_warning
from collectives.bench.sweep import Measurement, PeerResult, Row

WORLDS = (1, 2, 3, 4, 5, 8, 17)
REDUCIBLE = [
    (dtype, op) for dtype in cases.DTYPES for op in cases.OPS if cases.supports("all_reduce", dtype, op)
]


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
