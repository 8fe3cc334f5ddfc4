"""The text of ``nvidia-smi nvlink -s``: models, and which NVLinks are up, but not where they lead."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from collectives.topology import links as speeds
from collectives.topology import text_lines
from collectives.topology.graph import Node, NodeKind, Topology, TopologyError

_GPU = re.compile(r"\s*GPU (\d{1,5}): (.*?)\s*(?:\(UUID: [^)]*\))?\s*$", re.ASCII)
_LINK = re.compile(r"\s*Link (\d{1,3}): (?:(\d{1,6}(?:\.\d{1,6})?) GB/s|<inactive>|N/A)\s*$", re.ASCII)


@dataclass
class GpuLinks:
    """One GPU.

    Attributes:
        model: the product's name; None if it is not told.
        raw: GB/s on the wire by link, None for a link that is down.
    """

    model: str | None
    raw: dict[int, float | None] = field(default_factory=dict)

    @property
    def active(self) -> int:
        """How many links are up."""
        return sum(speed is not None for speed in self.raw.values())


def parse(text: str | bytes, source: str = "nvidia-smi nvlink -s") -> dict[int, GpuLinks]:
    """Each GPU by its number. Lines that tell of neither GPUs nor links are skipped.

    Raises:
        TopologyError: no GPU in it; a line of a GPU or link that is cut off; one that stands twice.
    """
    gpus: dict[int, GpuLinks] = {}
    last: GpuLinks | None = None
    for number, line in enumerate(text_lines.clean(text, source), 1):
        words = line.split()
        if gpu := _GPU.match(line):
            if int(gpu[1]) in gpus:
                raise TopologyError(f"GPU {gpu[1]} stands twice", source, number)
            last = gpus[int(gpu[1])] = GpuLinks(gpu[2] or None)
        elif link := _LINK.match(line):
            if last is None or int(link[1]) in last.raw:
                where = "before any GPU" if last is None else "twice"
                raise TopologyError(f"link {link[1]} stands {where}", source, number)
            last.raw[int(link[1])] = float(link[2]) if link[2] else None
        elif words and words[0] in ("GPU", "Link"):
            raise TopologyError(
                f'"{line.strip()}"; expected "GPU 0: model" or "Link 0: 25 GB/s" or "Link 0: <inactive>"',
                source,
                number,
            )
        elif "No devices were found" in line:
            return {}
    if not gpus:
        raise TopologyError("no line such as GPU 0: model; expected what nvidia-smi nvlink -s prints", source)
    return gpus


def read(text: str | bytes, source: str = "nvidia-smi nvlink -s") -> Topology:
    """The GPUs; how many links of what speed they have stands in the remarks, as the far ends are unknown."""
    gpus = parse(text, source)
    nodes, remarks = [], []
    for number, gpu in sorted(gpus.items()):
        name, arch = f"gpu{number}", speeds.arch_of(gpu.model)
        nodes.append(Node(name, NodeKind.GPU, model=gpu.model, arch=arch))
        if gpu.raw:
            rates = "/".join(f"{rate:g}" for rate in sorted({rate for rate in gpu.raw.values() if rate}))
            remarks.append(
                f"{name}: {gpu.active} of {len(gpu.raw)} NVLinks up"
                + (f", {rates} GB/s raw each" if rates else "")
                + "; where they lead is not told"
            )
    return Topology(nodes, source=source, remarks=remarks)
