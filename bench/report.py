"""The table and the JSON of a run, in the columns and field names of nccl-tests."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectives.bench.cases import COLLECTIVES, NCCL_DTYPES, NCCL_OPS
from collectives.bench.sweep import Measurement, Row

JSON_VERSION = 2  # of nccl-tests' format
NOT_MEASURED = "N/A"
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"


def number(value: float | None, width: int) -> str:
    """`value` in at most `width` characters, with two decimals if they fit; N/A for None."""
    if value is None:
        return NOT_MEASURED
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:.1e}"


def ratio_text(value: float | None) -> str:
    """A ratio in at most 6 characters; a small one keeps two significant digits."""
    if value is None or not 0 < value < 0.1:
        return number(value, 6)
    text = f"{value:.2g}"
    return text if len(text) <= 6 else f"{value:.0e}"


def redop(row: Row) -> str:
    """The redop column: nccl-tests' name, none for a collective that only moves data."""
    return NCCL_OPS.get(row.op, row.op) if COLLECTIVES[row.collective].reduces else "none"


def root(row: Row) -> int:
    """The root column: -1 where there is no root."""
    return row.root if COLLECTIVES[row.collective].root else -1


def _measurement(m: Measurement | None) -> str:
    m = m if m is not None else Measurement()
    wrong = NOT_MEASURED if m.nwrong is None else str(m.nwrong)
    time = None if m.time is None else m.time * 1e6
    return f"  {number(time, 7):>7}  {number(m.alg_bw, 6):>6}  {number(m.bus_bw, 6):>6}  {wrong:>6}"


def column_heads(peers: Sequence[str]) -> str:
    """The three lines above a table."""
    blank = f"{'':>10}  {'':>12}  {'':>8}  {'':>6}  {'':>6}"
    variant = f"  {'time':>7}  {'algbw':>6}  {'busbw':>6}  {'#wrong':>6}"
    units = f"  {'(us)':>7}  {'(GB/s)':>6}  {'(GB/s)':>6}  {'':>6}"
    lines = [
        f"# {blank}  {'out-of-place':^31}  {'in-place':^31}",
        f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}{2 * variant}  algorithm",
        f"# {'(B)':>10}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}{units * 2}  {'':>9}",
    ]
    for name in peers:
        for index, text in enumerate(
            (f"{name:^17}", f"{'time':>9}  {'ratio':>6}", f"{'(us)':>9}  {'(x)':>6}")
        ):
            lines[index] += (" " * 11 if index == 0 and name == peers[0] else "") + f"  {text}"
    return "\n".join(line.rstrip() for line in lines)


def peer_of(row: Row, name: str) -> tuple[str | None, Any]:
    """The form in which a peer is compared and its result: one that both have, out of place if it can be."""
    found = []
    for form in ("out_of_place", "in_place"):
        measurement = getattr(row, form)
        peer = measurement.peers.get(name) if measurement is not None else None
        if peer is not None and peer.time is not None:
            found.append((form, peer))
    both = [(form, peer) for form, peer in found if peer.ratio is not None]
    return next(iter(both or found), (None, None))


def table_line(row: Row, peers: Sequence[str]) -> str:
    """One line of the table."""
    dtype = NCCL_DTYPES.get(row.dtype, row.dtype)
    line = f"{row.size:>12}  {row.count:>12}  {dtype:>8}  {redop(row):>6}  {root(row):>6}"
    algorithm = row.main.algorithm if row.main is not None else None
    line += _measurement(row.out_of_place) + _measurement(row.in_place) + f"  {algorithm or NOT_MEASURED:>9}"
    for name in peers:
        _, peer = peer_of(row, name)
        if peer is None:
            line += f"  {NOT_MEASURED:>9}  {NOT_MEASURED:>6}"
            continue
        ratio = f"WRONG:{peer.nwrong}" if peer.nwrong else ratio_text(peer.ratio)
        line += f"  {number(peer.time * 1e6, 9):>9}  {ratio:>6}"
    return line


@dataclass
class PeerSummary:
    """Ratios of a peer over the rows of one collective in the one form in which they were compared.

    `excess_us` is what a call of ours takes beyond the peer's at the smallest size, in microseconds.
    """

    geometric_mean: float
    minimum: float
    minimum_size: int
    wrong: int
    excess_us: float | None = None
    excess_size: int | None = None


@dataclass
class Summary:
    """The footer of some rows."""

    out_of_bounds: int
    average_bus_bandwidth: float | None
    peers: dict[str, dict[str, PeerSummary]] = field(default_factory=dict)


def summarize(rows: Sequence[Row], peers: Sequence[str]) -> Summary:
    """Wrong elements, mean busbw over what was measured, and each peer's ratios by form."""
    measured = [m for row in rows for m in (row.out_of_place, row.in_place) if m is not None]
    busbw = [m.bus_bw for m in measured if m.bus_bw is not None]
    summary = Summary(sum(m.nwrong or 0 for m in measured), statistics.fmean(busbw) if busbw else None)
    for name in peers:
        for form in ("out_of_place", "in_place"):
            found, excesses = [], []
            for row in rows:
                measurement = getattr(row, form)
                peer = measurement.peers.get(name) if measurement is not None else None
                if peer is not None and peer.ratio is not None:
                    found.append((peer.ratio, row.size, peer.nwrong or 0))
                    if peer.excess is not None:
                        excesses.append((row.size, peer.excess * 1e6))
            if found:
                mean = math.exp(statistics.fmean(math.log(ratio) for ratio, _, _ in found))
                lowest = min(found)
                wrong = sum(nwrong for _, _, nwrong in found)
                size, excess = min(excesses, default=(None, None))
                part = PeerSummary(mean, lowest[0], lowest[1], wrong, excess, size)
                summary.peers.setdefault(name, {})[form] = part
    return summary


def footer(summary: Summary, peers: Sequence[str], warning: str | None = None) -> str:
    """The lines below a table; `warning` is the last of them."""
    verdict = "FAILED" if summary.out_of_bounds else "OK"
    average = summary.average_bus_bandwidth
    lines = [
        f"# {'Out of bounds values':<20} : {summary.out_of_bounds} {verdict}",
        f"# {'Avg bus bandwidth':<20} : {NOT_MEASURED if average is None else f'{average:g}'}",
    ]
    for name in peers:
        forms = summary.peers.get(name)
        if not forms:
            lines.append(f"# {name + ' / ours':<20} : {NOT_MEASURED}")
            continue
        for form, peer in forms.items():
            text = f"geometric mean {ratio_text(peer.geometric_mean)}x"
            text += f", minimum {ratio_text(peer.minimum)}x at {peer.minimum_size} B"
            text += f", {peer.wrong} WRONG elements" if peer.wrong else ""
            lines.append(f"# {name + ' / ours':<20} : {form.replace('_', '-'):<12} {text}")
            if name == "noop" and peer.excess_us is not None:
                text = f"{peer.excess_us:.2f} us at {peer.excess_size} B"
                lines.append(f"# {'ours - noop':<20} : {form.replace('_', '-'):<12} {text}")
    if warning:
        lines.append(f"# {'WARNING':<20} : {warning}")
    return "\n".join(lines)


def _microseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


def _measurement_json(m: Measurement | None, peers: Sequence[str]) -> dict[str, Any] | None:
    if m is None:
        return None
    result: dict[str, Any] = {
        "time": _microseconds(m.time),
        "alg_bw": m.alg_bw,
        "bus_bw": m.bus_bw,
        "nwrong": m.nwrong,
    }
    if peers:
        result["peers"] = {
            name: {
                "time": _microseconds(p.time),
                "ratio": p.ratio,
                "excess": _microseconds(p.excess),
                "nwrong": p.nwrong,
            }
            for name, p in m.peers.items()
        }
    return result


def row_json(row: Row, peers: Sequence[str]) -> dict[str, Any]:
    """A row as an entry of ``results``: times in microseconds, bandwidths in GB/s, null for not measured."""
    compared = {}
    for name in peers:
        form, peer = peer_of(row, name)
        time = None if peer is None else peer.time * 1e6
        compared[name] = {"time": time, "ratio": None if peer is None else peer.ratio, "form": form}
    main = row.main
    return {
        "size": row.size,
        "count": row.count,
        "type": NCCL_DTYPES.get(row.dtype, row.dtype),
        "redop": redop(row),
        "root": root(row),
        "out_of_place": _measurement_json(row.out_of_place, peers),
        "in_place": _measurement_json(row.in_place, peers),
        "actual_iterations": None if main is None else main.iterations,
        "experiment_name": row.collective,
        "algorithm": None if main is None else main.algorithm,
        "peers": compared,
        "memcpy": _microseconds(row.memcpy),
    }


def document(
    head: dict[str, Any],
    rows: Sequence[Row],
    peers: Sequence[str],
    end_time: str,
    loads: dict[str, dict[str, float]],
) -> dict[str, Any]:
    """The whole JSON document. `head` has version, start_time, args, config and environment.

    `loads` has the load average at the start and at the end of each collective's table.
    """
    summary = summarize(rows, peers)
    average = summary.average_bus_bandwidth
    summaries = {}
    for collective in dict.fromkeys(row.collective for row in rows):
        part = summarize([row for row in rows if row.collective == collective], peers)
        summaries[collective] = {
            "average_bus_bandwidth": part.average_bus_bandwidth,
            "load_average": loads[collective],
            "peers": {
                name: {form: vars(peer) for form, peer in forms.items()} for name, forms in part.peers.items()
            },
        }
    return {
        **head,
        "results": [row_json(row, peers) for row in rows],
        # Text, not booleans: so does nccl-tests.
        "out_of_bounds": {
            "count": summary.out_of_bounds,
            "okay": "false" if summary.out_of_bounds else "true",
        },
        "average_bus_bandwidth": {"bandwidth": average, "okay": "unchecked"},
        "summaries": summaries,
        "errors": [],
        "end_time": end_time,
    }


def write_json(path: str, content: dict[str, Any]) -> None:
    """Write the document to a file."""
    Path(path).write_text(json.dumps(content, indent=1) + "\n")
