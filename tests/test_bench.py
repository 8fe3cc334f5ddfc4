"""The bench: sizes, inputs with an exactly known result, and what counts as wrong."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from collectives.bench import cases, verify
from collectives.bench.cases import Case, numpy_dtype

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


# nccl-tests' input, output and count, in elements, where n fit a row and p of them are a rank's part.
SIZES = {
    "all_reduce": lambda n, p, world: (n, n, n),
    "reduce": lambda n, p, world: (n, n, n),
    "broadcast": lambda n, p, world: (n, n, n),
    "sendrecv": lambda n, p, world: (n, n, n),
    "all_gather": lambda n, p, world: (p, p * world, p),
    "gather": lambda n, p, world: (p, p * world, p),
    "reduce_scatter": lambda n, p, world: (p * world, p, p),
    "scatter": lambda n, p, world: (p * world, p, p),
    "all_to_all": lambda n, p, world: (p * world, p * world, p),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("collective", cases.COLLECTIVES)
def test_size_is_the_larger_side(collective: str, world: int) -> None:
    shape = cases.shape_of(collective, 1003, 4, world)
    assert (shape.send, shape.receive, shape.count) == SIZES[collective](250, 250 // world, world)
    assert shape.total == max(shape.send, shape.receive) <= 250


def test_bus_factors_are_those_of_nccl_tests() -> None:
    factors = {name: cases.bus_factor(name, 4) for name in cases.COLLECTIVES}
    assert factors == {
        "all_reduce": 1.5,
        "reduce": 1.0,
        "all_gather": 0.75,
        "gather": 0.75,
        "reduce_scatter": 0.75,
        "scatter": 0.75,
        "all_to_all": 0.75,
        "broadcast": 1.0,
        "sendrecv": 1.0,
    }


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
        if dtype in cases.FLOATS + cases.COMPLEX:
            assert np.isfinite(expected.astype(np.complex128)).all()


ARITHMETIC = [(dtype, op) for dtype, op in REDUCIBLE if dtype != "bool" and op in ("sum", "avg", "product")]


@pytest.mark.parametrize(("dtype", "op"), ARITHMETIC)
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_results_agree_with_arithmetic_without_rounding(dtype: str, op: str, world: int) -> None:
    inputs = [verify.table("all_reduce", dtype, op, r, world, 9, 60) for r in range(world)]
    got = verify.reduced_table(dtype, op, world, 9, 60)
    if dtype in cases.COMPLEX:
        dtype = verify._REALS[dtype]
        inputs, got = [x.view(dtype) for x in inputs], got.view(dtype)
    kind = numpy_dtype(dtype)
    for i in range(len(got)):
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


FORMS = [
    (name, in_place)
    for name, facts in cases.COLLECTIVES.items()
    for in_place in (False, True)
    if (facts.in_place if in_place else facts.out_of_place)
]


def case_of(collective: str, dtype: str, world: int, rank: int, in_place: bool) -> Case:
    kind = numpy_dtype(dtype)
    shape = cases.shape_of(collective, 37 * world * kind.itemsize, kind.itemsize, world)
    x, out = np.zeros(shape.send, kind), np.zeros(shape.receive, kind)
    if in_place and shape.send < shape.receive:
        x = out[rank * shape.count : (rank + 1) * shape.count]
    elif in_place:
        out = x if shape.send == shape.receive else x[rank * shape.count : (rank + 1) * shape.count]
    return Case(collective, x, out, in_place, dtype, "sum", root=world - 1)


def perform(group: list[Case]) -> None:
    """What the collective promises, in one process; sums of exact inputs need no care."""
    name, root, world = group[0].collective, group[0].root, len(group)
    inputs = [case.x.copy() for case in group]
    total = inputs[0]
    for x in inputs[1:]:
        total = combine(group[0].dtype, "sum", total, x)
    parts = [np.split(x, world) for x in inputs] if name in ("scatter", "all_to_all") else []
    for rank, case in enumerate(group):
        if name in ("all_gather", "gather"):
            result = np.concatenate(inputs)
        elif name == "broadcast":
            result = inputs[root]
        elif name == "scatter":
            result = parts[root][rank]
        elif name == "all_to_all":
            result = np.concatenate([of[rank] for of in parts])
        elif name == "sendrecv":
            result = inputs[rank - 1]
        else:
            result = np.split(total, world)[rank] if name == "reduce_scatter" else total
        if name not in ("reduce", "gather") or rank == root:
            case.out[:] = result


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "int16", "bool", "complex128"])
@pytest.mark.parametrize(("collective", "in_place"), FORMS)
def test_one_corrupted_element_is_one_wrong(collective: str, in_place: bool, dtype: str, world: int) -> None:
    group = [case_of(collective, dtype, world, rank, in_place) for rank in range(world)]
    verifiers = [verify.Verifier(case, rank, world, seed=3) for rank, case in enumerate(group)]
    for verifier in verifiers:
        verifier.prepare()
    if world > 1 or not in_place:  # nothing has been communicated yet
        assert sum(verifier.wrong() for verifier in verifiers) > 0
    perform(group)
    assert [verifier.wrong() for verifier in verifiers] == [0] * world
    # Of reduce and gather the last rank is the root, and nobody looks at what the others have.
    for rank, case in enumerate(group):
        looks = collective not in ("reduce", "gather") or rank == world - 1
        case.out.view(np.uint8)[-1] ^= 1
        assert [verifier.wrong() for verifier in verifiers] == [
            int(looks and r == rank) for r in range(world)
        ]
        case.out.view(np.uint8)[-1] ^= 1


def test_what_a_rank_sends_to_the_wrong_place_is_wrong() -> None:
    world = 3
    for name, shift in (("all_to_all", 37), ("scatter", 37), ("gather", 37)):
        group = [case_of(name, "int32", world, rank, in_place=False) for rank in range(world)]
        verifiers = [verify.Verifier(case, rank, world, seed=3) for rank, case in enumerate(group)]
        for verifier in verifiers:
            verifier.prepare()
        if name == "scatter":
            group[2].x[:] = np.roll(group[2].x, shift)
        perform(group)
        if name != "scatter":
            group[2].out[:] = np.roll(group[2].out, shift)
        assert sum(verifier.wrong() for verifier in verifiers) > 90


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
