"""This machine: which sources know it, and what they say."""

from __future__ import annotations

import argparse

from collectives.topology import cpu
from collectives.topology.commands import screen
from collectives.topology.commands.arguments import add_json
from collectives.topology.commands.description import describe
from collectives.topology.commands.show import print_machine
from collectives.topology.graph import Topology
from collectives.topology.sources.live import detect


def add(command: argparse.ArgumentParser) -> None:
    """The options of the command line without a command."""
    add_json(command)
    command.set_defaults(run=run, json=False)


def run(options: argparse.Namespace) -> None:
    """Prints it. TopologyError: not even a CPU can be found."""
    found = detect()
    data = describe(found.topology)
    if options.json:
        screen.as_json({"used": list(found.used), "refused": found.refused, **data})
        return
    screen.facts(
        [
            ("sources", ", ".join(found.used)),
            *((f"not {name}", why.removeprefix(f"{name}: ")) for name, why in found.refused.items()),
            ("fingerprint", data["fingerprint"]),
            *(("caches of a core", words) for words in _caches(found.topology)),
        ]
    )
    print_machine(data)


def _caches(topology: Topology) -> list[str]:
    """The caches of the first usable core in words; empty if the system does not describe them."""
    cores = topology.host.cores if topology.host else ()
    words = [
        f"L{cache.level} {cache.kind.lower()} {cache.nbytes >> 10} KiB"
        for core in cores[:1]
        for cache in cpu.caches(core)
        if cache.nbytes
    ]
    return [", ".join(words)] if words else []
