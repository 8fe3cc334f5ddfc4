"""How long a collective takes: predicted microseconds of every algorithm on a machine.

    time = latency + soft(bytes / bandwidth)

*Latency* counts what an algorithm waits for, with n ranks and the constants of ``constants.json``:

========= ==================================================================================================
ll        ``ll_base`` + (n - 1) ``peer``: packets that carry their own flags
one_shot  ``base`` + (n - 1) ``peer``: launch, one exchange of flags; ``peer``: to serve one more
two_shot  ``base`` + ``phase`` + 2 (n - 1) ``peer``: ``phase`` is what a second exchange adds
nvls      ``base`` + ``phase``: the switch serves all peers at once; all_reduce alone has the ``phase``
ring      ``base`` + steps ``hop``: 2 (n - 1) steps for all_reduce, n - 1 for the others
chain     ``base`` + 2 (n - 1) ``hop``: up through the ranks in their order, then the result down
tree      ``base`` + 2 depth ``hop``
nccl      ``nccl_base`` + steps of its ring ``nccl_hop``; or ``nccl_nvls_base`` with NVLS, if that is faster
========= ==================================================================================================

*bytes / bandwidth* is the time of the busiest link (``routes.py``) with what each rank sends to each other
one, S being the bytes of the call's larger side (nccl-tests' size):

========= =============================================== ===================== ==========================
\\         all_reduce                                      gather and scatter    broadcast
========= =============================================== ===================== ==========================
ll        2 S to each                                     2 S/n to each         2 S from the root to each
one_shot  S to each                                       S/n to each           S from the root to each
two_shot  2 S/n to each                                   is one_shot           S/n from the root and
                                                                                S/n to each
ring      2 (n - 1)/n S to the next, over all rings       (n - 1)/n S           S
chain     S to the next, and S back (16 bits: 2 S up)     none                  none
tree      S/2 up and down each of two trees               none                  S/2 down each of two trees
nvls      (1 + 1/n) S out of and into each port           S at the busier end   S
nccl      as ring or as nvls, the rings even over all ways where that is better, as on full meshes
========= =============================================== ===================== ==========================

Of a link's usable speed an algorithm reaches ``efficiency`` (NVLS and NCCL: their own; PCIe and sockets:
``host_efficiency``). The knee: ``soft(x) = k (softplus(x/k - 1) - softplus(-1))`` with ``k = knee``: what is
short against k hides behind the latency, what is long counts in full less 1.31 k.

Contract: a pure function of topology, ranks and constants; finite, not negative, and monotone in bytes. Ranks
are all on one machine. Ranks on CPUs are the communicator's own to predict (``csrc/cpu/cost.cpp``): what it
makes of ``Constants.cpu`` can be given to ``plan.decide`` in place of these predictions.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from collectives.topology import constants as numbers
from collectives.topology.access import multicast, refused
from collectives.topology.call import SIZES, check
from collectives.topology.constants import Constants
from collectives.topology.fingerprint import fingerprint
from collectives.topology.graph import Topology
from collectives.topology.ring_search import Order, hops
from collectives.topology.rings import best_rings
from collectives.topology.routes import Flow, Routes, chosen
from collectives.topology.trees import Tree, trees_of

ALGORITHMS = ("ll", "one_shot", "two_shot", "chain", "ring", "tree", "nvls", "nccl")
"""In the order in which equal predictions are preferred."""

RING_BUDGET = 20_000
"""Search steps for the rings: a fifth of a second."""


@dataclass(frozen=True)
class Line:
    """Latency, and microseconds of the busiest link per byte of the call."""

    latency: float
    per_byte: float

    def at(self, nbytes: int, knee: float) -> float:
        """Microseconds of a call of so many bytes."""
        return self.latency + soft(self.per_byte * nbytes, knee)


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def soft(x: float, knee: float) -> float:
    """`x` with what is short against `knee` hidden; 0 at 0."""
    return knee * (_softplus(x / knee - 1.0) - _softplus(-1.0)) if knee > 0 else x


class Costs:
    """Predictions for ranks on one machine.

    Args:
        topology: the machine.
        world: ranks; by default one on each device.
        devices: device numbers by rank; by default the first `world`.
        constants: instead of those that come with the package.

    Attributes:
        topology: the ranks' part of the machine: rank r on ``gpus[r]``.
        world: ranks.
        routes: what they load.

    Raises:
        ValueError: there are no ranks, not as many devices, or `devices` does not give each rank its own.
    """

    def __init__(
        self,
        topology: Topology,
        world: int | None = None,
        devices: Sequence[int] | None = None,
        constants: Constants | None = None,
    ) -> None:
        count = len(topology.gpus)
        if devices is None:
            devices = range(count if world is None else world)
        world = len(devices) if world is None else world
        if world < 1 or world > count:
            raise ValueError(f"{world} ranks on {count} devices: from 1 rank to one a device is possible")
        if len(devices) != world or len(set(devices)) != world or not set(devices) <= set(range(count)):
            raise ValueError(
                f"devices {list(devices)}: expected {world} different numbers from 0 to {count - 1}"
            )
        self.constants = constants or numbers.default()
        self.topology = chosen(topology, devices)
        self.world = world
        self.routes = Routes(self.topology, self.constants.unknown)
        self.numbers = self.constants.of(gpu.arch for gpu in self.topology.gpus)
        self._lines: dict[tuple[str, str, bool], tuple[Line, ...]] = {}

    def with_constants(self, constants: Constants) -> Costs:
        """The same ranks, reckoned with other constants; speeds of unknown links stay."""
        other = copy.copy(self)
        other.constants = constants
        other.numbers = constants.of(gpu.arch for gpu in self.topology.gpus)
        other._lines = {}
        return other

    @cached_property
    def rings(self) -> tuple[Order, ...]:
        """The rings that share a ring's bytes."""
        found = best_rings(self.routes.pairs, RING_BUDGET)
        return tuple(ring.order for ring in found.rings)

    @cached_property
    def trees(self) -> tuple[Tree, Tree]:
        """The two trees that share a tree's bytes."""
        return trees_of(self.routes.pairs)

    @cached_property
    def fingerprint(self) -> str:
        """Of the ranks' part of the machine."""
        return fingerprint(self.topology)

    @cached_property
    def switched(self) -> list[float] | None:
        """GB/s of each rank's ports where all hang on NVSwitches; None where they do not."""
        return self.routes.ports()

    def predict(self, algorithm: str, collective: str, nbytes: int, dtype: str = "float32") -> float | None:
        """Predicted microseconds.

        Args:
            algorithm: of :data:`ALGORITHMS`.
            collective: of ``call.COLLECTIVES``.
            nbytes: of the larger side: of one array of all_reduce and broadcast, of all_gather's output, of
                reduce_scatter's input.
            dtype: the element type, of ``call.SIZES``.

        Returns:
            None if the algorithm has no form for this collective or this machine.

        Raises:
            ValueError: an unknown name, or a negative number of bytes.
        """
        check(collective, nbytes, dtype)
        if algorithm not in ALGORITHMS:
            raise ValueError(f'no algorithm "{algorithm}": expected one of {", ".join(ALGORITHMS)}')
        key = algorithm, collective, SIZES[dtype] == 2
        if key not in self._lines:
            self._lines[key] = self._ways(*key)
        knee = self.constants.shared["knee"]
        return min((line.at(nbytes, knee) for line in self._lines[key]), default=None)

    def pairs_used(self, algorithm: str) -> set[tuple[int, int]]:
        """The pairs of ranks whose memory an algorithm of ours reaches; the smaller rank first."""
        n = self.world
        if algorithm == "ring":
            used = {pair for ring in self.rings for pair in hops(ring)}
        elif algorithm == "chain":
            used = {(r, (r + 1) % n) for r in range(n)} if n > 1 else set()
        elif algorithm == "tree":
            used = {edge for tree in self.trees for edge in _edges(tree)}
        elif algorithm in ("nvls", "nccl"):
            used = set()
        else:
            used = set(itertools.combinations(range(n), 2))
        return {(min(pair), max(pair)) for pair in used}

    def _ways(self, algorithm: str, collective: str, short: bool) -> tuple[Line, ...]:
        """What the algorithm can do, of which it does the faster; nothing if it has no form."""
        if algorithm == "nccl":
            return self._nccl(collective)
        if algorithm == "nvls":
            line = self._nvls(collective)
            return (line,) if line else ()
        c, n = self.numbers, self.world
        pattern = self._flows(algorithm, collective, short)
        if pattern is None:
            return ()
        flows, steps = pattern
        if algorithm == "ll":
            latency = c["ll_base"] + (n - 1) * c["peer"]
        elif algorithm == "one_shot":
            latency = c["base"] + (n - 1) * c["peer"]
        elif algorithm == "two_shot":
            latency = c["base"] + (c["phase"] if n > 1 else 0.0) + 2 * (n - 1) * c["peer"]
        else:
            latency = c["base"] + steps * self._hop("hop", self.pairs_used(algorithm))
        host = self.constants.shared["host_efficiency"]
        return (Line(latency, self.routes.busiest(flows, c["efficiency"], host)),)

    def _hop(self, which: str, pairs: set[tuple[int, int]]) -> float:
        return self.constants.links[self.routes.slowest_kind(pairs)][which]

    def _flows(self, algorithm: str, collective: str, short: bool) -> tuple[list[Flow], int] | None:
        """What flows for each byte of the call, and the steps one after another; None if there is no form."""
        n = self.world
        everyone = list(itertools.permutations(range(n), 2))
        reduces = collective == "all_reduce"
        if algorithm in ("ll", "one_shot"):
            twice = 2.0 if algorithm == "ll" else 1.0
            if collective == "broadcast":
                return [(0, peer, twice) for peer in range(1, n)], 1
            return [(i, j, twice * (1.0 if reduces else 1.0 / n)) for i, j in everyone], 1
        if algorithm == "two_shot":
            if collective == "broadcast":
                return [(0, peer, 1.0 / n) for peer in range(1, n)] + [
                    (i, j, 1.0 / n) for i, j in everyone
                ], 2
            return ([(i, j, 2.0 / n) for i, j in everyone], 2) if reduces else None
        if algorithm == "chain":
            up = [(r, r + 1, 2.0 if short else 1.0) for r in range(n - 1)]  # 16 bits travel up as 32
            down = [(r - 1 if r else n - 1, r, 1.0) for r in range(n - 1)]
            return (up + down, 2 * (n - 1)) if reduces else None
        if algorithm == "ring":
            share = {"all_reduce": 2.0 * (n - 1) / n, "broadcast": 1.0}.get(collective, (n - 1) / n)
            rings = self.rings
            flows = [(i, j, share / len(rings)) for ring in rings for i, j in hops(ring)]
            return flows, (2 if reduces else 1) * (n - 1)
        if collective not in ("all_reduce", "broadcast"):
            return None
        down = [(parent, child, 0.5) for tree in self.trees for parent, child in _edges(tree)]
        depth = max(tree.depth for tree in self.trees)
        if reduces:
            return down + [(child, parent, size) for parent, child, size in down], 2 * depth
        return down, depth + 1  # the root of the call hands each tree's root its half

    def _nvls(self, collective: str) -> Line | None:
        ports, c, n = self.switched, self.numbers, self.world
        if not ports or n < 2 or not multicast(self.topology):
            return None
        load = 1.0 + 1.0 / n if collective == "all_reduce" else 1.0
        both = c["phase"] if collective == "all_reduce" else 0.0
        return Line(c["base"] + both, load / (min(ports) * c["nvls_efficiency"]) * 1e-3)

    def _nccl(self, collective: str) -> tuple[Line, ...]:
        c, shared = self.numbers, self.constants.shared
        pattern = self._flows("ring", collective, False)
        if pattern is None or self.world < 2:
            return (Line(c["nccl_base"], 0.0),)
        flows, steps = pattern
        used = self.pairs_used("ring")
        # All rings that there are at once load all ways alike, which on a full mesh is better than a few.
        share = sum(size for _, _, size in flows) / self.world
        even = [(i, j, share / (self.world - 1)) for i, j in itertools.permutations(range(self.world), 2)]
        per_byte = min(
            self.routes.busiest(some, c["nccl_efficiency"], shared["nccl_host_efficiency"])
            for some in (flows, even)
        )
        if any(refused(self.topology, i, j) for i, j in used):  # through the host's memory
            per_byte = max(per_byte, share / shared["staged"] * 1e-3)
        ring = Line(c["nccl_base"] + steps * self._hop("nccl_hop", used), per_byte)
        nvls = self._nvls(collective) if collective == "all_reduce" else None
        return (ring, Line(c["nccl_nvls_base"], nvls.per_byte)) if nvls else (ring,)


def _edges(tree: Tree) -> list[tuple[int, int]]:
    return [(parent, child) for child, parent in enumerate(tree.parents) if parent is not None]
