"""Tokens of a tensor-parallel Llama: this library beside Gloo and beside no communication at all.

``mpirun -n 2 python -m collectives.bench model``. The model is that of Hugging Face in bfloat16 with random
weights, distributed over the ranks by its own plan (``tp_plan="auto"``): two all_reduces a layer, and one
all_gather of the logits. Every variant has a copy of it on a process group of its own and decodes the same
given tokens, one at a time, with a cache of keys and values.
"""

from __future__ import annotations

import argparse
import copy
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from collectives.bench import arguments, compare
from collectives.bench.process_groups import ProcessGroups
from collectives.bench.run import Run
from collectives.bench.start import StartError, check_package, on_ranks
from collectives.communicator import Communicator
from collectives.environment import Launch

HEAD = 64
VOCABULARY = 32000
PROMPT = 32
# Of the spread of the logits. Rounding to bfloat16 in another order moves single ones by a twentieth of it;
# a sum that lacks a rank's part moves them by several times the whole.
TOLERANCE = 0.25


def main(argv: Sequence[str], launch: Launch) -> int:
    """Run ``bench model``; the exit status: 1 if logits are wrong."""
    p = arguments.parser(
        launch.rank,
        "model",
        "Decode with a tensor-parallel Llama: time per token, and what of it communicates.",
    )
    arguments.add_world(p)
    arguments.add_backend(p)
    p.add_argument("--layers", type=arguments.at_least(1), default=8, metavar="N", help="decoder layers (8)")
    p.add_argument(
        "--hidden", type=arguments.at_least(HEAD), default=512, metavar="N", help="hidden size (512)"
    )
    p.add_argument(
        "--tokens", type=arguments.at_least(1), default=16, metavar="N", help="tokens per round (16)"
    )
    p.add_argument("--rounds", type=arguments.at_least(1), default=31, metavar="N", help="timed rounds (31)")
    arguments.add_json(p)
    args = p.parse_args(argv[1:])
    world_size = arguments.check_world(p, args, launch)
    if world_size < 2:
        p.error("one rank has nothing to communicate: give it two or more")
    if args.hidden % (HEAD * world_size):
        p.error(
            f"--hidden {args.hidden}: {world_size} ranks share attention heads of {HEAD}; "
            f"give a multiple of {HEAD * world_size}"
        )
    arguments.check_files(p, args, ["json"])
    for package in ("torch", "transformers"):
        check_package("bench model", package, "model")
    run = functools.partial(_run, args=args, argv=argv, launch=launch)
    return on_ranks(argv, world_size, launch, run)


class Decoder:
    """One variant: a model, its cache, and the tokens that it is given."""

    def __init__(self, model: Any, ids: Any) -> None:
        self._model, self._ids = model, ids
        self._cache: Any = None

    def prepare(self) -> None:
        """Read the prompt into a new cache."""
        from transformers import DynamicCache

        self._cache = DynamicCache(config=self._model.config)
        self._forward(self._ids[:, :PROMPT])

    def work(self) -> None:
        """Decode the tokens."""
        for position in range(PROMPT, self._ids.shape[1]):
            self._forward(self._ids[:, position : position + 1])

    def logits(self) -> Any:
        """Those of each decoded token, in float32: (tokens, vocabulary)."""
        import torch

        self.prepare()
        positions = range(PROMPT, self._ids.shape[1])
        return torch.cat([self._forward(self._ids[:, i : i + 1])[:, -1].float() for i in positions])

    def _forward(self, ids: Any) -> Any:
        import torch

        with torch.inference_mode():
            return self._model(ids, cache=self._cache, use_cache=True, logits_to_keep=1).logits


def _distributed(whole: Any, group: Any, world_size: int) -> Any:
    """A copy of the model `whole`, distributed over the ranks of `group` by the model's own plan."""
    import torch.distributed as dist

    try:
        from transformers.distributed.configuration_utils import DistributedConfig
    except ImportError:
        raise StartError(
            "bench model needs transformers 5.24 or later: pip install 'peer-collectives[model]'"
        ) from None
    plan = DistributedConfig(tp_plan="auto", tp_size=world_size)
    # What from_pretrained(tp_plan="auto") does between making a model and loading its weights, which are here
    # already. It takes the default process group, and no other.
    default = dist.group.WORLD
    dist.group.WORLD = group
    try:
        plan, _, mesh = type(whole).prepare_distribute_model(plan)
        return type(whole).maybe_distribute_model(copy.deepcopy(whole), plan, mesh)
    finally:
        dist.group.WORLD = default


def _check(
    comm: Communicator, whole: Decoder, decoders: dict[str, Decoder]
) -> tuple[list[str], dict[str, Any]]:
    """How far the logits of ours and Gloo's are from those of the model on one rank, and from each other."""
    reference = whole.logits()
    logits = {name: decoders[name].logits() for name in (compare.OURS, compare.GLOO)}
    spread = float(reference.std())

    def worst(a: Any, b: Any) -> float:
        # NumPy's maximum is NaN if any is; Python's is not.
        return float(np.max(compare.gathered(comm, float((a - b).abs().max()) / spread)))

    errors = {name: worst(mine, reference) for name, mine in logits.items()}
    apart = worst(logits[compare.OURS], logits[compare.GLOO])
    same = (logits[compare.OURS].argmax(-1) == logits[compare.GLOO].argmax(-1)).float().mean()
    equal = min(compare.gathered(comm, float(same)))
    lines = [
        f"# {'logits':<20} : worst difference from the model on one rank, in parts of their spread: "
        + ", ".join(f"{name} {error:.3f}" for name, error in errors.items())
        + f" (at most {TOLERANCE}); between them {apart:.3f}",
        f"# {'tokens':<20} : {equal:.0%} of the likeliest tokens are the same with ours and with Gloo",
    ]
    okay = all(error <= TOLERANCE for error in errors.values())
    found = {"logits": errors, "between": apart, "equal_tokens": equal, "tolerance": TOLERANCE}
    return lines, {**found, "okay": okay}


def _run(
    comm: Communicator, yields: bool, args: argparse.Namespace, argv: Sequence[str], launch: Launch
) -> int:
    import torch
    import transformers

    heads = args.hidden // HEAD
    config = {
        "layers": args.layers,
        "hidden": args.hidden,
        "intermediate": args.hidden * 43 // 16,  # as wide as Llama's own are
        "heads": heads,
        "vocabulary": VOCABULARY,
        "prompt": PROMPT,
        "tokens": args.tokens,
        "rounds": args.rounds,
    }
    about = [
        f"model: Hugging Face Llama, {args.layers} layers, hidden {args.hidden}, {heads} heads, vocabulary "
        f'{VOCABULARY}, bfloat16, random weights, tp_plan="auto" over {comm.world_size} ranks',
        f"work: {args.tokens} tokens, one at a time, after a prompt of {PROMPT}",
        "none: the same model, and every collective is a call of PyTorch's no-op backend",
        compare.method(args.rounds),
    ]
    versions = {"transformers": transformers.__version__}
    run = Run(comm, launch, yields, args, argv, about, config, versions)
    with ProcessGroups(comm, args.backend) as groups:
        torch.manual_seed(0)  # the same weights and tokens on every rank
        llama = transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=args.hidden,
            intermediate_size=config["intermediate"],
            num_hidden_layers=args.layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=PROMPT + args.tokens,
            dtype=torch.bfloat16,
        )
        whole: Any = transformers.LlamaForCausalLM(llama)
        whole = whole.to(torch.bfloat16).eval()
        ids = torch.randint(VOCABULARY, (1, PROMPT + args.tokens))
        decoders = {
            name: Decoder(_distributed(whole, group, comm.world_size), ids)
            for name, group in compare.groups_of(groups).items()
        }
        lines, check = _check(comm, Decoder(whole, ids), decoders)
        del whole
        results = compare.outcomes(compare.measure(comm, decoders, args.rounds, args.tokens))
        table = compare.table(results, args.backend, "token")
        return run.finish([*table, *lines], [vars(one) for one in results], check)
