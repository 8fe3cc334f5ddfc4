"""Training steps under DistributedDataParallel: this library beside Gloo and beside no communication at all.

``mpirun -n 2 python -m collectives.bench ddp``. The network is a plain perceptron, because its arithmetic
per parameter is as little as it gets: nothing hides a slow all_reduce. Every variant has a copy of it, starts
from the same weights and sees the same batches; DDP reduces buckets while the backward pass goes on.
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
from collectives.bench.start import check_package, on_ranks
from collectives.communicator import Communicator
from collectives.environment import Launch

BATCH = 16  # rows of a batch on each rank
RATE = 0.1
WARMUP = 3  # steps before the first round; DDP rebuilds its buckets after the first
# Relative, of losses in float32 after steps in which sums were rounded in another order. The variant without
# communication must be further away, or the losses prove nothing.
TOLERANCE = 1e-4


def main(argv: Sequence[str], launch: Launch) -> int:
    """Run ``bench ddp``; the exit status: 1 if losses differ."""
    p = arguments.parser(
        launch.rank, "ddp", "Train under DistributedDataParallel: time per step, and what of it communicates."
    )
    arguments.add_world(p)
    arguments.add_backend(p)
    p.add_argument("--layers", type=arguments.at_least(1), default=12, metavar="N", help="linear layers (12)")
    p.add_argument(
        "--hidden",
        type=arguments.at_least(1),
        default=2048,
        metavar="N",
        help="their width (2048, with 12 layers 50 million parameters)",
    )
    p.add_argument("--rounds", type=arguments.at_least(1), default=21, metavar="N", help="timed steps (21)")
    arguments.add_json(p)
    args = p.parse_args(argv[1:])
    world_size = arguments.check_world(p, args, launch)
    if world_size < 2:
        p.error("one rank has nothing to communicate: give it two or more")
    arguments.check_files(p, args, ["json"])
    check_package("bench ddp", "torch", "torch")
    run = functools.partial(_run, args=args, argv=argv, launch=launch)
    return on_ranks(argv, world_size, launch, run)


class Trainer:
    """One variant: a network under DDP, its optimizer and its losses so far."""

    def __init__(
        self, network: Any, group: Any, batches: Sequence[tuple[Any, Any]], communicates: bool
    ) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        self._network = DistributedDataParallel(copy.deepcopy(network), process_group=group)
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=RATE)
        self._loss = torch.nn.functional.mse_loss
        self._batches = batches
        self.losses: list[float] = []
        if not communicates:
            # In place of the no-op backend, whose futures hold no tensors for DDP to take.
            # A lambda, because DDP refuses annotations other than its own.
            self._network.register_comm_hook(None, lambda state, bucket: _completed(bucket.buffer()))

    def prepare(self) -> None:
        """Nothing: a step is timed as a whole."""

    def work(self) -> None:
        """One step: forward, backward, optimizer."""
        x, target = self._batches[len(self.losses) % len(self._batches)]
        self._optimizer.zero_grad()
        loss: Any = self._loss(self._network(x), target)
        loss.backward()
        self._optimizer.step()
        self.losses.append(float(loss.detach()))


def _completed(tensor: Any) -> Any:
    import torch

    future: Any = torch.futures.Future()
    future.set_result(tensor)
    return future


def _check(comm: Communicator, trainers: dict[str, Trainer]) -> tuple[list[str], dict[str, Any]]:
    """How far losses are from Gloo's: the worst step of the worst rank."""
    losses = {name: np.array(trainer.losses) for name, trainer in trainers.items()}
    gloo = losses[compare.GLOO]

    def worst(name: str) -> float:
        return float(np.max(compare.gathered(comm, float(np.max(np.abs(losses[name] - gloo) / gloo)))))

    ours, none = worst(compare.OURS), worst(compare.NONE)
    lines = [
        f"# {'losses':<20} : of rank 0 from {gloo[0]:.4f} to {gloo[-1]:.4f} in {len(gloo)} steps; worst "
        f"relative difference from Gloo's: ours {ours:.1e} (at most {TOLERANCE:.0e}), without communication {none:.1e}"
    ]
    okay = ours <= TOLERANCE < none
    return lines, {"losses": {"ours": ours, "none": none}, "tolerance": TOLERANCE, "okay": okay}


def _run(
    comm: Communicator, yields: bool, args: argparse.Namespace, argv: Sequence[str], launch: Launch
) -> int:
    import torch

    parameters = args.layers * (args.hidden + 1) * args.hidden
    config = {"layers": args.layers, "hidden": args.hidden, "parameters": parameters, "batch": BATCH}
    config["rounds"] = args.rounds
    about = [
        f"model: {args.layers} linear layers of {args.hidden} with GELU, {parameters / 1e6:.1f} million "
        f"parameters, float32; DistributedDataParallel as it comes, SGD, {BATCH} rows a rank",
        "work: one step (forward, backward with overlapping all_reduces, optimizer)",
        "none: the same under DDP with a communication hook that hands every bucket back",
        compare.method(args.rounds),
    ]
    run = Run(comm, launch, yields, args, argv, about, config)
    with ProcessGroups(comm, args.backend) as groups:
        torch.manual_seed(0)  # the same weights on every rank
        layers: list[Any] = []
        for _ in range(args.layers):
            layers += [torch.nn.Linear(args.hidden, args.hidden), torch.nn.GELU()]
            torch.nn.init.kaiming_normal_(layers[-2].weight)  # so that deep layers learn too
        network = torch.nn.Sequential(*layers[:-1])
        own = torch.Generator().manual_seed(1 + comm.rank)  # other rows on every rank
        batches = [
            (torch.randn(BATCH, args.hidden, generator=own), torch.randn(BATCH, args.hidden, generator=own))
            for _ in range(2)
        ]
        trainers = {
            name: Trainer(network, group, batches, communicates=name != compare.NONE)
            for name, group in compare.groups_of(groups).items()
        }
        del network, layers
        for trainer in trainers.values():
            for _ in range(WARMUP):
                trainer.work()
        results = compare.outcomes(compare.measure(comm, trainers, args.rounds, 1))
        lines, check = _check(comm, trainers)
        table = compare.table(results, args.backend, "step")
        return run.finish([*table, *lines], [vars(one) for one in results], check)
