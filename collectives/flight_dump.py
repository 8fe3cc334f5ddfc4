"""Flight records as files: the form of PyTorch's NCCL flight recorder, version 2.10.

What the analyser (``torchfrtrace``) can be told is bent to what it knows: see docs/flight_record.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import io
import math
import os
import pickle
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from collectives.flight_record import Group, Record

VERSION = "2.10"
LIBRARY = "gloo"  # the analyser knows a few libraries by name, of which this one works on CPU memory too
_PATIENCE = 2.0  # seconds; a rank that was stopped in the middle of its dump must not stop the others

_NAMES = {"all_to_all_v": "all_to_all", "delegated": "all_reduce_barrier"}
_STATES = {"queued": "scheduled"}
_DTYPES = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "uint8": "Byte",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
    "bool": "Bool",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}

Dump = dict[str, Any]


def write(prefix: str, groups: Sequence[Group]) -> list[str]:
    """Write the files of all ranks of the groups; see flight_record.dump()."""
    if prefix[-1:].isdigit():
        raise ValueError(f"the prefix {prefix!r} of a dump must not end in a digit: a rank follows it")
    folder = os.path.dirname(prefix) or "."
    os.makedirs(folder, exist_ok=True)
    paths = []
    with _locked(folder):
        # Read under the lock: whoever writes later knows more.
        for rank, dump in sorted(_dumps(groups).items()):
            path = f"{prefix}{rank}"
            _merge(dump, _load(path))
            _replace(path, folder, dump)
            paths.append(path)
    return paths


def _dumps(groups: Sequence[Group]) -> dict[int, Dump]:
    dumps: dict[int, Dump] = {}
    for group in _numbered(groups):
        records = group.records()
        kept = _comparable(records)
        for rank, number in enumerate(group.ranks):
            process = group.processes[rank].hex()
            dump = dumps.setdefault(
                number,
                {
                    "version": VERSION,
                    "comm_lib_version": LIBRARY,
                    "pg_config": {},
                    "pg_status": {},
                    "entries": [],
                    "rank": number,
                    "process": process,
                    "written_by": group.ranks[group.rank],
                },
            )
            if dump["process"] == process:
                _add(dump, group, rank, records[rank], kept[rank])
    return dumps


def _numbered(groups: Sequence[Group]) -> Iterator[Group]:
    """The groups, largest first, each process with the number that it has in the first one it is in."""
    numbers: dict[bytes, int] = {}
    for group in sorted(groups, key=lambda group: -len(group.ranks)):
        if len(set(group.processes)) == len(group.processes):  # else the ranks are threads
            ranks = [
                numbers.setdefault(process, rank)
                for process, rank in zip(group.processes, group.ranks, strict=True)
            ]
            group = dataclasses.replace(group, ranks=tuple(ranks))
        yield group


def _comparable(records: list[list[Record]]) -> list[list[Record]]:
    """The records without those whose counterparts on another rank are overwritten already.

    The analyser would take the other ranks for missing.
    """
    calls = [[record for record in of_rank if not record.is_p2p] for of_rank in records]
    first = max((of_rank[0].epoch for of_rank in calls if of_rank and of_rank[0].serial > 1), default=0)
    kept = [[record for record in of_rank if record.epoch >= first] for of_rank in calls]
    messages = [[record for record in of_rank if record.is_p2p] for of_rank in records]
    for rank, of_rank in enumerate(messages):
        for record in of_rank:
            if record.peer is None or not record.peer < len(messages):
                continue
            theirs = messages[record.peer]
            lost = bool(theirs) and theirs[0].serial > 1
            same = [
                other.epoch
                for other in theirs
                if other.peer == rank and other.collective != record.collective
            ]
            if not lost or record.epoch >= min(same, default=math.inf):
                kept[rank].append(record)
    return kept


def _add(dump: Dump, group: Group, rank: int, records: list[Record], kept: list[Record]) -> None:
    _configure(dump, group, group.name, group.ranks)
    calls = [record for record in records if not record.is_p2p]
    dump["pg_status"][group.name] = {
        "last_enqueued_collective": calls[-1].epoch if calls else -1,
        "last_started_collective": _last(calls, ("started", "completed")),
        "last_completed_collective": _last(calls, ("completed",)),
    }
    for record in kept:
        name, what = group.name, _NAMES.get(record.collective, record.collective)
        if record.peer is not None:
            # A pair of its own for each direction: the analyser expects all ranks of a group in every entry.
            source, target = (rank, record.peer) if record.collective == "send" else (record.peer, rank)
            pair = sorted({group.ranks[source], group.ranks[target]})
            name = f"{group.name}:{source}->{target}"
            _configure(dump, group, name, pair)
            ends = pair.index(group.ranks[source]), pair.index(group.ranks[target])
            what += f" {ends[0]}->{ends[1]}" if record.collective == "send" else f" {ends[1]}<-{ends[0]}"
        dump["entries"].append(_entry(record, name, group, what))


def _configure(dump: Dump, group: Group, name: str, ranks: Sequence[int]) -> None:
    dump["pg_config"][name] = {
        "name": name,
        "desc": group.description,
        "ranks": str(list(ranks)),
        "communicator": group.name,
    }


def _last(calls: list[Record], states: tuple[str, ...]) -> int:
    return max((record.epoch for record in calls if record.state in states), default=-1)


def _entry(record: Record, name: str, group: Group, what: str) -> dict[str, Any]:
    sizes = _sizes(record, len(group.ranks))
    dtypes = [_DTYPES[record.dtype] if record.dtype else "Byte"]
    ended, started = record.ended_at, record.started_at
    return {
        "record_id": 0,  # numbered when the file is complete
        "pg_id": 0,
        "process_group": (name, group.description),
        "collective_seq_id": record.epoch,
        # A message of a rank to itself would look like a pair to be coalesced.
        "p2p_seq_id": 2 * record.epoch + (record.collective == "recv") if record.is_p2p else 0,
        "op_id": record.serial,
        "profiling_name": f"{LIBRARY}:{what}",
        "time_created_ns": record.queued_at,
        "time_discovered_started_ns": started,
        "time_discovered_completed_ns": ended,
        "duration_ms": (ended - started) / 1e6 if ended and started else None,
        "input_sizes": [sizes[0]],
        "output_sizes": [sizes[1]],
        "input_dtypes": dtypes,
        "output_dtypes": dtypes,
        "state": _STATES.get(record.state, record.state),
        "timeout_ms": None,
        "is_p2p": record.is_p2p,
        "retired": record.state in ("completed", "failed"),
        "frames": [],
        "thread_id": "",
        "thread_name": "",
        # What the form has no name for.
        "collective": record.collective,
        "op": record.op,
        "root": record.root,
        "count": record.count,
        "algorithm": record.algorithm,
        "tag": record.tag,
    }


def _sizes(record: Record, world: int) -> tuple[list[int], list[int]]:
    """Sizes of input and output."""
    one, all_ = [record.count], [world * record.count]
    is_root = record.root == record.rank
    given = None if record.shape is None else list(record.shape)
    match record.collective:
        case "barrier" | "delegated":
            return [], []
        case "all_gather":
            return given or one, all_
        case "gather":
            return given or one, all_ if is_root else []
        case "reduce_scatter":
            return given or all_, one
        case "scatter":
            return (given or all_) if is_root else [], one
        case "all_to_all":
            return given or all_, given or all_
        case "send" | "recv":
            return one, one
        case _:
            return given or one, given or one


def _merge(dump: Dump, before: Dump | None) -> None:
    """Keep what the file says of communicators that this process is not in; put all in order of time."""
    if before is not None and before.get("process") == dump["process"]:
        ours = {config["communicator"] for config in dump["pg_config"].values()}
        others = {
            name: config for name, config in before["pg_config"].items() if config["communicator"] not in ours
        }
        dump["pg_config"] |= others
        dump["pg_status"] |= {name: s for name, s in before["pg_status"].items() if name in others}
        dump["entries"] += [e for e in before["entries"] if e["process_group"][0] in others]
    dump["entries"].sort(key=lambda entry: entry["time_created_ns"])
    for index, entry in enumerate(dump["entries"]):
        entry["record_id"] = index


class _PlainData(pickle.Unpickler):
    """Files in a folder that others may write to: nothing but plain data is taken from them."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in a flight record")


def _load(path: str) -> Dump | None:
    try:
        with open(path, "rb") as file:
            found = _PlainData(io.BytesIO(file.read())).load()
        return found if {"process", "pg_config", "pg_status", "entries"} <= found.keys() else None
    except Exception:  # whatever lies there is replaced
        return None


def _replace(path: str, folder: str, dump: Dump) -> None:
    # Without the prefix, and no rank at its end: the analyser passes over what a killed writer left.
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=folder)
    try:
        with open(handle, "wb") as file:
            pickle.dump(dump, file)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """One writer at a time in this folder; leaves no file, and a writer that dies lets go."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.01)
        yield
    finally:
        os.close(handle)
