"""The picture of a run: latency and bus bandwidth against message size, ours, peers and memcpy, log-log."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collectives.bench.cases import bus_factor, parse_dtype
from collectives.bench.host import load_warning

# Ours is the strongest line; colours are told apart in grey and by the colour-blind (Okabe and Ito). A dashed
# line is in place: where a peer has only that form, ours is drawn in it too.
_STYLES: dict[str, dict[str, Any]] = {
    "collectives": {"color": "#0072B2", "marker": "o", "linewidth": 2.4, "zorder": 4},
    "gloo": {"color": "#D55E00", "marker": "s", "linewidth": 1.4},
    "mpi": {"color": "#009E73", "marker": "^", "linewidth": 1.4},
    "memcpy": {"color": "#777777", "linestyle": ":", "linewidth": 1.2},
}
_IN_PLACE = {"linestyle": "--", "markerfacecolor": "white"}
_FORMS = ("out_of_place", "in_place")
_UNITS = ("B", "KB", "MB", "GB", "TB")


def plot_file(results: str, picture: str) -> str:
    """Draw the JSON file of a run; returns the picture's path. OSError, ValueError, KeyError: a bad file."""
    return plot_document(json.loads(Path(results).read_text()), picture)


def plot_document(document: dict[str, Any], picture: str) -> str:
    """Draw the JSON document of a run: two panels for the first dtype, operator and root of each collective.

    The folder of `picture` is made; its ending names the format. Returns the path.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    groups = _groups(document["results"])
    if not groups:
        raise ValueError("the run has no results")
    world_size = document["environment"]["world_size"]
    height = 3.5 * len(groups) + 1.0
    figure, axes = plt.subplots(len(groups), 2, figsize=(14.5, height), squeeze=False, layout="constrained")
    # Inches above and below for heading and footnote, whatever the number of rows.
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, 0.45 / height, 1, 1 - 0.9 / height), w_pad=0.12, h_pad=0.08)
    for (latency, bandwidth), rows in zip(axes, groups, strict=True):
        first = rows[0]
        operator = "" if first["redop"] == "none" else f" {first['redop']}"
        title = f"{first['experiment_name']}{operator}, {parse_dtype(first['type'])}"
        for name, form, sizes, times in _series(rows):
            style = {"markersize": 3.5, "label": _label(name, form, document), **_STYLES.get(name, {})}
            if form == "in_place":
                style |= _IN_PLACE
            factor = 1.0 if name == "memcpy" else bus_factor(first["experiment_name"], world_size)
            latency.plot(sizes, times, **style)
            bandwidth.plot(
                sizes, [factor * size / time / 1e3 for size, time in zip(sizes, times, strict=True)], **style
            )
        latency.set_title(f"{title}: latency", loc="left", fontsize=11, fontweight="bold")
        bandwidth.set_title(f"{title}: bus bandwidth", loc="left", fontsize=11, fontweight="bold")
        latency.set_ylabel("time per call (µs), lower is better")
        bandwidth.set_ylabel("busbw (GB/s), higher is better")
        bandwidth.legend(
            loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8.5, handlelength=3.2
        )
        _size_axis((latency, bandwidth), [row["size"] for row in rows])
    environment = document["environment"]
    heading = f"{world_size} ranks on {environment['cores']:g} cores, shared memory"
    figure.text(0.01, 1 - 0.3 / height, heading, fontsize=13, fontweight="bold")
    figure.text(0.01, 0.08 / height, _footnote(document), fontsize=7.5, color="#555555", wrap=True)
    os.makedirs(os.path.dirname(os.path.abspath(picture)), exist_ok=True)
    figure.savefig(picture, dpi=130)
    plt.close(figure)
    return picture


def _groups(results: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rows of the first dtype, operator and root of each collective, without empty messages."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in results:
        if row["size"] > 0:
            rows = groups.setdefault(row["experiment_name"], [])
            if not rows or all(row[key] == rows[0][key] for key in ("type", "redop", "root")):
                rows.append(row)
    return list(groups.values())


def _series(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str, list[int], list[float]]]:
    """(name, form, sizes in bytes, times in microseconds) of each line; what was not measured is left out.

    Ours comes in the form that counts and in those in which a peer is compared; memcpy's form is empty.
    """
    lines: dict[tuple[str, str], list[tuple[int, float | None]]] = {}
    for form in _FORMS:
        points = [(row["size"], row[form]["time"]) for row in rows if row[form]]
        main = not any(time for of_ours in lines.values() for _, time in of_ours)
        if main or any(peer["form"] == form for row in rows for peer in row["peers"].values()):
            lines["collectives", form] = points
    for row in rows:
        for name, peer in row["peers"].items():
            lines.setdefault((name, peer["form"] or ""), []).append((row["size"], peer["time"]))
    lines["memcpy", ""] = [(row["size"], row["memcpy"]) for row in rows]
    series = []
    for (name, form), points in lines.items():
        measured = [(size, time) for size, time in points if time]
        if measured:
            series.append((name, form, [size for size, _ in measured], [time for _, time in measured]))
    return series


def _label(name: str, form: str, document: dict[str, Any]) -> str:
    version = str(document["environment"]["versions"].get(name, ""))
    if name == "memcpy":
        return "memcpy, all ranks at once"
    who = version.split(",")[0] or name if name == "mpi" else f"{name} ({version})" if version else name
    return f"{who}, {form.replace('_', ' ')}"


def _size_axis(axes: Sequence[Any], sizes: Sequence[int]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlim(min(sizes) / 1.3, max(sizes) * 1.3)
        axis.xaxis.set_major_locator(LogLocator(base=8))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _bytes_text(size)))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _plain_text(value)))
        axis.set_xlabel("message size")
        axis.grid(True, which="major", color="#dddddd", linewidth=0.8)
        axis.grid(True, which="minor", axis="y", color="#f0f0f0", linewidth=0.5)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)


def _plain_text(value: float) -> str:
    return np.format_float_positional(value, trim="-")


def _bytes_text(size: float) -> str:
    unit = 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:g} {_UNITS[unit]}"


def _footnote(document: dict[str, Any]) -> str:
    environment, versions = document["environment"], document["environment"]["versions"]
    words = [f"{environment['cpu']} on host {environment['host']}", f"collectives {versions['collectives']}"]
    words += [str(versions[name]) for name in ("gloo", "mpi") if name in versions]
    words += [f"Python {versions['python']}, NumPy {versions['numpy']}", str(document["start_time"])]
    lines = ["; ".join(words), "solid: out of place; dashed: in place, input and output are one array"]
    loads = [part.get("load_average", {}) for part in document["summaries"].values()]
    warning = load_warning((value for load in loads for value in load.values()), environment)
    if warning:
        lines[1] += f"; WARNING: {warning}"
    return "\n".join(lines)
