"""A stand-in for pynvml: the same functions, of a machine that the test describes; and PCI trees in sysfs."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SWITCH, GPU, IBM = 2, 0, 1


class NVMLError(Exception):
    """What every function raises that does not apply."""


class Fabric(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("clusterUuid", ctypes.c_uint8 * 16),
        ("status", ctypes.c_uint),
        ("cliqueId", ctypes.c_uint32),
        ("state", ctypes.c_uint),
    )


@dataclass
class Card:
    """A GPU; `ends` are the far ends of its NVLinks as (kind, address), None for a link that is down."""

    bus: str
    ends: list[tuple[int | None, str | None] | None] = field(default_factory=list)
    name: str | bytes = "NVIDIA H100 80GB HBM3"
    capability: tuple[int, int] | None = (9, 0)
    uuid: str = ""
    mig: list[tuple[str, int, int]] | None = None
    cluster: int = 0
    clique: int = 0
    lost: bool = False
    c2c: tuple[int, int] | None = None
    reaches: bool | None = True


class Nvml:
    """The module. A card without an answer raises, as the library does."""

    NVMLError = NVMLError
    c_nvmlGpuFabricInfoV_t = Fabric  # noqa: N815

    def __init__(self, cards: list[Card], works: bool = True) -> None:
        self.cards, self.works, self.running = cards, works, 0

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.works:
            raise NVMLError("Driver Not Loaded")
        self.running += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.running -= 1

    def __getattr__(self, name: str) -> Any:
        answer = getattr(type(self), "_" + name.removeprefix("nvmlDevice"), None)
        if answer is None:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            assert self.running
            found = answer(self, *arguments)
            if found is None:
                raise NVMLError("Not Supported")
            return found

        return call

    def _GetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def _GetHandleByIndex(self, index: int) -> Card | None:  # noqa: N802
        return None if self.cards[index].lost else self.cards[index]

    def _GetUUID(self, card: Any) -> str:  # noqa: N802
        return card[0] if isinstance(card, tuple) else card.uuid

    def _GetPciInfo(self, card: Card) -> Any:  # noqa: N802
        return SimpleNamespace(busId=f"0000{card.bus.upper()}".encode())

    def _GetName(self, card: Card) -> str | bytes:  # noqa: N802
        return card.name

    def _GetCudaComputeCapability(self, card: Card) -> tuple[int, int] | None:  # noqa: N802
        return card.capability

    def _GetMigMode(self, card: Card) -> list[int]:  # noqa: N802
        return [int(card.mig is not None)] * 2

    def _GetMaxMigDeviceCount(self, card: Card) -> int:  # noqa: N802
        return 7

    def _GetMigDeviceHandleByIndex(self, card: Card, index: int) -> Any:  # noqa: N802
        return card.mig[index] if card.mig and index < len(card.mig) else None

    def _GetGpuInstanceId(self, part: tuple[str, int, int]) -> int:  # noqa: N802
        return part[1]

    def _GetComputeInstanceId(self, part: tuple[str, int, int]) -> int:  # noqa: N802
        return part[2]

    def _GetNvLinkState(self, card: Card, link: int) -> int | None:  # noqa: N802
        return int(card.ends[link] is not None) if link < len(card.ends) else None

    def _GetNvLinkVersion(self, card: Card, link: int) -> int:  # noqa: N802
        return 6

    def _GetNvLinkRemoteDeviceType(self, card: Card, link: int) -> int | None:  # noqa: N802
        return (card.ends[link] or (None,))[0]

    def _GetNvLinkRemotePciInfo(self, card: Card, link: int) -> Any:  # noqa: N802
        bus = (card.ends[link] or (None, None))[1]
        return None if bus is None else SimpleNamespace(busId=f"0000{bus}".encode())

    def _GetGpuFabricInfoV(self, card: Card, pointer: Any) -> int | None:  # noqa: N802
        if not card.cluster:
            return None
        info = pointer._obj
        info.clusterUuid[0], info.cliqueId, info.state = card.cluster, card.clique, 3
        return 0

    def _GetP2PStatus(self, here: Card, there: Card, index: int) -> int | None:  # noqa: N802
        return None if here.reaches is None else 0 if here.reaches else 2

    def _GetMaxPcieLinkGeneration(self, card: Card) -> int:  # noqa: N802
        return 5

    def _GetMaxPcieLinkWidth(self, card: Card) -> int:  # noqa: N802
        return 16

    def _GetFieldValues(self, card: Card, fields: list[int]) -> Any:  # noqa: N802
        if card.c2c is None:
            return None
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=number)) for number in card.c2c]


def device(
    root: Path,
    path: str,
    numa: int = 0,
    kind: str = "0x030200",
    speed: str = "32.0 GT/s PCIe",
    rdma: str | None = None,
    net: str | None = None,
) -> None:
    """Adds a device to a sysfs below `root`; `path` is its address after those of the ports above it."""
    folder = root / "devices/pci0000:00"
    for part in path.split("/"):
        folder = folder / part
        folder.mkdir(parents=True, exist_ok=True)
        link = root / "bus/pci/devices" / part
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(folder)
        (folder / "max_link_speed").write_text(speed + "\n")
        (folder / "max_link_width").write_text("16\n")
    (folder / "numa_node").write_text(f"{numa}\n")
    (folder / "class").write_text(kind + "\n")
    for name, place in ((rdma, "infiniband"), (net, "net")):
        if name:
            entry = root / "class" / place / name
            entry.mkdir(parents=True)
            (entry / "device").symlink_to(folder)
            (entry / "speed").write_text("200000\n")
            if place == "infiniband":
                (entry / "ports/1").mkdir(parents=True)
                (entry / "ports/1/rate").write_text("400 Gb/sec (4X NDR)\n")


def distances(root: Path, rows: list[str]) -> None:
    """Adds NUMA nodes with their distances."""
    for number, row in enumerate(rows):
        folder = root / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "distance").write_text(row + "\n")
