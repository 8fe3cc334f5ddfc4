"""DTensor: redistribution between all placements, and tensor-parallel layers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch_ranks import Ranks, assert_same

PLACEMENTS = {
    "replicate": Replicate(),
    "shard 0": Shard(0),
    "shard 1": Shard(1),
    "sum": Partial("sum"),
    "avg": Partial("avg"),
    "max": Partial("max"),
}
SHAPES = [(8, 4), (7, 5), (1, 3)]


def source(shape: tuple[int, ...], mesh: Any, names: tuple[str, ...]) -> DTensor:
    """A tensor in these placements; where they are partial, the ranks along that dimension differ."""
    full = torch.arange(float(torch.Size(shape).numel())).reshape(shape) / 8
    sharded = [Replicate() if PLACEMENTS[name].is_partial() else PLACEMENTS[name] for name in names]
    local = distribute_tensor(full, mesh, sharded, src_data_rank=None).to_local()
    for dim, name in enumerate(names):
        if PLACEMENTS[name].is_partial():
            local = local * 2 + mesh.get_local_rank(dim)
    placements = [PLACEMENTS[name] for name in names]
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=full.stride()
    )


def redistribute(mesh_shape: tuple[int, ...], names: list[str]) -> dict[str, Any]:
    """The local part after each redistribution that torch allows, or the kind of its error."""
    mesh = init_device_mesh("cpu", mesh_shape)
    result: dict[str, Any] = {}
    for shape in SHAPES:
        for before in itertools.product(names, repeat=len(mesh_shape)):
            try:
                x = source(shape, mesh, before)
                result[f"{shape} {before} whole"] = x.full_tensor()
            except Exception as error:
                result[f"{shape} {before}"] = type(error).__name__
                continue
            for after in itertools.product(names, repeat=len(mesh_shape)):
                try:
                    value: Any = x.redistribute(mesh, [PLACEMENTS[name] for name in after]).to_local()
                    value = value.wait() if hasattr(value, "wait") else value
                except Exception as error:
                    value = type(error).__name__
                result[f"{shape} {before} to {after}"] = value
    return result


def check(ranks: Ranks, mesh_shape: tuple[int, ...], names: list[str], share: float = 0.5) -> None:
    """`share` of the conversions, at least, are not refused by torch itself."""
    ours, theirs = ranks.both(redistribute, mesh_shape, names, limit=300)
    assert_same(ours, theirs)
    done = sum(isinstance(value, torch.Tensor) for value in ours[0].values())
    assert done > share * len(ours[0]), ours[0]
    wholes = [{name: v for name, v in values.items() if "whole" in name} for values in ours]
    for other in wholes[1:]:
        assert_same(other, wholes[0], rtol=0, atol=0)


def test_redistribute_on_a_line(ranks: Ranks) -> None:
    check(ranks, (ranks.world,), list(PLACEMENTS))


def test_redistribute_on_a_grid(torch_pools: Any) -> None:
    check(torch_pools(4), (2, 2), ["replicate", "shard 0", "sum"])


@pytest.mark.nightly
def test_redistribute_on_a_grid_between_all_placements(torch_pools: Any) -> None:
    check(torch_pools(4), (2, 2), list(PLACEMENTS), share=0.3)  # torch refuses most pairs of partial ones


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(24, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.norm(x))))


def run_block(sequence: bool, dtype: torch.dtype, sharded: bool = True) -> Any:
    """Output, input gradient and weight gradients of a block, tensor-parallel or not."""
    torch.manual_seed(3)
    block = Block().to(dtype)
    x = torch.randn(2, 8, 8).to(dtype).requires_grad_()
    if sharded:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if sequence:
            plan = {
                "norm": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1)),
            }
            prepare = PrepareModuleInput(
                input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=False
            )
            block = parallelize_module(block, mesh, prepare)
        block = parallelize_module(block, mesh, plan)
    y = block(x)
    if sharded and sequence:
        y = DTensor.from_local(y, mesh, [Shard(1)]).full_tensor()
    y.float().square().sum().backward()
    whole = lambda t: t.full_tensor() if isinstance(t, DTensor) else t  # noqa: E731
    gradients = {name: whole(p.grad) for name, p in block.named_parameters()}
    return y.detach(), x.grad, gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
def test_parallel_layers(ranks: Ranks, sequence: bool, dtype: torch.dtype) -> None:
    ours, theirs = ranks.both(run_block, sequence, dtype)
    tolerance = {"rtol": 4e-2, "atol": 4e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    assert_same(ours, theirs, **tolerance)
    if dtype is torch.float32:
        for value in ours:
            assert_same(value, run_block(sequence, dtype, sharded=False), **tolerance)
