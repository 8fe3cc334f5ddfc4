"""Boxes, lines, words and a legend, by matplotlib, in the units of ``draw_layout``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch

from collectives.topology.draw_layout import Box
from collectives.topology.graph import LinkKind, NodeKind

COLOURS = {
    LinkKind.NVLINK: "#009E73",
    LinkKind.XGMI: "#D55E00",
    LinkKind.C2C: "#CC79A7",
    LinkKind.PCIE: "#7F7F7F",
    LinkKind.SOCKET: "#0072B2",
}
BROKEN = "#B00020"
FILLS = {
    NodeKind.NIC: ("#FFF3D6", "#C98F00"),
    NodeKind.PCI_SWITCH: ("#E4E4E4", "#7F7F7F"),
    NodeKind.NUMA: ("#DCE9F5", "#0072B2"),
    NodeKind.NVSWITCH: ("#D3EFE5", "#009E73"),
}
ISLANDS = ("#E6F4EE", "#FCE8DC", "#EFE6F7", "#FFF7CC", "#E0F0FA", "#F9E3EE", "#ECECEC", "#E9F3D8")


class Canvas:
    """A picture in the making; ``finish`` sets its limits.

    Attributes:
        figure, axes: matplotlib's.
        legend: lines by words.
    """

    def __init__(self) -> None:
        self.figure, self.legend = Figure(), dict[str, Any]()
        self.axes = self.figure.add_axes((0.0, 0.0, 1.0, 1.0))
        self.axes.set_axis_off()

    def text(self, x: float, y: float, words: str, size: float = 8.0, **how: Any) -> None:
        """Words, by their middle."""
        how = {"ha": "center", "va": "center", "zorder": 9, "color": "#1A1A1A", **how}
        self.axes.text(x, y, words, fontsize=size, **how)

    def box(self, box: Box, fill: str, edge: str, style: str = "-", order: float = 5) -> None:
        """A rounded box."""
        round_by = min(0.08, box.height / 4)
        self.axes.add_patch(
            FancyBboxPatch(
                (box.x - box.width / 2, box.y - box.height / 2),
                box.width,
                box.height,
                boxstyle=f"round,pad=0,rounding_size={round_by}",
                facecolor=fill,
                edgecolor=edge,
                linestyle=style,
                linewidth=1.1,
                zorder=order,
            )
        )

    def line(self, xs: Iterable[float], ys: Iterable[float], colour: str, width: float, **how: Any) -> None:
        """Straight lines from point to point."""
        self.axes.add_line(
            Line2D(
                list(xs),
                list(ys),
                color=colour,
                linewidth=width,
                **{"zorder": 2, "solid_capstyle": "round", **how},
            )
        )

    def key(self, words: str, colour: str, width: float, style: Any = "-") -> None:
        """A line of the legend; of equal words the first counts."""
        self.legend.setdefault(words, Line2D([], [], color=colour, linewidth=width, linestyle=style))
