"""Distributed checkpoints: saved by 4 ranks, loaded by 4 and, sharded anew, by 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch_ranks import assert_same


def model(seed: int) -> nn.Module:
    """Five rows on four ranks: one rank has an empty shard."""
    torch.manual_seed(seed)
    result = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 9))
    fully_shard(result, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return result


def whole(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: v.full_tensor() if isinstance(v, DTensor) else v for name, v in state.items()}


def save(folder: str, asynchronous: bool) -> dict[str, torch.Tensor]:
    state = get_model_state_dict(model(1))
    content = {"model": state, "step": 17}
    if asynchronous:
        dcp.async_save(content, checkpoint_id=folder).result()
    else:
        dcp.save(content, checkpoint_id=folder)
    return whole(state)


def load(folder: str) -> tuple[dict[str, torch.Tensor], int]:
    target = model(2)
    content: dict[str, Any] = {"model": get_model_state_dict(target), "step": 0}
    dcp.load(content, checkpoint_id=folder)
    set_model_state_dict(target, content["model"])
    return whole(get_model_state_dict(target)), content["step"]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["save", "async_save"])
def test_save_and_load(torch_pools: Any, tmp_path: Path, asynchronous: bool) -> None:
    folder = str(tmp_path / "checkpoint")
    saved = torch_pools(4).values(save, folder, asynchronous)
    assert len(list((tmp_path / "checkpoint").glob("*.distcp"))) == 4
    for world in (4, 2):
        for state, step in torch_pools(world).values(load, folder):
            assert_same(state, saved[0], rtol=0, atol=0)
            assert step == 17


def test_gloo_reads_what_the_backend_saved(torch_pools: Any, tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoint")
    saved = torch_pools(2).values(save, folder, False)
    for state, _ in torch_pools(4).values(load, folder, backend="gloo"):
        assert_same(state, saved[0], rtol=0, atol=0)
