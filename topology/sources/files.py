"""Any description of a machine in a file, recognised by what is in it."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from collectives.topology import record
from collectives.topology.graph import Topology, TopologyError
from collectives.topology.sources import amd_smi, kfd, linux, live, rocm_smi

EXPECTED = (
    "nvidia-smi topo -m, topo -p2p or nvlink -s; rocm-smi --showtopo or amd-smi topology, as text or JSON; "
    "the XML of NCCL, RCCL or hwloc; a KFD topology as a folder or joined to one text; or a recording"
)
_LARGEST = 256 << 20  # far above any machine, far below what would hurt this one


def load(path: str | Path) -> Topology:
    """The machine that a file describes, or a folder: a KFD topology or a recorded sysfs with one.

    Raises:
        TopologyError: it cannot be read, is none of the known kinds, or is one that makes no sense.
    """
    place = Path(path)
    if place.is_dir():
        return _folder(place)
    try:
        if place.stat().st_size > _LARGEST:
            raise TopologyError(f"larger than {_LARGEST >> 20} MiB: expected {EXPECTED}", str(path))
        content = place.read_bytes()
    except OSError as error:
        raise TopologyError(f"it cannot be read: {error.strerror}", str(path)) from error
    return parse(content, str(path))


def _folder(place: Path) -> Topology:
    if (place / "nodes").is_dir():
        return kfd.read(place)
    if (place / "class/kfd/kfd/topology").is_dir():
        return live.detect(str(place), str(place.parent / "proc"), libraries=False).topology
    if (place / "devices/system/cpu").is_dir():
        return linux.read(str(place), str(place.parent / "proc"))
    raise TopologyError(
        "a folder with neither 'nodes' (KFD) nor 'class' and 'devices' (sysfs) in it", str(place)
    )


def parse(content: bytes | str, source: str = "") -> Topology:
    """The machine that the content of a file describes.

    Raises:
        TopologyError: it is none of the known kinds, or one that makes no sense.
    """
    try:
        text = content if isinstance(content, str) else content.decode(_encoding(content))
    except UnicodeDecodeError as error:
        raise TopologyError(f"no text: expected {EXPECTED}", source) from error
    start = text.lstrip()[:1]
    if not start:
        raise TopologyError(f"empty: expected {EXPECTED}", source)
    if start == "<":
        return _xml(text, source)
    if start in "{[" and not re.match(r"\s*\[\w*\]?\d*;?\d*m", text):
        return _json(text, source)
    return _text(text, source)


def _encoding(content: bytes) -> str:
    return "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


def _from(module: str, function: str) -> Callable[[str, str], Topology]:
    """A reader, imported when it is needed: some need more modules than others."""

    def reader(text: str, source: str) -> Topology:
        found: Topology = getattr(
            importlib.import_module(f"collectives.topology.sources.{module}"), function
        )(text, source)
        return found

    return reader


_ROOTS = {"system": ("nccl_xml", "read"), "graphs": ("nccl_xml", "read"), "topology": ("hwloc_xml", "read")}


def _xml(text: str, source: str) -> Topology:
    bare = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    root = re.search(r"<([A-Za-z_][\w.-]*)", bare)
    if root and root[1] == "graphs":
        raise TopologyError(
            "an NCCL graph, the result of its search: expected its topology, with the root element 'system'",
            source,
        )
    if not root or root[1] not in _ROOTS:
        name = f"the root element {root[1]!r}" if root else "no element"
        raise TopologyError(f"XML with {name}: expected 'system' (NCCL, RCCL) or 'topology' (hwloc)", source)
    return _from(*_ROOTS[root[1]])(text, source)


def _json(text: str, source: str) -> Topology:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise TopologyError(f"no JSON: {error.msg}: truncated?", source, error.lineno) from error
    except (RecursionError, ValueError) as error:
        raise TopologyError("no JSON that describes a machine", source) from error
    if isinstance(data, Mapping):
        if data.get("format") == record.FORMAT:
            return record.from_json(data, source)
        if any(re.fullmatch(r"system|card\d+", str(key)) for key in data):
            return rocm_smi.read_json(data, source)
    elif isinstance(data, list):
        return amd_smi.read_json(data, source)
    raise TopologyError(
        "JSON of an unknown shape: expected rocm-smi --showtopo or amd-smi topology --json, or a recording",
        source,
    )


# What a line of each text looks like; the first that fits decides.
_TEXTS: tuple[tuple[str, Callable[[str, str], Topology]], ...] = (
    (r"^### \S*nodes/\d+/", kfd.read_text),
    (r"ROCm System Management Interface|^=+ .* between two GPUs =+", rocm_smi.read_text),
    (r"^(ACCESS|WEIGHT|HOPS|LINK TYPE|NUMA BW) TABLE:", amd_smi.read_text),
    (r"^\s*Link \d+:", _from("nvidia_smi_nvlink", "read")),
    (r"^\s*(OK|CNS|GNS|TNS|NS|U)\s*=\s", _from("nvidia_smi_p2p", "read")),
    (r"GPU0", _from("nvidia_smi", "read")),
)


def _text(text: str, source: str) -> Topology:
    for pattern, reader in _TEXTS:
        if re.search(pattern, text, re.MULTILINE):
            return reader(text, source)
    raise TopologyError(f"a text of an unknown kind: expected {EXPECTED}", source, 1)
