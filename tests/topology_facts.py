"""The recorded machines beside the repository, and what is known of each; not there in every checkout."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from collectives.topology import paths
from collectives.topology.graph import PathClass, Topology

FOLDER = Path(__file__).parents[1].parent / "shared" / "topologies"
_FACTS = FOLDER / "facts.json"
FACTS: dict[str, Any] = json.loads(_FACTS.read_text()) if _FACTS.exists() else {}


def recorded(prefix: str) -> list[str]:
    """The recorded files whose names begin so."""
    return sorted(name for name in FACTS if name.startswith(prefix))


def counts(topology: Topology) -> dict[str, int]:
    """Pairs of devices by their fast links."""
    matrix = paths.link_matrix(topology)
    return dict(Counter(str(matrix[i][j]) for i in range(len(matrix)) for j in range(i)))


def others(topology: Topology) -> dict[PathClass, int]:
    """Pairs of devices without fast links, by path class."""
    gpus = topology.gpus
    found = (paths.path(topology, a, b) for i, a in enumerate(gpus) for b in gpus[:i])
    return dict(Counter(path.kind for path in found if path.kind != PathClass.LINK))


def best_ring(topology: Topology) -> int:
    """The largest number of links that every step of some ring over all devices has; 0 without a ring."""
    matrix = paths.link_matrix(topology)
    size = len(matrix)
    if size == 2:
        return matrix[0][1] or 0
    for bound in sorted({count for row in matrix for count in row if count}, reverse=True):
        near = [[j for j in range(size) if (matrix[i][j] or 0) >= bound] for i in range(size)]
        ends = {(1, 0)}  # devices visited, and the last of them
        for _ in range(size - 1):
            ends = {(seen | 1 << j, j) for seen, last in ends for j in near[last] if not seen >> j & 1}
        if any(0 in near[last] for _, last in ends):
            return bound
    return 0


def check(topology: Topology, facts: dict[str, Any], words: dict[str, tuple[PathClass, ...]]) -> None:
    """Asserts each fact on the links of devices; `words` are path classes by the facts' words for them."""
    assert len(topology.gpus) == facts["gpus"]
    assert counts(topology) == facts["direct_link_count_histogram"]
    order = [int(dev) for dev in facts.get("dev_order") or range(facts["gpus"])]
    islands = sorted(tuple(sorted(order[i] for i in island)) for island in facts["islands"])
    assert paths.islands(topology) == islands
    assert paths.fully_connected(topology) is facts["fully_connected_by_direct_links"]
    assert best_ring(topology) == facts["ring_bottleneck_links"]
    found = others(topology)
    for word, number in facts["other_pairs"].items():
        assert sum(found.pop(kind, 0) for kind in words[word]) == number, word
    assert not found
