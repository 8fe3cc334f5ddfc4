"""What links carry: usable GB/s (1e9 bytes) per direction, each figure with its source.

A figure of the data sheet counts bits on the wire; these count payload that a copy or a kernel can really
move, which is what a plan needs. They start a plan off; what was measured on the machine goes before them.
None stands for a part that is not in the tables: nothing is extrapolated from one product to the next.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Figure(NamedTuple):
    """A number and where it is from."""

    gbps: float
    source: str


NVLINK: dict[str, Figure] = {
    "sm_60": Figure(18.0, "NCCL topo.h; of 20 raw"),
    "sm_70": Figure(20.0, "NCCL topo.h; of 25 raw"),
    "sm_80": Figure(20.0, "NCCL topo.h; of 25 raw"),
    "sm_86": Figure(12.0, "NCCL topo.h; of 14.06 raw"),
    "sm_90": Figure(20.6, "NCCL topo.h; of 25 raw, 371 over 18 links"),
    "sm_100": Figure(40.1, "NCCL topo.h; of 50 raw, 722 over 18 links"),
    "sm_103": Figure(40.1, "as sm_100: the same NVLink 5, and NCCL uses one figure for both"),
}
"""One NVLink, by architecture."""

NVLINK_PORTS: dict[str, int] = {
    "sm_60": 4,
    "sm_70": 6,
    "sm_80": 12,
    "sm_86": 4,
    "sm_90": 18,
    "sm_100": 18,
    "sm_103": 18,
}
"""NVLinks of one GPU at most, by architecture (NVIDIA's data sheets)."""

NVLINK_GENERATIONS: dict[str, int] = {
    "sm_60": 1,
    "sm_70": 2,
    "sm_80": 3,
    "sm_86": 3,
    "sm_90": 4,
    "sm_100": 5,
    "sm_103": 5,
}
"""Generation of NVLink, by architecture (NVIDIA's data sheets)."""

XGMI: dict[str, Figure] = {
    "gfx906": Figure(24.0, "RCCL topo.h, Vega"),
    "gfx908": Figure(24.0, "RCCL topo.h, which has no figure of its own for MI100"),
    "gfx90a": Figure(36.0, "RCCL topo.h, MI200"),
    "gfx940": Figure(48.0, "RCCL topo.h, gfx94x"),
    "gfx941": Figure(48.0, "RCCL topo.h, gfx94x"),
    "gfx942": Figure(48.0, "AMD: 75 % of 64 raw, for CRC and protocol; RCCL topo.h has the same"),
    "gfx950": Figure(48.0, "RCCL topo.h, gfx95x"),
}
"""One xGMI link, by architecture."""

PCIE_RATES: dict[int, float] = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""GT/s of one lane, by generation (PCI-SIG)."""

PCIE_PER_GT = Figure(
    12.0 / (16 * 8.0),
    "NCCL topo.h: 12 GB/s for generation 3 with 16 lanes, 76 % of the wire's 15.75; NCCL takes the other "
    "generations and widths in proportion to GT/s and lanes (24 and 48 for generations 4 and 5); so do we",
)
"""Usable GB/s of one lane for each GT/s."""

_AMD_ZEN = {23: 16.0, 143: 16.0, 25: 24.0, 175: 24.0, 26: 32.0, 191: 32.0}
_INTEL = (
    (0xCF, 40.0),
    (0x8F, 22.0),
    (0x55, 10.0),
    (0, 6.0),
)  # Emerald and Sapphire Rapids, Skylake, Broadwell

_MODELS = (
    (r"\bP100\b", "sm_60"),
    (r"\bV100S?\b|TITAN V\b", "sm_70"),
    (r"\bA100X?\b|\bA800\b|\bA30X?\b", "sm_80"),
    (r"\bRTX A[2456]\d00\b|RTX 30\d0\b|\bA(2|10G?|16|40)\b", "sm_86"),
    (r"RTX 40\d0\b|\bL(4|20|40S?)\b|RTX \d000 Ada", "sm_89"),
    (r"\bG?H(100|200|800|20)\b", "sm_90"),
    (r"\bG?B[12]00\b", "sm_100"),
    (r"\bG?B300\b", "sm_103"),
    (r"RTX 50\d0\b|RTX PRO \d000 Blackwell", "sm_120"),
    (r"\bK80\b", "sm_37"),
    (r"\bP40\b|\bP4\b", "sm_61"),
    (r"\bT4\b|RTX 20\d0\b", "sm_75"),
)


def arch_of(model: str | None) -> str | None:
    """The architecture of an NVIDIA product by its name, such as "NVIDIA A100-SXM4-80GB"; None if unknown."""
    return next((arch for pattern, arch in _MODELS if re.search(pattern, model or "")), None)


def nvlink_gbps(arch: str | None) -> float | None:
    """Usable GB/s of one NVLink in one direction, of ``sm_90`` and the like; None if unknown."""
    figure = NVLINK.get(arch or "")
    return figure.gbps if figure else None


def nvlink_ports(arch: str | None) -> int | None:
    """How many NVLinks a GPU has at most; None if unknown."""
    return NVLINK_PORTS.get(arch or "")


def nvlink_generation(arch: str | None) -> int | None:
    """The generation of a GPU's NVLinks; None if unknown."""
    return NVLINK_GENERATIONS.get(arch or "")


def xgmi_gbps(arch: str | None) -> float | None:
    """Usable GB/s of one xGMI link in one direction, of ``gfx942`` and the like; None if unknown."""
    figure = XGMI.get(arch or "")
    return figure.gbps if figure else None


def pcie_generation(gigatransfers: float | None) -> int | None:
    """The PCIe generation that signals at so many GT/s per lane; None if there is none."""
    return next((generation for generation, rate in PCIE_RATES.items() if rate == gigatransfers), None)


def pcie_gbps(generation: int | None, width: int | None) -> float | None:
    """Usable GB/s of a PCIe link of so many lanes in one direction; None if unknown."""
    rate = PCIE_RATES.get(generation or 0)
    return None if rate is None or not width else PCIE_PER_GT.gbps * rate * width


def socket_gbps(vendor: str | None, family: int | None, model: int | None) -> float | None:
    """Usable GB/s between NUMA nodes of a host, as NCCL's topo.h has it by CPU; None if unknown.

    Args:
        vendor: as CPUID writes it, ``GenuineIntel`` or ``AuthenticAMD``.
        family: the display family (Zen 3: 25), or what NCCL writes for it (175); of Intel only 6 is known.
        model: Intel's display model.
    """
    if vendor == "AuthenticAMD":
        return _AMD_ZEN.get(family or 0)
    if vendor == "GenuineIntel" and family == 6 and model is not None:
        return next(gbps for first, gbps in _INTEL if model >= first)
    return None
