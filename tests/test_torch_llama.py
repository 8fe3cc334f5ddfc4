"""A Hugging Face Llama with random weights, loaded tensor-parallel from a folder by `tp_plan="auto"`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_ranks import Ranks, assert_same

transformers = pytest.importorskip("transformers", reason="the Llama comes from transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of two layers whose heads 2 and 4 ranks divide."""
    path = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=64,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return str(path)


def prompt() -> torch.Tensor:
    return torch.randint(0, 96, (2, 9), generator=torch.Generator().manual_seed(4))


def run_model(folder: str, parallel: bool = True, dtype: torch.dtype = torch.float32) -> Any:
    """Logits, loss and eight greedy tokens; `parallel` false is the whole model in one process."""
    plan: dict[str, Any] = {"tp_plan": "auto"} if parallel else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **plan)
    if parallel:
        import torch.distributed as dist
        from torch.distributed.tensor import DTensor

        weight = model.model.layers[0].mlp.gate_proj.weight
        local = weight.to_local() if isinstance(weight, DTensor) else weight
        assert local.shape[0] == 128 // dist.get_world_size(), weight.shape
    model.eval()
    with torch.no_grad():
        output = model(prompt(), labels=prompt())
        tokens = model.generate(prompt(), max_new_tokens=8, do_sample=False, pad_token_id=0)
    logits = output.logits.full_tensor() if hasattr(output.logits, "full_tensor") else output.logits
    return logits, float(output.loss), tokens


def test_llama_matches_gloo_and_the_whole_model(ranks: Ranks, folder: str) -> None:
    ours, theirs = ranks.both(run_model, folder)
    assert_same(ours, theirs, rtol=1e-4, atol=1e-5)
    expected = run_model(folder, parallel=False)
    for value in ours:
        assert_same(value, expected, rtol=1e-3, atol=1e-4)


def test_llama_in_bfloat16(ranks: Ranks, folder: str) -> None:
    ours, theirs = ranks.both(run_model, folder, True, torch.bfloat16)
    assert_same([value[:2] for value in ours], [value[:2] for value in theirs], rtol=3e-2, atol=3e-2)
    # Every rank continues the text alike, or they would leave generate() at different times.
    assert all(torch.equal(tokens, ours[0][2]) for _, _, tokens in ours)


def train(folder: str) -> tuple[list[float], float]:
    """Losses of three steps of the tensor-parallel model: its backward communicates too."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = model(prompt(), labels=prompt()).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, losses[0] - losses[-1]


def test_llama_trains(ranks: Ranks, folder: str) -> None:
    ours, theirs = ranks.both(train, folder)
    assert_same(ours, theirs, rtol=1e-4, atol=1e-5)
    assert all(gain > 0 for _, gain in ours)
