"""All-reduce over many machines, predicted: the hierarchical path.

N nodes of R ranks reduce B bytes in three steps, one after another (nothing is taken to overlap)::

    T = reduce_scatter(B, R) + between(B / R, N) + all_gather(B, R)

Inside a node (reduce_scatter, all_gather) stands what the plan of one machine chooses and predicts
(``plan.py``, ``cost.py``). Between nodes each of the R ranks all-reduces its shard of m = B / R bytes with
the ranks of its number on the other nodes, by an engine::

    ring:  base + 2 (N - 1) hop + 2 (N - 1) / N m / (efficiency G)
    tree:  base + 2 ceil(log2 N) hop + 2 m / (efficiency G)
    G = min(L / S, P, E)       staged engines: + 2 m / H

L is a network card's payload rate, S the ranks that share the busiest one, P the narrowest PCIe link from a
device to its card (where known), E what one process of the engine moves at most, H a device's way to host
memory and back. Devices take the nearest card, of equally near ones that with the fewest ranks so far. The
fastest of the engine's ways is taken, as the engine would.

What the model leaves out: contention in the fabric between nodes, adaptive routing, NCCL's dip of trees
between about 64 KB and 1 MB, the caps that NCCL puts on LL, reductions in the network (SHARP). Bus bandwidth
is nccl-tests': 2 (n - 1) / n B / T for n = N R ranks.

Contract: a pure function of its arguments; each time is finite and not negative, and grows with bytes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from collectives.topology.graph import Node, NodeKind, Topology, TopologyError
from collectives.topology.paths import nearest, path

Inside = Callable[[str, int], float]
"""Microseconds of a collective of so many bytes (of its larger side) among the ranks of one node."""


@dataclass(frozen=True)
class Way:
    """How an engine can do an all-reduce between nodes.

    Attributes:
        name: algorithm and protocol.
        tree: whether the formula above is that of a tree.
        base, hop: microseconds.
        efficiency: the part of G that data get.
    """

    name: str
    tree: bool
    base: float
    hop: float
    efficiency: float

    def time(self, nbytes: float, nodes: int, gbps: float) -> float:
        """Microseconds of so many bytes between so many nodes."""
        if nodes < 2:
            return 0.0
        steps = 2 * (nodes - 1).bit_length() if self.tree else 2 * (nodes - 1)
        moved = 2 * nbytes if self.tree else 2 * (nodes - 1) / nodes * nbytes
        return self.base + steps * self.hop + moved / (self.efficiency * gbps) * 1e-3


@dataclass(frozen=True)
class Engine:
    """What moves the shards between nodes.

    Attributes:
        name: as the command line calls it.
        ways: of which the fastest is taken.
        payload: the part of the link's rate that is data.
        process_gbps: GB/s that one process moves at most; None if the link is the limit.
        staged: whether data of a device go through host memory.
        source: where the numbers are from.
    """

    name: str
    ways: tuple[Way, ...]
    payload: float
    process_gbps: float | None
    staged: bool
    source: str


ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            "nccl",
            (
                Way("ring LL", False, 6.6, 2.7, 0.5),
                Way("ring LL128", False, 14.0, 4.0, 0.92),
                Way("ring Simple", False, 8.4, 14.0, 1.0),
                Way("tree LL", True, 6.8, 5.0, 0.92 / 3.8),
                Way("tree LL128", True, 14.0, 8.5, 0.92 * 120 / 128),
                Way("tree Simple", True, 8.4, 14.0, 0.92),
            ),
            4096 / 4178,
            None,
            False,
            "base, hop and efficiency: NCCL 2.30's tuning tables, network columns; payload: RoCE v2 with "
            "packets of 4096 bytes and 82 around each",
        ),
        Engine(
            "gloo",
            (Way("ring", False, 0.0, 85.0, 1.0),),
            1448 / 1538,
            1.1,
            True,
            "hop and the rate of one process: deepspeedai/DeepSpeed#5391 (64 KB in 230 us, 32 MB in 30.7 ms "
            "over the loopback device; ranks not given, taken as two); payload: TCP over Ethernet with "
            "packets of 1500 bytes",
        ),
    )
}
"""By name."""


@dataclass(frozen=True)
class Estimate:
    """One prediction.

    Attributes:
        nbytes: of each rank's array.
        nodes, ranks: of the whole.
        reduce_scatter, between, staging, all_gather: microseconds of each step.
        way: what the engine does; empty for one node.
        us: microseconds in all.
        busbw: GB/s as nccl-tests reckons them.
    """

    nbytes: int
    nodes: int
    ranks: int
    reduce_scatter: float
    between: float
    staging: float
    all_gather: float
    way: str

    @property
    def us(self) -> float:
        """Microseconds in all."""
        return self.reduce_scatter + self.between + self.staging + self.all_gather

    @property
    def busbw(self) -> float:
        """GB/s as nccl-tests reckons them."""
        return 2 * (self.ranks - 1) / self.ranks * self.nbytes / self.us * 1e-3 if self.us else 0.0


class Cluster:
    """Equal machines joined by a network.

    Args:
        topology: one of them.
        ranks_per_node: ranks on each, on its first devices.
        engine: between them.
        link_gbits: Gbit/s of a network card's port; None takes what the topology tells.
        hop_us: microseconds of a hop between nodes, in place of the engine's.
        inside: predicts steps inside a node; None asks the plan.

    Attributes:
        gbps: G of the formula.
        host_gbps: H; None where it is not known or nothing is staged.
        remarks: what was taken to be so, in words.

    Raises:
        TopologyError: fewer devices than ranks, or no speed of the network is known.
    """

    def __init__(
        self,
        topology: Topology,
        ranks_per_node: int,
        engine: Engine,
        link_gbits: float | None = None,
        hop_us: float | None = None,
        inside: Inside | None = None,
    ) -> None:
        if not 1 <= ranks_per_node <= len(topology.gpus):
            raise TopologyError(
                f"{ranks_per_node} ranks a node, but {len(topology.gpus)} devices", topology.source
            )
        self.ranks_per_node, self.engine = ranks_per_node, engine
        self.remarks: list[str] = []
        devices = topology.gpus[:ranks_per_node]
        self._inside = inside or _cost_model(topology, ranks_per_node)
        self._ways = [w if hop_us is None else replace(w, hop=hop_us) for w in engine.ways]
        self.gbps = self._network(topology, devices, link_gbits)
        self.host_gbps = self._host(topology, devices) if engine.staged else None

    def _network(self, topology: Topology, devices: tuple[Node, ...], link_gbits: float | None) -> float:
        cards = _fastest(topology.nics)
        if not cards:
            self.remarks.append("the file tells of no network card: one for each rank is assumed")
        taken: Counter[str] = Counter()
        mine: list[tuple[Node, Node]] = []
        for gpu in devices if cards else ():
            near = nearest(topology, gpu, cards)
            card = min(near, key=lambda nic: taken[nic.name])
            taken[card.name] += 1
            mine.append((gpu, card))
        sharing = max(taken.values(), default=1)
        if sharing > 1:
            self.remarks.append(f"{sharing} ranks share a network card")
        told = [card.gbps for _, card in mine]
        known = [gbps for gbps in told if gbps is not None]
        if link_gbits is not None:
            link = link_gbits / 8
        elif known and len(known) == len(told):
            link = min(known)
        else:
            raise TopologyError("the file tells no speed of the network: give --link-gbps", topology.source)
        gbps = link * self.engine.payload / sharing
        ways = [path(topology, gpu, card).gbps for gpu, card in mine]
        slowest = min((way for way in ways if way is not None), default=None)
        if slowest is not None and slowest < gbps:
            self.remarks.append(f"PCIe between a device and its card is the limit: {slowest:g} GB/s")
            gbps = slowest
        if mine and None in ways:
            self.remarks.append("PCIe between devices and cards is not told, and taken to be no limit")
        if self.engine.process_gbps is not None and self.engine.process_gbps < gbps:
            gbps = self.engine.process_gbps
            self.remarks.append(f"one process of {self.engine.name} moves {gbps:g} GB/s at most")
        return gbps

    def _host(self, topology: Topology, devices: tuple[Node, ...]) -> float | None:
        places = {node.numa: node for node in topology.of_kind(NodeKind.NUMA)}
        ways = [path(topology, gpu, places[gpu.numa]).gbps if gpu.numa in places else None for gpu in devices]
        known = [gbps for gbps in ways if gbps is not None]
        if len(known) < len(ways):
            self.remarks.append("copies to host memory and back are not counted: their speed is not told")
            return None
        return min(known)

    def all_reduce(self, nbytes: int, nodes: int) -> Estimate:
        """The prediction for an array of so many bytes on each rank, on so many nodes."""
        local, ranks = self.ranks_per_node, nodes * self.ranks_per_node
        if nodes == 1:
            alone = self._inside("all_reduce", nbytes) if local > 1 else 0.0
            return Estimate(nbytes, 1, ranks, 0.0, alone, 0.0, 0.0, "inside one node")
        shard = nbytes / local
        way = min(self._ways, key=lambda w: w.time(shard, nodes, self.gbps))
        scatter, gather = (
            self._inside(name, nbytes) if local > 1 else 0.0 for name in ("reduce_scatter", "all_gather")
        )
        staging = 2 * shard / self.host_gbps * 1e-3 if self.host_gbps else 0.0
        return Estimate(
            nbytes, nodes, ranks, scatter, way.time(shard, nodes, self.gbps), staging, gather, way.name
        )


def _fastest(nics: tuple[Node, ...]) -> tuple[Node, ...]:
    """The cards that carry data: where all tell their speed, the fast ones (others are for management)."""
    speeds = [nic.gbps for nic in nics if nic.gbps is not None]
    if len(speeds) < len(nics) or not speeds:
        return nics
    return tuple(nic for nic in nics if nic.gbps is not None and math.isclose(nic.gbps, max(speeds)))


def _cost_model(topology: Topology, ranks: int) -> Inside:
    """What the plan for the ranks of one machine chooses, and predicts."""
    from collectives.topology.cost import Costs
    from collectives.topology.plan import plan

    costs = Costs(topology, ranks)

    @cache
    def inside(collective: str, nbytes: int) -> float:
        chosen = plan(costs, collective, nbytes)
        if chosen.microseconds is None:
            raise TopologyError(f"inside a node: {chosen.reason}", topology.source)
        return chosen.microseconds

    return inside
