"""Bad input: every rank raises at once and in words, and the communicator is usable afterwards."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
import pytest
from numpy.lib.stride_tricks import as_strided
from ranks import Outcome, Pool, attempt

SOON = 1.0  # seconds in which every rank must have raised


def good(comm: Any) -> None:
    """Correct calls of three sizes, to show that the communicator is usable."""
    for count in (1, 1000, 200_000):
        x = comm.all_reduce(np.full(count, comm.rank + 1.0, np.float32))
        assert (x == comm.world_size * (comm.world_size + 1) // 2).all()
    assert comm.healthy


def call(comm: Any, how: dict[str, Any]) -> Any:
    """One call described as data, on an array of `count` (10) elements of `dtype` (float32)."""
    how = dict(how)
    method = how.pop("collective", "all_reduce")
    if method == "barrier":
        return comm.barrier()
    x = np.zeros(how.pop("count", 10), oracle.numpy_dtype(how.pop("dtype", "float32")))
    return getattr(comm, method)(x, **how)


def differing(comm: Any, common: dict[str, Any], odd: dict[str, Any], odd_rank: int) -> Any:
    return call(comm, {**common, **odd} if comm.rank == odd_rank else common)


def assert_all(outcomes: list[Outcome], error: str, culprits: tuple[int, ...] | None, *words: str) -> None:
    for outcome in outcomes:
        assert outcome.error == error, outcome
        assert outcome.elapsed < SOON, outcome
        for word in words:
            assert word in outcome.text, f"{word!r} is not in: {outcome.text}"
        if culprits is not None:
            assert outcome.ranks == culprits, outcome


MISMATCHES = {
    "op": ({"op": "sum"}, {"op": "max"}, ("sum", "max")),
    "dtype": ({"dtype": "float32"}, {"dtype": "float16"}, ("float32", "float16")),
    "dtype of one size": ({"dtype": "int32"}, {"dtype": "float32"}, ("int32", "float32")),
    "count": ({"count": 100}, {"count": 200}, ("100", "200")),
    "count and algorithm": ({"count": 5}, {"count": 500_000}, ("5", "500000")),
    "empty": ({"count": 0}, {"count": 7}, ("0", "7")),
    "root": ({"collective": "broadcast", "root": 0}, {"root": 1}, ("broadcast", "0", "1")),
    "collective": ({"count": 8}, {"collective": "all_gather"}, ("all_reduce", "all_gather")),
    "barrier": ({"count": 8}, {"collective": "barrier"}, ("all_reduce", "barrier")),
    "algorithm": (
        {"count": 5000, "algorithm": "one_shot"},
        {"algorithm": "two_shot"},
        ("one_shot", "two_shot"),
    ),
    "large": ({"count": 300_000, "op": "min"}, {"op": "product"}, ("min", "product")),
    "shard": (
        {"collective": "reduce_scatter", "count": 120, "op": "sum"},
        {"count": 240},
        ("reduce_scatter",),
    ),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_ranks_that_disagree(pools: Any, name: str) -> None:
    common, odd, words = MISMATCHES[name]
    for world in (2, 3, 5):
        for odd_rank in {0, world - 1}:
            outcomes = pools(world).outcomes(differing, common, odd, odd_rank, limit=20)
            assert_all(outcomes, "MismatchError", None, *words, f"rank {odd_rank}")
            assert {outcome.ranks for outcome in outcomes} == {outcomes[0].ranks}, (
                "the ranks blame different ranks"
            )
            assert odd_rank in outcomes[0].ranks
            assert len({outcome.epoch for outcome in outcomes}) == 1
            pools(world).run(good)


def test_each_rank_its_own_count(pool: Pool) -> None:
    if pool.world == 1:
        pytest.skip("needs two ranks")
    outcomes = pool.outcomes(own_count, limit=20)
    assert_all(outcomes, "MismatchError", None, "100", "101")
    pool.run(good)


def own_count(comm: Any) -> None:
    comm.all_reduce(np.zeros(100 + comm.rank, np.float32))


def read_only() -> np.ndarray[Any, Any]:
    x = np.zeros(10, np.float32)
    x.flags.writeable = False
    return x


def f32(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.float32)


class Unexportable:
    """Looks like an array, but its memory cannot be had."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("no")

    def __dlpack_device__(self) -> Any:
        return (1, 0)


def overlapping(comm: Any) -> Any:
    base = f32(20)
    return comm.all_reduce(base[:10], base[5:15])


def overlapping_gather(comm: Any) -> Any:
    base = f32(10 * comm.world_size + 1)
    start = comm.rank * 10 + 1
    return comm.all_gather(base[start : start + 10], base[:-1])


def overlapping_itself(comm: Any) -> Any:
    window = as_strided(f32(20), (4, 4), (4, 4))
    return comm.all_reduce(window)


Bad = Callable[[Any], Any]
TYPE, VALUE, EITHER = ("TypeError",), ("ValueError",), ("TypeError", "ValueError")
# name: (the bad call, the errors it may raise, the collective that the other ranks call meanwhile)
BAD_CALLS: dict[str, tuple[Bad, tuple[str, ...], str]] = {
    "object dtype": (lambda c: c.all_reduce(np.array([None] * 10)), TYPE, "all_reduce"),
    "datetime64": (lambda c: c.all_reduce(np.zeros(10, "datetime64[s]")), TYPE, "all_reduce"),
    "string dtype": (lambda c: c.all_reduce(np.array(["a"] * 10)), TYPE, "all_reduce"),
    "bytes dtype": (lambda c: c.all_reduce(np.array([b"a"] * 10)), TYPE, "all_reduce"),
    "structured": (lambda c: c.all_reduce(np.zeros(10, [("a", "f4"), ("b", "i4")])), TYPE, "all_reduce"),
    "long double": (lambda c: c.all_reduce(np.zeros(10, np.longdouble)), TYPE, "all_reduce"),
    "big endian": (lambda c: c.all_reduce(np.zeros(10, ">f4")), TYPE, "all_reduce"),
    "no array": (lambda c: c.all_reduce("text"), TYPE, "all_reduce"),
    "None": (lambda c: c.all_reduce(None), TYPE, "all_reduce"),
    "a list": (lambda c: c.all_reduce([1.0, 2.0]), TYPE, "all_reduce"),
    "a number": (lambda c: c.all_reduce(1.0), TYPE, "all_reduce"),
    "unexportable": (lambda c: c.all_reduce(Unexportable()), EITHER, "all_reduce"),
    "unknown op": (lambda c: c.all_reduce(f32(10), op="mean"), VALUE, "all_reduce"),
    "op of a wrong type": (lambda c: c.all_reduce(f32(10), op=3), EITHER, "all_reduce"),
    "op with NUL": (lambda c: c.all_reduce(f32(10), op="sum\0"), VALUE, "all_reduce"),
    "unknown algorithm": (lambda c: c.all_reduce(f32(10), algorithm="ring"), VALUE, "all_reduce"),
    "inline too large": (lambda c: c.all_reduce(f32(11), algorithm="inline"), VALUE, "all_reduce"),
    "two_shot all_gather": (lambda c: c.all_gather(f32(10), algorithm="two_shot"), VALUE, "all_gather"),
    "one_shot reduce_scatter": (
        lambda c: c.reduce_scatter(f32(10 * c.world_size), algorithm="one_shot"),
        VALUE,
        "reduce_scatter",
    ),
    "two_shot broadcast": (lambda c: c.broadcast(f32(10), algorithm="two_shot"), VALUE, "broadcast"),
    "band on floats": (lambda c: c.all_reduce(f32(10), op="band"), EITHER, "all_reduce"),
    "bxor on bfloat16": (
        lambda c: c.all_reduce(np.zeros(10, oracle.numpy_dtype("bfloat16")), op="bxor"),
        EITHER,
        "all_reduce",
    ),
    "avg on bool": (lambda c: c.all_reduce(np.zeros(10, bool), op="avg"), EITHER, "all_reduce"),
    "complex product": (lambda c: c.all_reduce(np.zeros(10, "c8"), op="product"), VALUE, "all_reduce"),
    "complex128 max": (
        lambda c: c.reduce_scatter(np.zeros(10 * c.world_size, "c16"), op="max"),
        EITHER,
        "reduce_scatter",
    ),
    "read-only in place": (lambda c: c.all_reduce(read_only()), VALUE, "all_reduce"),
    "read-only out": (lambda c: c.all_reduce(f32(10), read_only()), VALUE, "all_reduce"),
    "read-only broadcast": (
        lambda c: c.broadcast(read_only(), (c.rank + 1) % c.world_size),
        VALUE,
        "broadcast",
    ),
    "bytes": (lambda c: c.all_reduce(b"0123456789"), EITHER, "all_reduce"),
    "overlap": (overlapping, VALUE, "all_reduce"),
    "overlap of all_gather": (overlapping_gather, VALUE, "all_gather"),
    "self-overlap": (overlapping_itself, VALUE, "all_reduce"),
    "stride 0 in place": (lambda c: c.all_reduce(np.broadcast_to(f32(1), (10,))), VALUE, "all_reduce"),
    "stride 0 out": (
        lambda c: c.all_reduce(f32(10), as_strided(f32(1), (10,), (0,))),
        VALUE,
        "all_reduce",
    ),
    "small out": (lambda c: c.all_reduce(f32(10), f32(9)), VALUE, "all_reduce"),
    "large out": (lambda c: c.all_reduce(f32(10), f32(11)), VALUE, "all_reduce"),
    "out of another shape": (lambda c: c.all_reduce(f32(2, 5), f32(5, 2)), VALUE, "all_reduce"),
    "out of another dtype": (lambda c: c.all_reduce(f32(10), np.zeros(10)), EITHER, "all_reduce"),
    "small all_gather out": (
        lambda c: c.all_gather(f32(10), f32(10 * c.world_size - 1)),
        VALUE,
        "all_gather",
    ),
    "large reduce_scatter out": (
        lambda c: c.reduce_scatter(f32(10 * c.world_size), f32(11)),
        VALUE,
        "reduce_scatter",
    ),
    "indivisible": (lambda c: c.reduce_scatter(f32(10 * c.world_size + 1)), VALUE, "reduce_scatter"),
    "0-d reduce_scatter": (lambda c: c.reduce_scatter(np.float32(1).reshape(())), VALUE, "reduce_scatter"),
    "root too large": (lambda c: c.broadcast(f32(10), c.world_size), VALUE, "broadcast"),
    "negative root": (lambda c: c.broadcast(f32(10), -1), VALUE, "broadcast"),
    "huge root": (lambda c: c.broadcast(f32(10), 2**70), VALUE, "broadcast"),
    "root of a wrong type": (lambda c: c.broadcast(f32(10), "0"), EITHER, "broadcast"),
}


# In a world of one these are right: rank 0 is the root, and everything divides by 1.
NEED_PEERS = {"read-only broadcast", "indivisible"}


def refused_on(comm: Any, name: str, bad_ranks: list[int], times: int) -> list[Outcome]:
    """`times` calls in a row that are bad on some ranks and right on the others."""
    bad, _, collective = BAD_CALLS[name]
    count = 10 * comm.world_size if collective == "reduce_scatter" else 10
    outcomes = []
    for _ in range(times):
        if comm.rank in bad_ranks:
            outcomes.append(attempt(comm.rank, bad, comm))
        else:
            outcomes.append(attempt(comm.rank, call, comm, {"collective": collective, "count": count}))
        outcomes[-1].value = None
    return outcomes


def assert_refused(results: list[list[Outcome]], name: str, bad_ranks: list[int]) -> None:
    _, errors, collective = BAD_CALLS[name]
    for rank, outcomes in enumerate(results):
        for outcome in outcomes:
            assert outcome.elapsed < SOON, outcome
            if rank in bad_ranks:
                assert outcome.error in errors, outcome
                assert len(outcome.text) > 5, outcome
            else:
                assert outcome.error == "RefusedError", outcome
                assert outcome.ranks == tuple(bad_ranks), outcome
                assert outcome.collective == collective, outcome
                assert f"rank {bad_ranks[0]}" in outcome.text, outcome


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_call_on_one_rank(pools: Any, name: str) -> None:
    for world in (2, 3):
        for bad_rank in {0, world - 1}:
            results = pools(world).run(refused_on, name, [bad_rank], 1, limit=20)
            assert_refused(results, name, [bad_rank])
            pools(world).run(good)


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_call_on_every_rank(pools: Any, name: str) -> None:
    for world in (3,) if name in NEED_PEERS else (1, 3):
        assert_refused(
            pools(world).run(refused_on, name, list(range(world)), 3, limit=20), name, list(range(world))
        )
        pools(world).run(good)


def test_a_rank_is_refused_many_times(pools: Any) -> None:
    for world in (2, 5):
        results = pools(world).run(refused_on, "small out", [1], 300, limit=60)
        assert_refused(results, "small out", [1])
        pools(world).run(good)


def changing_trouble(comm: Any, rounds: int) -> list[str]:
    """Refusals by changing ranks, mismatches and good calls, mixed: nobody may lose count."""
    seen = []
    for i in range(rounds):
        bad = comm.rank == i % comm.world_size
        if i % 3 == 0:
            outcome = attempt(
                comm.rank, lambda bad=bad: comm.all_reduce(f32(10), op="mean" if bad else "sum")
            )
        elif i % 3 == 1:
            outcome = attempt(comm.rank, lambda bad=bad: comm.all_reduce(f32(20 if bad else 10)))
        else:
            outcome = attempt(comm.rank, good, comm)
        seen.append(outcome.error)
    return seen


def test_trouble_of_every_kind_in_turn(pools: Any) -> None:
    for world in (2, 3, 5):
        results = pools(world).run(changing_trouble, 90)
        for rank, seen in enumerate(results):
            for i, error in enumerate(seen):
                refused = "ValueError" if i % world == rank else "RefusedError"
                assert error == (refused, "MismatchError", "")[i % 3], (rank, i, error)


def test_untouched_when_refused(pools: Any) -> None:
    """Bad input raises before data moves: outputs keep their values on every rank."""
    for outcomes in pools(3).run(values_after_refusal):
        assert outcomes == [[7.0], [7.0]]


def values_after_refusal(comm: Any) -> list[list[float]]:
    kept = []
    for count in (10, 100_000):
        x, out = np.ones(count, np.float32), np.full(count, 7, np.float32)
        outcome = attempt(
            comm.rank, lambda x=x, out=out: comm.all_reduce(x, out, op="mean" if comm.rank == 1 else "sum")
        )
        assert not outcome.ok
        kept.append(np.unique(out).tolist())
    return kept


def test_untouched_when_ranks_disagree(pools: Any) -> None:
    for world in (2, 3):
        for outcomes in pools(world).run(values_after_mismatch):
            assert outcomes == [[7.0]] * 6


def values_after_mismatch(comm: Any) -> list[list[float]]:
    kept = []
    for algorithm in ("one_shot", "two_shot"):
        for count in (10, 100_000, 1_000_000):
            x = np.full(count, 7, np.float32)
            outcome = attempt(comm.rank, differing_op, comm, x, algorithm)
            assert outcome.error == "MismatchError", outcome
            kept.append(np.unique(x).tolist())
    return kept


def differing_op(comm: Any, x: np.ndarray[Any, Any], algorithm: str) -> None:
    comm.all_reduce(x, op="sum" if comm.rank else "product", algorithm=algorithm)


def test_broadcast_from_a_read_only_root(pools: Any) -> None:
    pools(3).run(read_only_root)


def read_only_root(comm: Any) -> None:
    x = np.full(10, comm.rank, np.float32)
    x.flags.writeable = comm.rank != 1
    assert (comm.broadcast(x, 1) == 1).all()


@pytest.mark.parametrize(
    "arguments", [("all_reduce", -1, "float32"), ("all_reduce", 8, "float31"), ("gossip", 8, "int8")]
)
def test_explain_refuses_nonsense(pools: Any, arguments: tuple[str, int, str]) -> None:
    outcomes = pools(2).outcomes(explain, *arguments)
    assert all(outcome.error in ("ValueError", "TypeError") for outcome in outcomes), outcomes
    pools(2).run(good)


def explain(comm: Any, *arguments: Any) -> Any:
    return comm.explain(*arguments)


def test_errors_survive_pickling() -> None:
    from collectives import errors

    error = errors.PeerDiedError("rank 2 died", "all_reduce", 7, (2,))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error)
    assert (again.collective, again.epoch, again.ranks) == ("all_reduce", 7, (2,))


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_timeout_must_be_a_positive_number(timeout: float) -> None:
    import collectives

    with pytest.raises(ValueError):
        collectives.Communicator(timeout=timeout)
