"""The NVIDIA GPUs of this machine, from NVML and the PCI tree in sysfs.

What NVML does not answer on a machine (old drivers, virtual machines, missing rights) stays unknown.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from collectives.topology import links as speeds
from collectives.topology import pci_address, pci_sysfs
from collectives.topology.graph import Link, LinkKind, Node, NodeKind, Topology, TopologyError
from collectives.topology.sources.nvml_visible import Choice, Device, Instance, choose

# NVML's numbers, which its C interface fixes.
_LINK_GPU, _LINK_IBM, _LINK_SWITCH = 0, 1, 2
_P2P_READ, _P2P_WRITE, _P2P_OK, _P2P_UNKNOWN = 0, 1, 0, 6
_FABRIC_COMPLETED = 3
_GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}  # of NVLink, by NVML_NVLINK_VERSION_*
_MAX_LINKS = 36
_C2C_COUNT, _C2C_MBYTES = 170, 172  # fields


def read(
    pynvml: Any = None,
    sys: str = "/sys",
    environ: Mapping[str, str] | None = None,
    source: str = "NVML",
) -> Topology:
    """This machine as far as NVML and sysfs tell: the GPUs that CUDA shows, in CUDA's order.

    Args:
        pynvml: the module of nvidia-ml-py, or one with its functions; None imports it.
        sys: the root of sysfs.
        environ: where ``CUDA_VISIBLE_DEVICES`` is looked up; None is this process's environment.
        source: the name of the source in errors.

    Raises:
        TopologyError: nvidia-ml-py is not installed, or NVML does not start (no driver, for one).
    """
    if pynvml is None:
        try:
            pynvml = importlib.import_module("pynvml")
        except ImportError as error:
            raise TopologyError(f"{error}; expected the package nvidia-ml-py", source) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise TopologyError(f"NVML does not start: {error}", source) from None
    try:
        return _Reader(pynvml, sys, os.environ if environ is None else environ, source).topology()
    finally:
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            pass  # all is read


class _Reader:
    def __init__(self, pynvml: Any, sys: str, environ: Mapping[str, str], source: str) -> None:
        self.nvml, self.sys, self.environ, self.source = pynvml, sys, environ, source
        self.remarks: list[str] = []
        self.links: list[Link] = []
        self.switches: dict[str | None, Node] = {}

    def ask(self, function: str, *arguments: Any) -> Any:
        """The answer of an NVML function; None where this driver, device or binding has none."""
        call = getattr(self.nvml, function, None)
        try:
            return None if call is None else call(*arguments)
        except self.nvml.NVMLError:
            return None

    def text(self, function: str, *arguments: Any) -> str | None:
        answer = self.ask(function, *arguments)
        return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer

    def topology(self) -> Topology:
        devices = self.devices()
        text = self.environ.get("CUDA_VISIBLE_DEVICES")
        chosen = choose(devices, text, self.remarks)
        by_number = text is None or any(word.strip().isdigit() for word in text.split(","))
        models = {device.model for device in devices}
        if by_number and len(models) > 1 and self.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
            self.remarks.append(
                "GPUs differ, and CUDA numbers the fastest first where CUDA_DEVICE_ORDER is not PCI_BUS_ID; "
                "here they are numbered by PCI address"
            )
        if sum(part is not None for _, part in chosen) > 1:
            self.remarks.append("CUDA lets one process use one MIG instance only")
        gpus = [self.node(f"gpu{i}", device, part) for i, (device, part) in enumerate(chosen)]
        whole: dict[str | None, str] = {
            device.bus: node.name
            for (device, part), node in zip(chosen, gpus, strict=True)
            if part is None and device.bus
        }
        everything = {device.bus for device in devices}
        for (device, part), node in zip(chosen, gpus, strict=True):
            if part is None:
                self.fast_links(device, node, whole, everything)
        nics = pci_sysfs.nics(self.sys)
        around = self.pci_tree(chosen, gpus, nics)
        return Topology(
            [*gpus, *self.switches.values(), *nics, *around],
            self.links,
            source=self.source,
            remarks=self.remarks,
            peers=self.peers(chosen, gpus),
        )

    def devices(self) -> list[Device]:
        """All GPUs of the machine."""
        found = []
        for index in range(self.ask("nvmlDeviceGetCount") or 0):
            handle = self.ask("nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                self.remarks.append(f"GPU {index} does not answer NVML, left out")
                continue
            info = self.ask("nvmlDeviceGetPciInfo", handle)
            capability = self.ask("nvmlDeviceGetCudaComputeCapability", handle)
            device = Device(
                index,
                handle,
                self.text("nvmlDeviceGetUUID", handle),
                pci_address.normal(getattr(info, "busId", None)),
                self.text("nvmlDeviceGetName", handle),
                f"sm_{capability[0]}{capability[1]}" if capability else None,
                split=(self.ask("nvmlDeviceGetMigMode", handle) or [0])[0] == 1,
            )
            if device.split:
                self.instances(device)
            found.append(device)
        return found

    def instances(self, device: Device) -> None:
        for index in range(self.ask("nvmlDeviceGetMaxMigDeviceCount", device.handle) or 0):
            handle = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", device.handle, index)
            uuid = self.text("nvmlDeviceGetUUID", handle) if handle is not None else None
            if uuid:
                numbers = (self.ask(f"nvmlDeviceGet{n}InstanceId", handle) for n in ("Gpu", "Compute"))
                device.instances.append(Instance(uuid, *numbers))

    def node(self, name: str, device: Device, part: Instance | None) -> Node:
        numa = pci_sysfs.slot(device.bus, self.sys).numa if device.bus else None
        return Node(
            name,
            NodeKind.GPU,
            device.bus,
            numa,
            device.model,
            device.arch,
            label=f"GPU {device.index}",
            group=self.clique(device) if part is None else None,
            parent=device.bus if part else None,
        )

    def clique(self, device: Device) -> str | None:
        """The NVLink fabric's cluster and clique, which may span hosts; None outside of one."""
        for function in ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo"):
            kind = getattr(self.nvml, f"c_{function.replace('DeviceGet', '')}_t", None)
            info = kind() if kind else None
            if info is not None and self.ask(function, device.handle, ctypes.byref(info)) is not None:
                cluster = bytes(info.clusterUuid)
                completed = info.state == _FABRIC_COMPLETED and info.status == 0
                return f"{cluster.hex()}.{info.cliqueId}" if completed and any(cluster) else None
        return None

    def fast_links(
        self, device: Device, node: Node, whole: Mapping[str | None, str], everything: set[str | None]
    ) -> None:
        """The NVLinks of one GPU that are up, bundled by what is at their far ends."""
        ends: Counter[tuple[int | None, str | None]] = Counter()
        down, version = 0, None
        for link in range(_MAX_LINKS):
            state = self.ask("nvmlDeviceGetNvLinkState", device.handle, link)
            if state is None:
                continue  # a number without a link
            if state != 1:
                down += 1
                continue
            version = version or self.ask("nvmlDeviceGetNvLinkVersion", device.handle, link)
            far = self.ask("nvmlDeviceGetNvLinkRemotePciInfo", device.handle, link)
            bus = pci_address.normal(getattr(far, "busId", None))
            kind = self.ask("nvmlDeviceGetNvLinkRemoteDeviceType", device.handle, link)
            if kind not in (_LINK_GPU, _LINK_IBM, _LINK_SWITCH):
                kind = self.kind_of(bus, everything)
            ends[kind, bus] += 1
        if down:
            self.remarks.append(f"{node.name}: {down} of {down + sum(ends.values())} NVLinks are down")
        generation = speeds.nvlink_generation(device.arch) or _GENERATIONS.get(version or 0)
        each = speeds.nvlink_gbps(device.arch)
        for (kind, bus), count in ends.items():
            gbps = None if each is None else each * count
            if kind == _LINK_SWITCH:
                switch = self.switches.setdefault(
                    bus, Node(f"nvswitch{len(self.switches)}", NodeKind.NVSWITCH, bus)
                )
                for pair in ((node.name, switch.name), (switch.name, node.name)):
                    self.links.append(Link(*pair, LinkKind.NVLINK, count, generation, gbps=gbps))
            elif kind == _LINK_GPU and bus in whole and bus != device.bus:
                self.links.append(Link(node.name, whole[bus], LinkKind.NVLINK, count, generation, gbps=gbps))
            elif kind == _LINK_IBM:
                self.to_host(node, count, gbps)
            elif kind == _LINK_GPU and bus in everything and bus != device.bus:
                self.remarks.append(
                    f"{node.name}: {count} NVLinks lead to a GPU that CUDA does not show here"
                )
            else:
                self.remarks.append(f"{node.name}: {count} NVLinks are up, but where they lead is not told")
        fields = self.ask("nvmlDeviceGetFieldValues", device.handle, [_C2C_COUNT, _C2C_MBYTES])
        values = [int(f.value.uiVal) if f.nvmlReturn == 0 else 0 for f in fields or ()]
        if len(values) == 2 and values[0]:
            self.to_host(node, values[0], values[0] * values[1] / 1000 if values[1] else None)

    def kind_of(self, bus: str | None, everything: set[str | None]) -> int | None:
        """What is at an address, where NVML does not tell."""
        if bus is not None and bus in everything:
            return _LINK_GPU
        kind = pci_sysfs.slot(bus, self.sys).kind if bus else None
        return _LINK_SWITCH if (kind or "").startswith("0x0680") else None

    def to_host(self, node: Node, count: int, gbps: float | None) -> None:
        if node.numa is not None:
            for pair in ((node.name, f"numa{node.numa}"), (f"numa{node.numa}", node.name)):
                self.links.append(Link(*pair, LinkKind.C2C, count, gbps=gbps))

    def pci_tree(self, chosen: list[Choice], gpus: list[Node], nics: list[Node]) -> list[Node]:
        """Adds what joins cards below NUMA nodes."""
        told = {
            device.bus: (
                self.ask("nvmlDeviceGetMaxPcieLinkGeneration", device.handle),
                self.ask("nvmlDeviceGetMaxPcieLinkWidth", device.handle),
            )
            for device, _ in chosen
            if device.bus
        }
        places = [(node.bus, node.name) for node in (*gpus, *nics) if node.bus]
        nodes, links = pci_sysfs.tree(places, self.sys, told)
        self.links += links
        return nodes

    def peers(self, chosen: list[Choice], gpus: list[Node]) -> dict[tuple[str, str], bool]:
        """Who may read and write whose memory by itself; instances reach nobody's."""
        found = {}
        for (a, part_a), here in zip(chosen, gpus, strict=True):
            for (b, part_b), there in zip(chosen, gpus, strict=True):
                if here is there:
                    continue
                if part_a or part_b:
                    found[here.name, there.name] = False
                    continue
                asked = [
                    self.ask("nvmlDeviceGetP2PStatus", a.handle, b.handle, index)
                    for index in (_P2P_READ, _P2P_WRITE)
                ]
                if None not in asked and _P2P_UNKNOWN not in asked:
                    found[here.name, there.name] = asked == [_P2P_OK, _P2P_OK]
        return found
