"""Pipeline schedules: sends and receives between stages give the unsplit model's losses and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch_ranks import Ranks, assert_same

MICROBATCHES = 4
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}


def layers(count: int) -> list[nn.Module]:
    torch.manual_seed(11)
    return [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(count)]


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 6, generator=generator)


def run_pipeline(name: str) -> Any:
    """This rank's stage gradients after each of three steps, and the losses where the last stage is."""
    world, rank = dist.get_world_size(), dist.get_rank()
    each = 2 if name == "interleaved" else 1
    modules = layers(each * world)
    numbers = [rank + world * i for i in range(each)]
    stages = [PipelineStage(modules[n], n, each * world, torch.device("cpu")) for n in numbers]
    schedule = SCHEDULES[name](stages if each > 1 else stages[0], MICROBATCHES, loss_fn=loss_of)
    losses, gradients = [], []
    for step in range(3):
        x, target = data(step)
        found: list[torch.Tensor] = []
        inputs = (x,) if rank == 0 else ()
        last = rank == world - 1
        schedule.step(*inputs, target=target if last else None, losses=found if last else None)
        losses += [loss.item() for loss in found]
        for number in numbers:
            grads = [p.grad.clone() for p in modules[number].parameters()]
            gradients.append((step, number, grads))
            modules[number].zero_grad()
    return losses, gradients


def run_whole(world: int, each: int) -> Any:
    modules = layers(each * world)
    model = nn.Sequential(*modules)
    losses, gradients = [], {}
    for step in range(3):
        x, target = data(step)
        for xs, targets in zip(x.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True):
            loss = loss_of(model(xs), targets)
            (loss / MICROBATCHES).backward()
            losses.append(loss.item())
        for number, module in enumerate(modules):
            gradients[step, number] = [p.grad.clone() for p in module.parameters()]
        model.zero_grad()
    return losses, gradients


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(ranks: Ranks, name: str) -> None:
    ours, theirs = ranks.both(run_pipeline, name)
    assert_same(ours, theirs)
    losses, gradients = run_whole(ranks.world, 2 if name == "interleaved" else 1)
    assert_same(ours[-1][0], losses)
    for _, found in ours:
        for step, number, grads in found:
            assert_same(grads, gradients[step, number])
