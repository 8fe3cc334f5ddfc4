"""Predict all_reduce over many such machines: time and bus bandwidth against bytes and nodes."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from collectives.topology.commands import screen
from collectives.topology.commands.arguments import (
    add_file,
    add_json,
    add_sizes,
    at_least,
    positive,
    read_file,
    sizes,
)
from collectives.topology.simulate import ENGINES, Cluster, Estimate

_MOST_COLUMNS = 8


def _node_counts(text: str) -> list[int]:
    """The type of node counts: some, or one, up to which they double."""
    whole = at_least(1, 1 << 20)
    counts = sorted({whole(part) for part in text.split(",")})
    if len(counts) > 1:
        return counts
    last = counts[0]
    doubling = [1 << k for k in range(20) if 1 << k < last] + [last]
    step = -(-len(doubling) // _MOST_COLUMNS)
    return doubling[::-1][::step][::-1]


def add(command: argparse.ArgumentParser) -> None:
    """The options."""
    add_file(command)
    command.add_argument(
        "--nodes",
        type=_node_counts,
        default="128",
        metavar="N[,N]",
        help="machines: a list, or one number up to which they double (128)",
    )
    command.add_argument(
        "--ranks-per-node", type=at_least(1, 4096), metavar="N", help="ranks on each (one a device)"
    )
    command.add_argument(
        "--link-gbps",
        type=positive,
        metavar="GBIT",
        help="Gbit/s of a network card's port, as it is sold: 400 (as FILE tells)",
    )
    command.add_argument("--engine", choices=ENGINES, default="nccl", help="between machines (nccl)")
    command.add_argument(
        "--hop-us", type=positive, metavar="US", help="of one hop between machines (the engine's)"
    )
    add_sizes(command, "1K", "1G")
    add_json(command)


def run(options: argparse.Namespace) -> None:
    """Prints it. TopologyError: the file or a size cannot be used, or the network's speed is not known."""
    topology = read_file(options.file)
    cluster = Cluster(
        topology,
        options.ranks_per_node or len(topology.gpus),
        ENGINES[options.engine],
        options.link_gbps,
        options.hop_us,
    )
    counts, nbytes = options.nodes, sizes(options)
    found = {(size, nodes): cluster.all_reduce(size, nodes) for size in nbytes for nodes in counts}
    if options.json:
        screen.as_json(
            {
                "version": 1,
                "source": topology.source,
                "collective": "all_reduce",
                "engine": options.engine,
                "constants": cluster.engine.source,
                "gbps": cluster.gbps,
                "host_gbps": cluster.host_gbps,
                "remarks": cluster.remarks,
                "results": [{**asdict(e), "us": e.us, "busbw": e.busbw} for e in found.values()],
            }
        )
        return
    screen.facts(
        [
            ("source", topology.source),
            ("path", "reduce_scatter inside, all_reduce of a shard a rank between, all_gather inside"),
            ("ranks", f"{cluster.ranks_per_node} a node"),
            ("network", f"{cluster.gbps:.4g} GB/s of payload a rank, {options.engine}"),
            ("constants", cluster.engine.source),
            *(("remark", remark) for remark in cluster.remarks),
        ]
    )
    names = ["bytes", *(f"{nodes} node{'s' if nodes > 1 else ''}" for nodes in counts)]
    screen.heading("Predicted microseconds")
    screen.table(names, [[screen.size(s), *(f"{found[s, n].us:.1f}" for n in counts)] for s in nbytes])
    screen.heading("Predicted bus bandwidth, GB/s")
    screen.table(names, [[screen.size(s), *(f"{found[s, n].busbw:.2f}" for n in counts)] for s in nbytes])
    screen.heading(f"Microseconds of each step, {counts[-1]} node{'s' if counts[-1] > 1 else ''}")
    screen.table(
        ["bytes", "reduce_scatter", "between", "to host and back", "all_gather", "between by"],
        [[screen.size(size), *_steps(found[size, counts[-1]])] for size in nbytes],
        left=(0, 5),
    )


def _steps(found: Estimate) -> list[str]:
    steps = (found.reduce_scatter, found.between, found.staging, found.all_gather)
    return [*(f"{us:.1f}" for us in steps), found.way]
