"""A picture of a machine: who stands where is ``draw_layout``'s, which links are shown ``draw_links``'.

Colours are told apart in grey and by the colour-blind (Okabe and Ito). The same machine gives the same file,
byte by byte, with one version of matplotlib.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve

from collectives.topology.draw_canvas import BROKEN, COLOURS, FILLS, ISLANDS, Canvas
from collectives.topology.draw_layout import Box, layout
from collectives.topology.draw_links import Bundle, Hub
from collectives.topology.draw_words import NAMES, heading, pcie, plural, speed, summary
from collectives.topology.draw_words import words as words_of
from collectives.topology.fingerprint import fingerprint
from collectives.topology.graph import LinkKind, NodeKind, Topology, TopologyError
from collectives.topology.paths import islands

_LABELLED = 12
"""Up to so many pairs of devices the number of links stands on each."""


def draw(topology: Topology, picture: str | Path, title: str | None = None) -> None:
    """Draws a machine to a file; its ending names the format.

    Raises:
        TopologyError: the format is unknown, or the file cannot be written.
    """
    figure = _Picture(topology, title).figure
    kind = Path(picture).suffix[1:].lower()
    if kind not in figure.canvas.get_supported_filetypes():
        raise TopologyError("expected a name that ends in .svg, .png or .pdf", str(picture))
    stamp: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    with matplotlib.rc_context({"svg.hashsalt": "collectives"}):
        try:
            os.makedirs(Path(picture).parent, exist_ok=True)
            figure.savefig(picture, dpi=160, metadata=stamp, facecolor="white")
        except OSError as error:
            raise TopologyError(f"it cannot be written: {error.strerror}", str(picture)) from error


def _width(count: int | None) -> float:
    """Points of a line of so many links."""
    return 1.3 * min(count or 1, 4) + 0.2 * min(max((count or 1) - 4, 0), 14)


class _Picture(Canvas):
    """One picture in the making."""

    def __init__(self, topology: Topology, title: str | None) -> None:
        super().__init__()
        self.topology, self.layout = topology, layout(topology)
        self.members = self._islands()
        self.reach: list[float] = []  # y of the outermost parts of links
        boxes = self.layout.boxes
        for frame in self.layout.frames:
            self.box(frame, "#FAFAFA", "#D5D5D5", style="--", order=0)
            edge = frame.y - frame.face * (frame.height / 2 + 0.14)
            self.text(frame.x, edge, frame.name, 8, color="#777777")
        self.sockets()
        for start, end in self.layout.wires:
            self.wire(boxes[start], boxes[end])
        self.key(pcie(topology), COLOURS[LinkKind.PCIE], 1.4) if self.layout.wires else None
        self.coherent()
        for number, hub in enumerate(self.layout.fabric.hubs):
            self.hub(hub, number)
        self.direct(self.layout.fabric.direct)
        for box in boxes.values():
            self.node(box)
        self.finish(title)

    def _islands(self) -> dict[str, int]:
        groups = [group for group in islands(self.topology) if len(group) > 1]
        stands_for = self.layout.fabric.stands_for
        return {
            stands_for[self.topology.gpus[v].name]: number
            for number, group in enumerate(groups)
            for v in group
        }

    def node(self, box: Box) -> None:
        if box.kind == NodeKind.NUMA:
            self.box(box, *FILLS[box.kind])
            self.text(box.x, box.y, self._numa(int(box.name[4:])), 8.5)
        elif box.kind == NodeKind.PCI_SWITCH:
            self.box(box, *FILLS[box.kind])
            self.text(box.x, box.y, self.layout.titles[box.name], 6.5)
        elif box.kind == NodeKind.NIC:
            self.box(box, *FILLS[box.kind])
            node = self.topology.node(box.name)
            self.text(box.x, box.y + 0.1, node.label or node.name, 7)
            speed = "NIC" if node.gbps is None else f"{node.gbps * 8:g} Gbit/s"
            self.text(box.x, box.y - 0.1, speed, 6, color="#555555")
        else:
            self.device(box)

    def device(self, box: Box) -> None:
        parts = [gpu for gpu in self.topology.gpus if self.layout.fabric.stands_for[gpu.name] == box.name]
        island = self.members.get(box.name)
        fill = "#F4F4F4" if island is None else ISLANDS[island % len(ISLANDS)]
        self.box(box, fill, "#333333")
        numbers = [self.topology.gpus.index(gpu) for gpu in parts]
        whole = parts[0].name == box.name
        words = f"GPU {numbers[0]}" if whole else f"GPU {numbers[0]}–{numbers[-1]}"
        small = parts[0].bus if whole else f"{plural(len(parts), 'partition')}"
        models = {gpu.model or gpu.arch for gpu in self.topology.gpus}
        if len(models) > 1:
            small = parts[0].model or parts[0].arch or "unknown"
        up = 0.12 if small else 0.0
        self.text(box.x, box.y + up, words, 9.5 if whole else 8, weight="bold")
        self.text(box.x, box.y - 0.13, (small or "").removeprefix("0000:")[:16], 6.5, color="#555555")

    def _numa(self, number: int) -> str:
        host = self.topology.host
        node = next((node for node in host.numa if node.number == number), None) if host else None
        cores = len(node.all_cores or node.cores) if node else 0
        return f"NUMA {number}" + (f" · {plural(cores, 'core')}" if cores else "")

    def wire(self, start: Box, end: Box) -> None:
        colour = COLOURS[LinkKind.PCIE]
        y0, x1 = start.back, min(max(start.x, end.x - end.width / 2 + 0.08), end.x + end.width / 2 - 0.08)
        y1 = end.y + (end.height / 2 if y0 > end.y else -end.height / 2)
        self.line((start.x, x1), (y0, y1), colour, 1.4)

    def sockets(self) -> None:
        rows, boxes = self.layout.rows, self.layout.boxes
        colour = COLOURS[LinkKind.SOCKET]
        drawn = False
        for row in rows:
            for a, b in itertools.pairwise(row):
                left, right = boxes[a], boxes[b]
                self.line(
                    (left.x + left.width / 2, right.x - right.width / 2), (left.y, right.y), colour, 2.2
                )
                drawn = True
        if len(rows) == 2 and all(rows):
            upper, lower = boxes[rows[0][0]], boxes[rows[1][0]]
            if self.layout.facing:
                edges = [box.x - box.width / 2 for box in (upper, lower)]
                x = min(frame.x - frame.width / 2 for frame in self.layout.frames) - 0.3
                self.line((edges[0], x, x, edges[1]), (upper.y, upper.y, lower.y, lower.y), colour, 2.2)
            else:
                low = max(box.x - box.width / 2 for box in (upper, lower))
                high = min(box.x + box.width / 2 for box in (upper, lower))
                x = (low + high) / 2
                self.line((x, x), (upper.y, lower.y), colour, 2.2)
            drawn = True
        if drawn:
            links = [link for link in self.topology.links if link.kind == LinkKind.SOCKET]
            self.key(NAMES[LinkKind.SOCKET] + speed(links), colour, 2.2)

    def coherent(self) -> None:
        """Fast and coherent links between devices and the host."""
        for gpu in self.topology.gpus:
            box = self.layout.boxes.get(gpu.name)
            for link in self.topology.links_from(gpu.name):
                host = self.layout.boxes.get(link.target)
                if box is None or host is None or host.kind != NodeKind.NUMA or link.kind == LinkKind.PCIE:
                    continue
                x = box.x + box.width / 4
                colour, width = COLOURS[link.kind], _width(link.count)
                self.line((x, x), (box.back, host.y), colour, width)
                self.key(words_of(link.kind, link.count, None, link.gbps), colour, width)

    def hub(self, hub: Hub, number: int) -> None:
        boxes = [self.layout.boxes[name] for name in hub.members]
        faces = {box.face for box in boxes}
        y = 0.0 if len(faces) > 1 else boxes[0].front + boxes[0].face * 0.95
        left = min(box.x - box.width / 2 for box in boxes)
        right = max(box.x + box.width / 2 for box in boxes)
        self.reach += [y - 0.3, y + 0.3]
        # A switch is as wide as what it joins; lines go straight down to it.
        shape = Box(f"hub{number}", NodeKind.NVSWITCH, (left + right) / 2, y, right - left, 0.46)
        self.box(shape, *FILLS[NodeKind.NVSWITCH])
        if hub.switches is None:
            words = "NVSwitch (not named by the source; every pair has all links of its devices)"
        else:
            words = "NVSwitch" if hub.switches == 1 else f"{hub.switches} NVSwitches"
        self.text(
            shape.x,
            y,
            words,
            9.5 if hub.switches else 8.5,
            weight="bold" if hub.switches else "normal",
            color="#00543D",
        )
        for bundle in hub.links:
            box = self.layout.boxes[bundle.a]
            colour, width = COLOURS[bundle.kind], _width(bundle.count)
            edge = y + (0.23 if box.y > y else -0.23)
            self.line((box.x, box.x), (box.front, edge), colour, width, solid_capstyle="butt")
            count = "?" if bundle.count is None else str(bundle.count)
            self.text(box.x + 0.2, (box.front + edge) / 2, f"×{count}", 7.5, color=colour, ha="left")
            self.key(words_of(bundle.kind, bundle.count, bundle.generation, bundle.gbps), colour, width)

    def direct(self, bundles: tuple[Bundle, ...]) -> None:
        boxes = self.layout.boxes
        ends: dict[str, list[tuple[tuple[float, float], int]]] = {}
        for k, bundle in enumerate(bundles):
            for mine, other in ((bundle.a, bundle.b), (bundle.b, bundle.a)):
                ends.setdefault(mine, []).append((_side(boxes[mine], boxes[other]), k))
        at: dict[tuple[str, int], float] = {}
        for name, sides in ends.items():
            box = boxes[name]
            for place, (_, k) in enumerate(sorted(sides)):
                part = (place + 0.5) / len(sides) if len(sides) > 1 else 0.5
                at[name, k] = box.x + (part - 0.5) * 0.86 * box.width
        for k, bundle in enumerate(bundles):
            self.arc(bundle, at[bundle.a, k], at[bundle.b, k], len(bundles) <= _LABELLED)

    def arc(self, bundle: Bundle, x0: float, x1: float, labelled: bool) -> None:
        a, b = self.layout.boxes[bundle.a], self.layout.boxes[bundle.b]
        colour = BROKEN if bundle.one_way else COLOURS[bundle.kind]
        style = "--" if bundle.one_way or (bundle.count is None and not bundle.a.startswith("card ")) else "-"
        width = _width(bundle.count)
        if a.face == b.face:
            reach = min(self.layout.depth, 0.34 + 0.3 * abs(x1 - x0)) * 4 / 3 * 0.95
            inner = [(x0, a.front + a.face * reach), (x1, b.front + b.face * reach)]
        else:
            pull = 0.3 * abs(a.front - b.front)
            inner = [(x0, a.front + a.face * pull), (x1, b.front + b.face * pull)]
        points = [(x0, a.front), *inner, (x1, b.front)]
        self.reach += [(point[1] * 3 + end) / 4 for point, end in ((inner[0], a.front), (inner[1], b.front))]
        curve = Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])
        self.axes.add_patch(
            PathPatch(
                curve,
                facecolor="none",
                edgecolor=colour,
                linewidth=width,
                linestyle=style,
                zorder=3,
                alpha=0.85,
                capstyle="round",
            )
        )
        words = words_of(bundle.kind, bundle.count, bundle.generation, bundle.gbps)
        if bundle.a.startswith("card "):
            words = f"{NAMES[bundle.kind]} between the partitions of two cards"
        if bundle.one_way:
            words = f"{NAMES[bundle.kind]}, told by one end only"
        self.key(words, colour, width, style)
        if labelled and bundle.count is not None:
            x, y = ((points[0][d] + 3 * points[1][d] + 3 * points[2][d] + points[3][d]) / 8 for d in (0, 1))
            plain = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none"}
            self.text(x, y, f"×{bundle.count}", 7.5, color=colour, bbox=plain)

    def finish(self, title: str | None) -> None:
        frames = self.layout.frames
        left = min((f.x - f.width / 2 for f in frames), default=-1.5) - 0.5
        right = max((f.x + f.width / 2 for f in frames), default=1.5) + 0.25
        low = min((f.y - f.height / 2 for f in frames), default=-0.5)
        high = max((f.y + f.height / 2 for f in frames), default=0.5)
        low = min(low, *(y - 0.12 for y in self.reach)) if self.reach else low
        high = max(high, *(y + 0.12 for y in self.reach)) if self.reach else high
        spare = max(0.0, 7.6 - (right - left)) / 2
        left, right = left - spare, right + spare
        columns = max(1, int((right - left) // 3.4))
        rows = -(-len(self.legend) // columns) if self.legend else 0
        top, bottom = 0.85, 0.45 + 0.24 * rows
        width, height = right - left, high - low + top + bottom
        scale = min(1.0, 22.0 / width)
        self.figure.set_size_inches(width * scale, height * scale)
        self.axes.set_xlim(left, right)
        self.axes.set_ylim(low - bottom, high + top)
        middle = (left + right) / 2
        self.text(middle, high + 0.58, title or heading(self.topology), 14 * max(scale, 0.7), weight="bold")
        self.text(middle, high + 0.28, summary(self.topology), 9.5, color="#444444")
        if self.legend:
            self.axes.legend(
                list(self.legend.values()),
                list(self.legend),
                loc="lower center",
                bbox_to_anchor=(0.5, 0.28 / height),
                ncol=min(columns, len(self.legend)),
                frameon=False,
                fontsize=8,
                handlelength=2.6,
                columnspacing=1.6,
            )
        note = (
            f"{Path(self.topology.source).name or 'this machine'} · fingerprint {fingerprint(self.topology)}"
        )
        self.text(right - 0.1, low - bottom + 0.14, note, 6.5, ha="right", color="#888888")


def _side(mine: Box, other: Box) -> tuple[float, float]:
    """Where on a device's front a link begins, so that few cross: left, across, right."""
    if mine.face != other.face:
        return 0.0, other.x
    return (-1.0, -other.x) if other.x < mine.x else (1.0, -other.x)
