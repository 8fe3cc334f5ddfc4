"""DistributedDataParallel: 50 steps give the losses and parameters that Gloo gives."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import Ranks, assert_same

STEPS = 50
KINDS = ["plain", "bucket_view", "static_graph", "no_sync", "fp16", "bf16", "unused", "power"]


class Model(nn.Module):
    """Sizes that fill no bucket evenly, a buffer, and a branch that `unused` leaves out on some ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(13, 37), nn.Linear(37, 37), nn.Linear(37, 5)
        self.norm = nn.BatchNorm1d(37)

    def forward(self, x: torch.Tensor, skip: bool = False) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.third(x if skip else x + torch.relu(self.second(x)))


def wrap(kind: str) -> DistributedDataParallel:
    # Parameters of each rank differ at first: it is rank 0's that count.
    torch.manual_seed(dist.get_rank())
    ddp = DistributedDataParallel(
        Model(),
        # PowerSGD's callbacks wait for calls of their own: with several buckets Gloo's two threads all wait.
        bucket_cap_mb=25 if kind == "power" else 0.003,
        gradient_as_bucket_view=kind in ("bucket_view", "static_graph"),
        static_graph=kind == "static_graph",
        find_unused_parameters=kind == "unused",
    )
    if kind == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif kind == "bf16":
        # torch refuses its own hook by name where its NCCL is not there, whatever the group's backend is.
        ddp.register_comm_hook(None, lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket))
    elif kind == "power":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=5)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return ddp


# PowerSGD's callbacks hold the group. Where the last reference goes on a thread of Gloo's, Gloo joins that
# thread from itself, and the process aborts ("Resource deadlock avoided"); so Gloo's groups stay.
kept: list[Any] = []


def train(kind: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    ddp, rank = wrap(kind), dist.get_rank()
    if kind == "power" and dist.get_backend() == "gloo":
        kept.append(dist.group.WORLD)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)  # at 0.05 the steps magnify a last bit
    data = torch.Generator().manual_seed(rank)
    target = torch.randn(13, 5, generator=torch.Generator().manual_seed(99))
    losses = []
    for step in range(STEPS):
        x = torch.randn(8, 13, generator=data)
        with ddp.no_sync() if kind == "no_sync" and step % 3 else nullcontext():
            skip = kind == "unused" and (step + rank) % 2 == 0
            loss = (ddp(x, skip) - x @ target).square().mean()
            loss.backward()
        if kind != "no_sync" or step % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses, dict(ddp.module.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_training_matches_gloo(ranks: Ranks, kind: str) -> None:
    ours, theirs = ranks.both(train, kind)
    # A difference in a last bit may flip a rounding of the narrow type, and the steps carry it on.
    tolerance = {"fp16": 1e-3, "bf16": 1e-2, "power": 1e-3}.get(kind, 1e-3)
    for (losses, state), (expected_losses, expected_state) in zip(ours, theirs, strict=True):
        assert losses[-1] < losses[0]
        assert_same(losses, expected_losses, rtol=tolerance, atol=tolerance)
        assert_same(state, expected_state, rtol=tolerance, atol=tolerance)
    # The ranks hold the same parameters, bit for bit.
    parameters = [{name: v for name, v in state.items() if "running" not in name} for _, state in ours]
    for other in parameters[1:]:
        assert_same(other, parameters[0], rtol=0, atol=0)


def train_with_uneven_inputs() -> tuple[float, dict[str, torch.Tensor]]:
    rank = dist.get_rank()
    ddp = DistributedDataParallel(nn.Linear(6, 3), bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(rank)
    loss = torch.zeros(())
    with ddp.join():
        for _ in range(5 + 3 * rank):
            loss = ddp(torch.randn(4, 6, generator=data)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss.item(), dict(ddp.module.state_dict())


def test_join_of_ranks_with_uneven_inputs(ranks: Ranks) -> None:
    ours, theirs = ranks.both(train_with_uneven_inputs)
    assert_same(ours, theirs)


def train_on_a_subgroup() -> list[torch.Tensor] | None:
    """Two data-parallel replicas in overlapping groups of two."""
    world, rank = dist.get_world_size(), dist.get_rank()
    groups = [dist.new_group([first, (first + 1) % world]) for first in range(world)]
    result = []
    for first, group in enumerate(groups):
        if rank in (first, (first + 1) % world):
            torch.manual_seed(first)
            ddp = DistributedDataParallel(nn.Linear(5, 3), process_group=group)
            ddp(torch.full((2, 5), rank + 1.0)).square().sum().backward()
            result.append(ddp.module.weight.grad)
    return result


def test_ddp_on_overlapping_subgroups(torch_pools: Any) -> None:
    ours, theirs = torch_pools(4).both(train_on_a_subgroup)
    assert_same(ours, theirs)
