"""A plan as data: what ``plan.plan`` returns, and its JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from collectives.topology.checked import Checked
from collectives.topology.graph import TopologyError

VERSION = 1
"""Of the JSON."""


@dataclass(frozen=True)
class Candidate:
    """What one algorithm would do.

    Attributes:
        algorithm: its name.
        microseconds: predicted; None if it has no form for the call on this machine.
        obstacle: why it is not admissible; None if it is.
    """

    algorithm: str
    microseconds: float | None
    obstacle: str | None = None


@dataclass(frozen=True)
class Plan:
    """A plan for one call.

    Attributes:
        collective, nbytes, dtype, op: the call, as ``cost.Costs.predict`` takes it.
        order: the order level asked for; None: the strongest that can be held.
        devices: the device of each rank, by name.
        fingerprint: of the ranks' part of the machine.
        candidates: all algorithms, in the order of ``cost.ALGORITHMS``.
        choice: the algorithm; None if none is admissible.
        level: the order level of its results; None without a choice.
        reason: why, in a sentence or two.
        layout: rank orders of the rings, or parents of each rank (-1: the root) in the trees, where those
            are chosen; else empty.
        remarks: what is not known of the machine and was planned conservatively.
    """

    collective: str
    nbytes: int
    dtype: str
    op: str
    order: str | None
    devices: tuple[str, ...]
    fingerprint: str
    candidates: tuple[Candidate, ...]
    choice: str | None
    level: str | None
    reason: str
    layout: tuple[tuple[int, ...], ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def world(self) -> int:
        """Ranks."""
        return len(self.devices)

    @property
    def microseconds(self) -> float | None:
        """Predicted for the choice."""
        return next((c.microseconds for c in self.candidates if c.algorithm == self.choice), None)

    def to_json(self) -> str:
        """The plan as text, the same on all ranks; :meth:`from_json` reads it."""
        return json.dumps({"version": VERSION, **asdict(self)}, sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str, source: str = "plan") -> Plan:
        """The plan that :meth:`to_json` wrote.

        Raises:
            TopologyError: it is no JSON, of another version, or not what a plan is made of.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TopologyError(f"no JSON: {error}", source) from error
        read = Checked(source)
        fields = dict(read.table(data, "plan"))
        if fields.pop("version", None) != VERSION:
            raise read.fault("version", f"{VERSION}, which this release reads and writes")

        def texts(value: object, where: str) -> tuple[str, ...]:
            return tuple(read.text(item, where) for item in read.items(value, where))

        def rows(value: object, where: str) -> tuple[tuple[int, ...], ...]:
            return tuple(
                tuple(read.whole(rank, where) for rank in read.items(row, where))
                for row in read.items(value, where)
            )

        def candidates(value: object, where: str) -> tuple[Candidate, ...]:
            return tuple(candidate(item, where) for item in read.items(value, where))

        def candidate(value: object, where: str) -> Candidate:
            parts = {"algorithm": read.text, "microseconds": read.amount, "obstacle": read.text}
            found = read.record(value, where, parts)
            if found.get("algorithm") is None:
                raise read.fault(f"{where}.algorithm", "a name")
            return Candidate(found["algorithm"], found.get("microseconds"), found.get("obstacle"))

        readers = {
            **dict.fromkeys(("collective", "dtype", "op", "order", "fingerprint", "choice"), read.text),
            **dict.fromkeys(("level", "reason"), read.text),
            **dict.fromkeys(("devices", "remarks"), texts),
            "nbytes": read.size,
            "candidates": candidates,
            "layout": rows,
        }
        values = read.record(fields, "plan", readers)
        for name in readers:
            if values.get(name) is None and name not in ("order", "choice", "level"):
                raise read.fault(f"plan.{name}", "a value")
            values.setdefault(name, None)
        return Plan(**values)
