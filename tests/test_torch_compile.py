"""Functional collectives, eager and compiled, with and without an explicit wait, and their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch_ranks import Ranks, assert_same

FORMS = ["eager", "aot_eager"]


def form(function: Any, name: str) -> Any:
    return function if name == "eager" else torch.compile(function, backend=name, fullgraph=True)


def every_collective(name: str) -> list[torch.Tensor]:
    world, rank = dist.get_world_size(), dist.get_rank()
    group = list(range(world))

    def step(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            funcol.all_reduce(x * 2, "sum", group) + 1,
            funcol.all_reduce(x, "avg", group),
            funcol.all_reduce(x, "max", group),
            funcol.all_gather_tensor(x, 0, group) * 3,
            funcol.all_gather_tensor(x, 1, group),
            funcol.reduce_scatter_tensor(x, "sum", 0, group) - 1,
            funcol.reduce_scatter_tensor(x, "avg", 1, group),
            funcol.broadcast(x, world - 1, group),
            funcol.all_to_all_single(x, None, None, group),
            *funcol.all_reduce_coalesced([x, x + 1], "sum", group),
            *funcol.all_gather_into_tensor_coalesced([x, x + 1], group),
            *funcol.reduce_scatter_tensor_coalesced([x, x + 1], "sum", [0, 0], group),
        ]

    x = torch.arange(16.0 * world).reshape(2 * world, 8) + 100 * rank
    return [torch.as_tensor(t).clone() for t in form(step, name)(x)]


@pytest.mark.parametrize("name", FORMS)
def test_every_functional_collective(ranks: Ranks, name: str) -> None:
    ours, theirs = ranks.both(every_collective, name)
    assert_same(ours, theirs)
    world = ranks.world
    x = torch.arange(16.0 * world).reshape(2 * world, 8)
    assert_same(ours[0][0], 2 * (world * x + 100 * world * (world - 1) / 2) + 1)


def lazy(name: str) -> tuple[float, list[int]]:
    """A result that is used without a wait; splits of unequal sizes; a call whose result nobody reads."""
    world, rank = dist.get_world_size(), dist.get_rank()
    group = list(range(world))

    def step(x: torch.Tensor) -> torch.Tensor:
        y = funcol.all_reduce(x * 2, "sum", group)
        return (y + 1).sum()

    value = form(step, name)(torch.ones(5) * (rank + 1)).item()
    funcol.all_reduce(torch.ones(4), "sum", group)
    sent = [i + 1 for i in range(world)]
    received = [rank + 1] * world
    out = funcol.all_to_all_single(torch.full((sum(sent),), rank), received, sent, group)
    return value, out.tolist()


@pytest.mark.parametrize("name", FORMS)
def test_results_without_a_wait(ranks: Ranks, name: str) -> None:
    world = ranks.world
    total = 5.0 * (2 * world * (world + 1) / 2 + 1)
    for rank, (value, moved) in enumerate(ranks.values(lazy, name)):
        assert value == total
        assert moved == [source for source in range(world) for _ in range(rank + 1)]


def gradients(name: str) -> list[torch.Tensor]:
    world, rank = dist.get_world_size(), dist.get_rank()
    group = dist.group.WORLD

    def step(x: torch.Tensor) -> torch.Tensor:
        y = funcol.all_gather_tensor_autograd(x, 0, group)
        z = funcol.reduce_scatter_tensor_autograd(y * (rank + 1), "sum", 0, group)
        return z.square().sum()

    x = (torch.arange(6.0).reshape(3, 2) + rank).requires_grad_()
    form(step, name)(x).backward()
    assert x.grad is not None and world
    return [x.grad]


@pytest.mark.parametrize("name", FORMS)
def test_autograd_of_functional_collectives(ranks: Ranks, name: str) -> None:
    ours, theirs = ranks.both(gradients, name)
    assert_same(ours, theirs)


def plain_in_graph() -> list[float]:
    """dist.all_reduce within a compiled function: dynamo rewrites it to the functional form."""

    def step(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        dist.all_reduce(x)
        return x + 1

    x = torch.full((3,), dist.get_rank() + 1.0)
    return torch.compile(step, backend="aot_eager")(x).tolist()


def test_plain_collective_in_a_compiled_function(ranks: Ranks) -> None:
    world = ranks.world
    assert ranks.values(plain_in_graph) == [[world * (world + 1) + 1.0] * 3] * world
