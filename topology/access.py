"""What devices may do with each other beside what links them: peer access, reductions in switches."""

from __future__ import annotations

from collectives.topology.graph import Topology


def multicast(topology: Topology) -> bool:
    """Whether all devices are of architectures that reduce and multicast in NVSwitches: sm_90 and later."""
    archs = [gpu.arch or "" for gpu in topology.gpus]
    return all(arch.startswith("sm_") and arch[3:].isdigit() and int(arch[3:]) >= 90 for arch in archs)


def refused(topology: Topology, i: int, j: int) -> bool:
    """Whether one of two devices may not reach the other's memory, as far as the source tells."""
    a, b = topology.gpus[i], topology.gpus[j]
    instances = all(gpu.parent is not None and (gpu.arch or "").startswith("sm_") for gpu in (a, b))
    told = [topology.peers.get(pair) for pair in ((a.name, b.name), (b.name, a.name))]
    return instances or False in told
