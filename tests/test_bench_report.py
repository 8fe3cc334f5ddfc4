"""The bench's tables, footers and pictures."""

from __future__ import annotations

import pytest

from collectives.bench import plot, report
from collectives.bench.host import load_warning
from collectives.bench.sweep import Measurement, PeerResult, Row


def test_the_table_never_shows_a_number_for_what_was_not_measured() -> None:
    row = Row("broadcast", 64, 16, "float32", "sum", 1, None, Measurement(peers={"mpi": PeerResult()}))
    assert report.table_line(row, ["mpi"]).split() == ["64", "16", "float", "none", "1", *["N/A"] * 11]
    summary = report.summarize([row], ["mpi"])
    assert "mpi / ours           : N/A" in report.footer(summary, ["mpi"])
    assert "Avg bus bandwidth    : N/A" in report.footer(summary, ["mpi"])


def test_the_footer_has_geometric_mean_and_minimum() -> None:
    rows = []
    for size, ratio in ((8, 4.0), (16, 1.0)):
        m = Measurement(1e-6, 1.0, 2.0, 0, "inline", 10, {"mpi": PeerResult(ratio * 1e-6, ratio, 0)})
        rows.append(Row("all_reduce", size, size // 4, "float32", "sum", 0, m, None))
    text = report.footer(report.summarize(rows, ["mpi"]), ["mpi"])
    assert "# Out of bounds values : 0 OK" in text
    assert "# Avg bus bandwidth    : 2" in text
    assert "# mpi / ours           : out-of-place geometric mean 2.00x, minimum 1.00x at 16 B" in text
    rows[0].out_of_place.peers["mpi"].nwrong = 5
    assert "WRONG:5" in report.table_line(rows[0], ["mpi"])


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "N/A"), (0.171, "0.17"), (12345.678, "12345.7"), (1234567.8, "1234568"), (1e9, "1.0e+09")],
)
def test_numbers_fit_their_columns(value: float | None, text: str) -> None:
    assert report.number(value, 7) == text


def test_small_ratios_keep_two_digits() -> None:
    values = (None, 1234567.0, 2.0, 0.0432, 0.0043, 0.00043, 0.0000431)
    texts = [report.ratio_text(value) for value in values]
    assert texts == ["N/A", "1.2e+06", "2.00", "0.043", "0.0043", "4e-04", "4e-05"]


def test_a_load_beyond_the_cores_is_told() -> None:
    facts = {"cores": 2.0, "world_size": 2}
    assert load_warning([], facts) is None
    assert load_warning([0.3, 2.2], facts) is None  # the ranks themselves
    told = load_warning([3.1, 0.5], facts)
    assert told is not None and "3.1" in told and "2 usable cores" in told
    assert told in report.footer(report.summarize([], []), [], told).splitlines()[-1]


def test_the_picture_compares_like_with_like() -> None:
    both = {"size": 8, "out_of_place": {"time": 1.0}, "in_place": {"time": 2.0}, "memcpy": 3.0}

    def drawn(**peers: str) -> list[tuple[str, str]]:
        told = {name: {"time": 9.0, "form": form} for name, form in peers.items()}
        return [line[:2] for line in plot._series([both | {"peers": told}])]

    ours, memcpy = ("collectives", "out_of_place"), ("memcpy", "")
    assert drawn() == [ours, memcpy]
    assert drawn(mpi="out_of_place") == [ours, ("mpi", "out_of_place"), memcpy]
    assert drawn(gloo="in_place") == [ours, ("collectives", "in_place"), ("gloo", "in_place"), memcpy]
    only = both | {"out_of_place": None, "peers": {}}
    assert [line[:2] for line in plot._series([only])] == [("collectives", "in_place"), memcpy]
