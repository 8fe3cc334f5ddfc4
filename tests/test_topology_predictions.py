"""Predictions against what others have measured, and what docs/topology_predictions.md claims of them."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

from topology_fleet import published
from topology_predictions import errors, key, rows, rule

DOC = (Path(__file__).parents[1] / "docs" / "topology_predictions.md").read_text(encoding="utf-8")


def claim(pattern: str) -> float:
    found = re.search(pattern, DOC)
    assert found, pattern
    return float(found[1])


def test_held_out_by_the_rule_alone() -> None:
    entries = published()
    assert len(entries) >= 30
    assert {key(entry) for entry in entries if entry["held_out"]} == rule(entries)
    assert sum(entry["held_out"] for entry in entries) >= 10
    assert len({entry["machine"] for entry in entries if entry["held_out"]}) >= 5


def test_median_error_of_the_held_out() -> None:
    held_out = errors(True)
    assert median(held_out) < 0.30
    assert len(held_out) == claim(r"(\d+) of them are held out")
    assert round(100 * median(held_out)) == claim(r"median error on those held out: (\d+) %")
    assert round(100 * max(held_out)) == claim(r"largest error on those held out: (\d+) %")


def test_the_others() -> None:
    others = errors(False)
    assert len(others) + len(errors(True)) == claim(r"(\d+) published times")
    assert round(100 * median(others)) == claim(r"median error on the others: (\d+) %")
    assert sum(error > 0.30 for error in others) == claim(r"(\d+) entries are off by more than 30 %")


def test_table() -> None:
    """The document's table is what the constants of the package give."""
    table = [line for line in DOC.splitlines() if re.search(r"\| [+-]\d+ % \|", line)]
    assert table == rows()
