"""The command line of the topology: this machine, show, record, convert, and how bad input ends."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from topology_files import FILES, refuse, run, write

from collectives.topology import cpu, record
from collectives.topology.commands import screen
from collectives.topology.commands.command_line import main
from collectives.topology.fingerprint import fingerprint
from collectives.topology.sources import load


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return write(tmp_path)


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(run(capsys, "--json"))
    assert "Linux" in data["used"] and data["refused"].keys() <= {"NVML", "KFD", "AMD SMI"}
    assert data["host"]["cores"] == sorted(os.sched_getaffinity(0))
    assert data["host"]["model"] == cpu.model_name()
    node = cpu.numa_node(data["host"]["cores"][0])
    numbers = [place["number"] for place in data["host"]["numa"]]
    assert node is None or node in numbers
    text = run(capsys)
    for name, why in data["refused"].items():
        assert f"not {name}" in text and why.removeprefix(f"{name}: ") in text
    assert f"{len(data['host']['cores'])} usable" in text and data["fingerprint"] in text


def test_show_says_what_the_text_says(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    text = run(capsys, "show", files / "pairs.txt")
    lines = [line.split() for line in text.splitlines()]
    assert ["gpu0", "X", "NV4", "SYS", "SYS", "0"] in lines
    assert ["gpu3", "SYS", "SYS", "NV4", "X", "1"] in lines
    assert "2: 0-1 | 2-3" in text and "nothing looks broken" in text
    assert "SYS: between NUMA nodes" in text and "PIX:" not in text


def test_show_names_near_cards_and_speeds(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    text = run(capsys, "show", files / "switched.txt")
    assert "nic0 (PXB)" in text and "nic0 (SYS)" in text and "mlx5_0" in text
    text = run(capsys, "show", files / "nvswitch.json")
    assert "NV18" in text and "400 Gbit/s" in text and "370.8 GB/s" in text
    text = run(capsys, "show", files / "mi300x.txt")
    assert "XG1" in text and "one, fully connected by links of its own" in text
    assert "7 rings side by side, 336 GB/s in all" in text


def test_show_says_what_is_unknown_and_broken(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    text = run(capsys, "show", files / "linkless.txt")
    assert "?: unknown" in text and "none known" in text
    text = run(capsys, "show", files / "partitions.txt")
    assert "7 partitions, the others 8" in text
    assert "Islands" not in run(capsys, "show", files / "one.txt")


@pytest.mark.parametrize("name", FILES)
def test_show_as_json(capsys: pytest.CaptureFixture[str], files: Path, name: str) -> None:
    data = json.loads(run(capsys, "show", files / name, "--json"))
    assert data == json.loads(run(capsys, "--json", "show", files / name))
    topology = load(files / name)
    assert len(data["devices"]) == len(topology.gpus)
    assert data["fingerprint"] == fingerprint(topology)
    names, cells = data["matrix"]["names"], data["matrix"]["cells"]
    assert len(cells) == len(names) == len(topology.gpus) + len(topology.nics)
    assert all(cells[i][j] == cells[j][i] for i in range(len(names)) for j in range(i))
    assert sorted(v for island in data["islands"] for v in island) == list(range(len(topology.gpus)))
    assert sorted(data["rings"]["best"]["order"]) == list(range(len(topology.gpus)))


def test_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(FILES["pairs.txt"].encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert "NV4" in run(capsys, "show", "-")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"nothing\n")))
    assert refuse(capsys, "show", "-").startswith("standard input:1: ")


def test_record_and_show_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    here = tmp_path / "here.json"
    assert "devices" in run(capsys, "record", here)
    told, live = (json.loads(run(capsys, *words)) for words in (["show", here, "--json"], ["--json"]))
    assert told["fingerprint"] == live["fingerprint"] and told["host"] == live["host"]
    assert record.dumps(load(here)) == run(capsys, "record", "-")


def test_record_from_a_file(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    run(capsys, "record", files / "copy.json", "--from", files / "mi300x.txt")
    assert fingerprint(load(files / "copy.json")) == fingerprint(load(files / "mi300x.txt"))


def test_convert_to_xml_and_back(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    text = run(capsys, "convert", files / "nvswitch.json", "--to", "nccl-xml")
    root = ET.fromstring(text)
    assert root.tag == "system" and len(root.findall(".//gpu")) == 8 and len(root.findall(".//net")) == 8
    assert run(capsys, "convert", files / "nvswitch.json", "--to", "nccl-xml", "-o", files / "nccl.xml") == ""
    assert (files / "nccl.xml").read_text() == text
    both = ("nvswitch.json", "nccl.xml")
    before, after = (json.loads(run(capsys, "show", files / name, "--json")) for name in both)
    assert before["matrix"] == after["matrix"] and before["islands"] == after["islands"]
    assert run(capsys, "convert", files / "nccl.xml", "--to", "nccl-xml") == text
    run(capsys, "convert", files / "pairs.txt", "--to", "recording", "-o", files / "pairs.json")
    assert fingerprint(load(files / "pairs.json")) == fingerprint(load(files / "pairs.txt"))


def test_what_the_form_needs(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    assert "gpu0 has no PCI address" in refuse(capsys, "convert", files / "pairs.txt", "--to", "nccl-xml")


@pytest.mark.parametrize(
    "command",
    [
        ["show"],
        ["plan", "all_reduce"],
        ["draw", "out.svg"],
        ["convert", "--to", "nccl-xml"],
        ["simulate"],
        ["record", "copy.json", "--from"],
    ],
    ids=lambda command: command[0],
)
def test_bad_files(capsys: pytest.CaptureFixture[str], files: Path, command: list[str]) -> None:
    def call(name: str) -> str:
        path = files / name
        words = [*command, path] if command[0] == "record" else [command[0], path, *command[1:]]
        return refuse(capsys, *words)

    assert call("absent.txt") == f"{files}/absent.txt: it cannot be read: No such file or directory\n"
    (files / "cut.xml").write_text('<system version="1">\n<cpu numaid="0">\n')
    assert call("cut.xml").startswith(f"{files}/cut.xml:")
    (files / "odd.json").write_text('{"format": "something else"}')
    assert "expected" in call("odd.json")
    (files / "entity.xml").write_text(
        '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>\n<system>&b;</system>'
    )
    assert "root:" not in call("entity.xml")


@pytest.mark.parametrize("target", ["absent/x", "."], ids=["no folder", "a folder"])
def test_where_nothing_can_be_written(
    capsys: pytest.CaptureFixture[str], files: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    assert "it cannot be written" in refuse(capsys, "record", target)
    refused = refuse(capsys, "convert", "mi300x.txt", "--to", "recording", "-o", target)
    assert "it cannot be written" in refused


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["show"],
        ["convert", "x"],
        ["convert", "x", "--to", "yaml"],
        ["plan", "x", "all_reduce", "-b", "0"],
        ["plan", "x", "all_reduce", "-e", "1T"],
        ["plan", "x", "all_reduce", "-n", "0"],
        ["plan", "x", "all_reduce", "--devices", "0,a"],
        ["plan", "x", "gather"],
        ["simulate", "x", "--nodes", "0"],
        ["simulate", "x", "--link-gbps", "nan"],
        ["simulate", "x", "--link-gbps", "-1"],
        ["simulate", "x", "--engine", "mpi"],
    ],
    ids=" ".join,
)
def test_bad_arguments(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_runs_as_a_program_and_bears_a_closed_pipe(files: Path) -> None:
    program = [sys.executable, "-m", "collectives.topology", "show", str(files / "partitions.txt")]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        ended = subprocess.run(program, stdout=pipe, stderr=subprocess.PIPE, timeout=120)
    assert ended.returncode == 1 and ended.stderr == b""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch, width: int, *arguments: object) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert main([str(argument) for argument in arguments]) == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", sys.stdout.getvalue())  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_fit_a_terminal(monkeypatch: pytest.MonkeyPatch, files: Path, width: int) -> None:
    text = on_terminal(monkeypatch, width, "show", files / "nvswitch.json")
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text and text.count("NV18") == 56 and text.count("400 Gbit/s") == 8
    for name in ("gpu7", "nic7", "mlx5_7"):
        assert name in text


def test_numbers_and_sizes() -> None:
    assert screen.numbers([3, 1, 2, 8]) == "1-3,8" and screen.numbers([]) == "-"
    assert [screen.size(n) for n in (1, 1024, 1536, 1 << 20, 3 << 30)] == ["1", "1K", "1536", "1M", "3G"]


def test_the_package_is_cheap_and_lists_its_names() -> None:
    code = (
        "import sys, collectives; assert 'networkx' not in sys.modules; "
        "import collectives.topology as t; assert 'networkx' not in sys.modules; "
        "from collectives.topology import cpu; assert 'networkx' not in sys.modules; "
        "assert set(t.__all__) <= set(dir(t)) and all(getattr(t, name) is not None for name in t.__all__); "
        "assert 'matplotlib' not in sys.modules; print('fine')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.stdout == "fine\n", ended.stderr


def test_an_unknown_name_is_none_of_the_package() -> None:
    import collectives.topology as package

    with pytest.raises(AttributeError, match="nothing"):
        package.nothing  # noqa: B018
