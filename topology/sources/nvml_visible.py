"""Which GPUs CUDA shows to a process: ``CUDA_VISIBLE_DEVICES`` by number and UUID, and partitions (MIG)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Instance:
    """A partition of a GPU: its UUID, and the numbers of its GPU instance and compute instance."""

    uuid: str
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass
class Device:
    """A GPU as NVML counts it.

    Attributes:
        index: NVML's number, in the order of PCI addresses.
        handle: to ask NVML by.
        uuid, bus, model, arch: None if unknown.
        split: whether it is in MIG mode, and only its instances can be used.
        instances: those that exist.
    """

    index: int
    handle: Any
    uuid: str | None = None
    bus: str | None = None
    model: str | None = None
    arch: str | None = None
    split: bool = False
    instances: list[Instance] = field(default_factory=list)


Choice = tuple[Device, "Instance | None"]


def _first(device: Device) -> Choice | None:
    """What CUDA uses when a GPU is named as a whole: the first instance of a split one."""
    if not device.split:
        return device, None
    return (device, device.instances[0]) if device.instances else None


def _named(word: str, devices: Sequence[Device]) -> Choice | None:
    """The device or instance of one word of the list; None if there is none, or more than one."""
    if re.fullmatch(r"\d{1,6}", word, re.ASCII):
        return next((_first(device) for device in devices if device.index == int(word)), None)
    if word.startswith("GPU-"):
        fits = [device for device in devices if (device.uuid or "").startswith(word)]
        return _first(fits[0]) if len(fits) == 1 else None
    pairs: list[Choice] = [(device, part) for device in devices for part in device.instances]
    if old := re.fullmatch(r"MIG-(GPU-[^/]+)/(\d{1,3})/(\d{1,3})", word, re.ASCII):
        numbers = int(old[2]), int(old[3])
        pairs = [
            (device, part)
            for device, part in pairs
            if part and device.uuid == old[1] and (part.gpu_instance, part.compute_instance) == numbers
        ]
    elif word.startswith("MIG-"):
        pairs = [(device, part) for device, part in pairs if part and part.uuid.startswith(word)]
    else:
        return None
    return pairs[0] if len(pairs) == 1 else None


def choose(devices: Sequence[Device], text: str | None, remarks: list[str]) -> list[Choice]:
    """The devices that CUDA shows, in its order, as CUDA reads the variable.

    Without it all are shown, of split GPUs every instance (CUDA lets one process use one of them). A word
    that names nothing ends the list, and a device that is named twice empties it.

    Args:
        devices: all of the machine.
        text: the variable; None if it is not set.
        remarks: receives what is odd, in words.
    """
    if text is None:
        whole: list[Choice] = []
        for device in devices:
            if device.split and not device.instances:
                remarks.append(f"GPU {device.index} is in MIG mode and has no instance, left out")
            whole += [(device, part) for part in device.instances] if device.split else [(device, None)]
        return whole
    chosen: list[Choice] = []
    for word in (part.strip() for part in text.split(",")):
        choice = _named(word, devices)
        if choice is None:
            if word not in ("", "-1", "NoDevFiles"):
                remarks.append(f'CUDA_VISIBLE_DEVICES: "{word}" is no device, which ends the list')
            break
        if any(choice[0] is device and choice[1] is part for device, part in chosen):
            remarks.append(f'CUDA_VISIBLE_DEVICES: "{word}" again, with which CUDA shows no device at all')
            return []
        chosen.append(choice)
    return chosen
