"""FSDP2: sharded training gives what Gloo gives, and what the unsharded model gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch_ranks import BACKEND, Ranks, assert_same, needs_backend

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
POLICIES = {
    "float32": MixedPrecisionPolicy(),
    "bfloat16": MixedPrecisionPolicy(param_dtype=BF16),
    "bfloat16, reduced in float32": MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=FP32),
    "float32, reduced in float16": MixedPrecisionPolicy(reduce_dtype=FP16),
}


def make() -> nn.Sequential:
    """Sizes that no world size divides: shards are uneven, and rank 3 of 4 has none of the bias of 3."""
    torch.manual_seed(5)
    blocks = [nn.Sequential(nn.Linear(11, 11), nn.GELU(), nn.Linear(11, 11)) for _ in range(2)]
    return nn.Sequential(*blocks, nn.Linear(11, 3))


def shard(model: nn.Sequential, mesh: Any, policy: MixedPrecisionPolicy, symmetric: bool) -> nn.Sequential:
    for block in model:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for module in model.modules():
        if symmetric and isinstance(module, FSDPModule):
            module.set_allocate_memory_from_process_group_for_comm(True)
    return model


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 11, generator=torch.Generator().manual_seed(100 * step + rank))


def train(policy: str, symmetric: bool = False, hybrid: bool = False, factor: float | None = None) -> Any:
    """Losses, and the full parameters at the end."""
    world, rank = dist.get_world_size(), dist.get_rank()
    grid = ((2, world // 2), ("replicas", "shards")) if hybrid else ((world,), ("shards",))
    mesh = init_device_mesh("cpu", grid[0], mesh_dim_names=grid[1])
    # Ours takes symmetric memory; Gloo has none.
    symmetric = symmetric and dist.get_backend() != "gloo"
    model = shard(make(), mesh, POLICIES[policy], symmetric)
    if factor:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(factor)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(6):
        loss = model(batch(step, rank)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {name: p.full_tensor() for name, p in model.named_parameters()}


def train_unsharded(world: int, factor: float | None = None) -> dict[str, torch.Tensor]:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        for rank in range(world):
            (model(batch(step, rank)).square().mean() / (factor or world)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.named_parameters())


def tolerance(policy: str) -> dict[str, float]:
    wide = 2e-2 if policy.startswith("bfloat16") else 2e-3 if "float16" in policy else 1e-5
    return {"rtol": wide, "atol": wide}


@pytest.mark.parametrize("policy", POLICIES)
def test_mixed_precision_matches_gloo(ranks: Ranks, policy: str) -> None:
    ours, theirs = ranks.both(train, policy)
    assert_same(ours, theirs, **tolerance(policy))
    for _, state in ours[1:]:
        assert_same(state, ours[0][1], rtol=0, atol=0)


def test_sharded_training_is_unsharded_training(ranks: Ranks) -> None:
    for _, state in ranks.values(train, "float32"):
        assert_same(state, train_unsharded(ranks.world), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("policy", ["float32", "bfloat16, reduced in float32"])
def test_memory_from_the_process_group(ranks: Ranks, policy: str) -> None:
    ours, theirs = ranks.both(train, policy, True)
    assert_same(ours, theirs, **tolerance(policy))


def test_shards_in_replicas(torch_pools: Any) -> None:
    ours, theirs = torch_pools(4).both(train, "float32", False, True)
    assert_same(ours, theirs, **tolerance("float32"))
    assert_same(ours[0][1], train_unsharded(4), rtol=1e-4, atol=1e-5)


@needs_backend
def test_a_divide_factor_of_the_users(ranks: Ranks) -> None:
    """FSDP2 asks for PREMUL_SUM with 1 / factor, which Gloo lacks."""
    for _, state in ranks.values(train, "float32", False, False, 3.0):
        assert_same(state, train_unsharded(ranks.world, 3.0), rtol=1e-4, atol=1e-5)


def lengths() -> list[tuple[int, int]]:
    """Layers of 1, 5 and 7 rows get the gradients of the unsharded layer. Returns the rows here."""
    world, rank = dist.get_world_size(), dist.get_rank()
    result = []
    for rows in (1, 5, 7):
        torch.manual_seed(rows)
        model, reference = nn.Linear(3, rows), nn.Linear(3, rows)
        reference.load_state_dict(model.state_dict())
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
        x = torch.randn(world, 2, 3, generator=torch.Generator().manual_seed(1))
        model(x[rank]).square().sum().backward()
        reference(x).square().sum().backward()
        whole = model.weight.grad.full_tensor() * world  # type: ignore[union-attr]
        torch.testing.assert_close(whole, reference.weight.grad)
        result.append((rows, model.weight.to_local().shape[0]))  # type: ignore[attr-defined]
    return result


@pytest.mark.parametrize("world", [2, 3, 4])
def test_rows_that_the_ranks_do_not_divide(torch_pools: Any, world: int) -> None:
    values = torch_pools(world).values(lengths)
    assert [sum(rows for _, rows in column) for column in zip(*values, strict=True)] == [1, 5, 7]


def allocated() -> tuple[bool, int]:
    """Whether the group hands out memory, and a sum in such memory."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    device = torch.device("cpu")
    if not backend.supports_tensor_alloc(device):
        return False, 0
    x = backend.allocate_tensor(1000, dtype=torch.float32, device=device)
    x.fill_(dist.get_rank() + 1.0)
    dist.all_reduce(x)
    return bool((x == x[0]).all()), int(x[0])


@pytest.mark.skipif(BACKEND == "gloo", reason="Gloo does not allocate tensors")
def test_tensors_of_the_process_group(ranks: Ranks) -> None:
    world = ranks.world
    assert ranks.values(allocated) == [(True, world * (world + 1) // 2)] * world
