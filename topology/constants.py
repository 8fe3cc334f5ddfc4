"""The numbers of the cost model, read from ``constants.json``, where each stands with its source.

An architecture of which nothing is known, and ranks on devices of several, get for each constant the worst
that is in question: the longest latency, the lowest part of a speed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from collectives.topology.checked import Checked

VERSION = 1
"""Of the file."""

FILE = Path(__file__).with_name("constants.json")

GPU = (
    "ll_base",
    "base",
    "phase",
    "peer",
    "efficiency",
    "nccl_base",
    "nccl_efficiency",
)
"""The constants of an architecture; ``cost.py`` says what they mean."""

NVLS = ("nvls_efficiency", "nccl_nvls_base")
"""Those of architectures that NVSwitches are made for."""


@dataclass(frozen=True)
class Constants:
    """The numbers, without their sources.

    Attributes:
        unknown: GB/s to plan with where a speed is not known, by kind of link.
        shared: of all machines.
        links: by kind of link (``nvlink``, ``xgmi``, ``pcie``).
        gpu: by architecture.
        cpu: of ranks that are processes; the CPU communicator's own model uses them.
    """

    unknown: Mapping[str, float]
    shared: Mapping[str, float]
    links: Mapping[str, Mapping[str, float]]
    gpu: Mapping[str, Mapping[str, float]]
    cpu: Mapping[str, float]

    def of(self, archs: Iterable[str | None]) -> dict[str, float]:
        """For the devices' architectures: of each constant the worst that it may be."""
        wanted = set(archs)
        known = [self.gpu[arch] for arch in wanted if arch is not None and arch in self.gpu]
        rows = known if known and len(known) == len(wanted) else list(self.gpu.values())
        return {
            name: (min if "efficiency" in name else max)(row[name] for row in rows if name in row)
            for name in GPU + NVLS
            if any(name in row for row in rows)
        }


def parse(data: object, source: str) -> Constants:
    """The constants of a file's content.

    Raises:
        TopologyError: it is of another version, or a constant is missing, no number, or without a source.
    """
    read = Checked(source)
    top = read.table(data, "constants")
    if top.get("version") != VERSION:
        raise read.fault("version", str(VERSION))

    def numbers(value: object, where: str) -> dict[str, float]:
        found = {}
        for name, entry in read.table(value, where).items():
            figure = read.table(entry, f"{where}.{name}")
            if not read.text(figure.get("source"), f"{where}.{name}.source"):
                raise read.fault(f"{where}.{name}.source", "where the number is from")
            found[name] = read.amount(figure.get("value"), f"{where}.{name}.value")
        return found

    raw = read.table(top.get("gpu"), "gpu")
    gpu: dict[str, dict[str, float]] = {}

    def architecture(name: str, seen: tuple[str, ...] = ()) -> dict[str, float]:
        if name in seen or name not in raw:
            raise read.fault(f"gpu.{name}", "an architecture of the file, like no other that is like it")
        if name not in gpu:
            entry: dict[str, Any] = dict(read.table(raw[name], f"gpu.{name}"))
            like, why = entry.pop("like", None), entry.pop("why", None)
            own = numbers(entry, f"gpu.{name}")
            if like is not None:
                read.text(why, f"gpu.{name}.why")
                own = {**architecture(read.text(like, f"gpu.{name}.like"), (*seen, name)), **own}
            for key in GPU:
                if key not in own:
                    raise read.fault(f"gpu.{name}.{key}", "a number")
            gpu[name] = own
        return gpu[name]

    for name in raw:
        architecture(name)
    return Constants(
        numbers(top.get("unknown"), "unknown"),
        numbers(top.get("shared"), "shared"),
        {
            kind: numbers(value, f"links.{kind}")
            for kind, value in read.table(top.get("links"), "links").items()
        },
        gpu,
        numbers(top.get("cpu"), "cpu"),
    )


@cache
def default() -> Constants:
    """The constants that come with the package."""
    return parse(json.loads(FILE.read_text(encoding="utf-8")), str(FILE))
