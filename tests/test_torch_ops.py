"""torch.ops.collectives: values, gradients, what torch's own check of operators says, and torch.compile.

TEST_TORCH_BACKEND names the backend of the group; by default it is ours. Gloo has no "avg".
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Pool

BACKEND = os.environ.get("TEST_TORCH_BACKEND", "collectives")


def start(_: Any, backend: str, file: str) -> None:
    import collectives

    torch.set_num_threads(1)
    # The caches know nothing of a change of our C++.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(file).parent / "inductor")
    assert collectives.all_reduce  # registers the operators
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        backend, init_method=f"file://{file}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Runs a function on each of three ranks that have a process group."""
    folder: Path = tmp_path_factory.mktemp("store")
    with Pool(3, timeout=None, limit=300) as pool:
        pool.run(start, BACKEND, str(folder / "store"))
        yield pool.run
        pool.run(stop)


def stop(_: Any) -> None:
    dist.destroy_process_group()


def of_rank(rank: int, *shape: int) -> Any:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape) * (rank + 1)


def values(_: Any, backend: str) -> None:
    import collectives

    rank, world = dist.get_rank(), dist.get_world_size()
    x = of_rank(rank, 6, 2)
    before = x.clone()
    everyone = torch.stack([of_rank(r, 6, 2) for r in range(world)])
    reductions = {
        "sum": everyone.sum(0),
        "max": everyone.amax(0),
        "min": everyone.amin(0),
        "product": everyone.prod(0),
    }
    if backend != "gloo":
        reductions["avg"] = everyone.sum(0) / world
    for op, want in reductions.items():
        torch.testing.assert_close(collectives.all_reduce(x, op), want)
        torch.testing.assert_close(collectives.all_reduce_(x.clone(), op), want)
    bits = torch.tensor([1 << rank, 7])
    assert collectives.all_reduce(bits, "bor").tolist() == [7, 7]

    assert collectives.all_gather(x).equal(everyone.reshape(18, 2))
    assert collectives.all_gather(torch.tensor(float(rank))).tolist() == [0, 1, 2]
    assert collectives.reduce_scatter(x).equal(everyone.sum(0).chunk(world)[rank])
    assert collectives.broadcast(x, 2).equal(everyone[2])
    assert collectives.reduce(x, 1).equal(everyone.sum(0) if rank == 1 else torch.zeros(6, 2))
    assert collectives.all_to_all(x).equal(torch.cat([part.chunk(world)[rank] for part in everyone]))
    # Rank r sends p + 1 rows to rank p.
    got = collectives.all_to_all(x, output_splits=[rank + 1] * world, input_splits=[1, 2, 3])
    assert got.equal(torch.cat([part.split([1, 2, 3])[rank] for part in everyone]))
    assert x.equal(before)

    y = torch.zeros(2, 6).t().copy_(x)
    assert not y.is_contiguous()
    assert collectives.all_reduce(y).equal(reductions["sum"])
    assert collectives.all_gather(y).equal(everyone.reshape(18, 2))
    collectives.all_reduce_(y)
    assert y.equal(reductions["sum"]) and y.stride() == (1, 6)
    assert collectives.broadcast_(x, 1) is x and x.equal(everyone[1])

    # Of a name, and of a group.
    pairs = [dist.new_group([0, 1]), dist.new_group([2])]
    mine = pairs[rank // 2]
    one = torch.ones(1)
    assert collectives.all_reduce(one, group=mine).item() == mine.size()
    assert collectives.all_reduce(one, group=mine.group_name).item() == mine.size()


def test_values(group: Any) -> None:
    group(values, BACKEND)


def bad_arguments(_: Any) -> None:
    import collectives

    def refused(words: str) -> Any:
        return pytest.raises((ValueError, RuntimeError), match=words if BACKEND != "gloo" else "")

    x = torch.ones(4, requires_grad=True)
    with pytest.raises(ValueError, match="want sum, avg"):
        collectives.all_reduce(x, "mean")
    # What ranks may differ in is for the backend to refuse, so that all are told; Gloo has other words.
    with refused("elements"):
        collectives.reduce_scatter(x)
    with refused("does not divide by the 3"):
        collectives.all_to_all(x)
    with refused("one for each of the 3"):
        collectives.all_to_all(x, input_splits=[2, 2])
    with refused("not to its 4 rows"):
        collectives.all_to_all(x, input_splits=[1, 1, 1])
    with pytest.raises(RuntimeError, match=r"requires a gradient: call all_reduce"):
        collectives.all_reduce_(x)
    with pytest.raises(ValueError, match="group_size is 2, but the group has 3 ranks"):
        torch.ops.collectives.all_gather(x, 2, dist.group.WORLD.group_name)
    with pytest.raises(RuntimeError):
        collectives.all_reduce(x, group="no such group")
    assert collectives.all_reduce(torch.ones(1)).item() == 3


def test_bad_arguments(group: Any) -> None:
    group(bad_arguments)


def gradients(_: Any, backend: str) -> None:
    import collectives

    rank, world = dist.get_rank(), dist.get_world_size()

    def gradient(call: Callable[[Any], Any], weigh: Callable[[int, Any], Any]) -> Any:
        """Of the sum over ranks of sum(weight of that rank * result)."""
        x = of_rank(rank, 6).requires_grad_()
        result = call(x)
        (result * weigh(rank, result)).sum().backward()
        return x.grad

    def weight(rank: int, like: Any) -> Any:
        return of_rank(rank, *like.shape).detach() + rank

    def weights(n: int) -> Any:
        return torch.stack([weight(r, torch.empty(n)) for r in range(world)])

    assert gradient(collectives.all_reduce, weight).equal(weights(6).sum(0))
    assert gradient(collectives.all_gather, weight).equal(weights(18).sum(0).chunk(world)[rank])
    assert gradient(collectives.reduce_scatter, weight).equal(weights(2).flatten())
    assert gradient(collectives.all_to_all, weight).equal(
        torch.cat([part.chunk(world)[rank] for part in weights(6)])
    )
    uneven = gradient(lambda x: collectives.all_to_all(x, [rank + 1] * world, [1, 2, 3]), weight)
    assert uneven.shape == (6,) and uneven[0] == weight(0, torch.empty(3))[rank]
    want = weights(6).sum(0) if rank == 1 else torch.zeros(6)
    assert gradient(lambda x: collectives.broadcast(x, 1), weight).equal(want)
    assert gradient(lambda x: collectives.reduce(x, 1), weight).equal(weight(1, torch.empty(6)))
    if backend != "gloo":
        torch.testing.assert_close(
            gradient(lambda x: collectives.all_reduce(x, "avg"), weight), weights(6).sum(0) / world
        )
        torch.testing.assert_close(
            gradient(lambda x: collectives.reduce_scatter(x, "avg"), weight), weights(2).flatten() / world
        )
    with pytest.raises(NotImplementedError, match=r"reduce\(max\) has no gradient; sum has one"):
        gradient(lambda x: collectives.reduce(x, op="max"), weight)
    with pytest.raises(NotImplementedError, match=r"all_reduce\(max\) has no gradient"):
        gradient(lambda x: collectives.all_reduce(x, "max"), weight)

    # A second derivative, and a value that autograd has saved and a collective then overwrites.
    x = torch.tensor(2.0, requires_grad=True)
    (first,) = torch.autograd.grad(collectives.all_reduce(x) ** 2, x, create_graph=True)
    assert first.item() == world * 2 * 2 * world
    assert torch.autograd.grad(first, x)[0].item() == 2 * world * world
    y = torch.ones(3)
    z = (x * y).sum()
    collectives.all_reduce_(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_gradients(group: Any) -> None:
    group(gradients, BACKEND)


def check_operator(_: Any, name: str, arguments: tuple[Any, ...], differentiable: bool) -> None:
    x = of_rank(dist.get_rank(), 6, 2)
    operator = getattr(torch.ops.collectives, name).default
    arguments = (*arguments, dist.group.WORLD.group_name)
    torch.library.opcheck(operator, (x, *arguments))
    if differentiable:
        torch.library.opcheck(operator, (x.requires_grad_(), *arguments))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("all_reduce", ("sum",)),
        ("all_reduce_", ("sum",)),
        ("all_gather", (3,)),
        ("reduce_scatter", ("sum", 3)),
        ("all_to_all", (None, None)),
        ("all_to_all", ([2, 2, 2], [2, 2, 2])),
        ("reduce", ("sum", 1)),
        ("broadcast", (1,)),
        ("broadcast_", (1,)),
    ],
)
def test_opcheck(group: Any, name: str, arguments: tuple[Any, ...]) -> None:
    group(check_operator, name, arguments, not name.endswith("_"))


def layer(x: Any, weight: Any) -> Any:
    """Every operator once, in the way that a tensor-parallel layer uses them."""
    import collectives

    whole = collectives.all_gather(x)
    part = collectives.reduce_scatter(torch.relu(whole @ weight), "sum")
    mixed = collectives.all_to_all(part)
    total = collectives.all_reduce(mixed + part)
    return collectives.broadcast(total, 0).cos() + part


def compiled(_: Any, backend: str, dynamic: bool) -> None:
    rank = dist.get_rank()
    torch._dynamo.reset()
    torch.manual_seed(7)
    weight = torch.randn(2, 2)
    function = torch.compile(layer, backend=backend, fullgraph=True, dynamic=dynamic)
    for rows in (3, 6):
        x = torch.randn(rows, 2) + rank
        results = []
        for run in (layer, function):
            leaf = x.clone().requires_grad_()
            result = run(leaf, weight)
            result.square().sum().backward()
            results.append((result.detach(), leaf.grad))
        torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(group: Any, dynamic: bool) -> None:
    group(compiled, "aot_eager", dynamic)


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor(group: Any) -> None:
    group(compiled, "inductor", False)


def unused_and_in_place(_: Any, backend: str) -> None:
    import collectives

    rank, world = dist.get_rank(), dist.get_world_size()
    torch._dynamo.reset()

    @torch.compile(backend=backend, fullgraph=True)
    def function(x: Any, uses_it: bool) -> Any:
        total = collectives.all_reduce(x, "sum")
        y = x + 1
        collectives.all_reduce_(y, "max")
        y += collectives.all_reduce(torch.zeros(4) + 2)  # a constant for the compiler
        return total + y if uses_it else y

    # A rank that makes nothing of the result takes part all the same.
    x = torch.full((4,), float(rank))
    sum_, largest = world * (world - 1) // 2, world
    want = torch.full((4,), float(largest + 2 * world + (sum_ if rank == 0 else 0)))
    assert function(x, rank == 0).equal(want)
    assert x.equal(torch.full((4,), float(rank)))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_result_that_one_rank_does_not_use(group: Any, backend: str) -> None:
    group(unused_and_in_place, backend)
