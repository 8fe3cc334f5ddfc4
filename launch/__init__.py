"""Start the ranks of a program on this host: ``python -m collectives.launch -np 4 prog.py``."""

from collectives.launch.spawn import bindings, spawn

__all__ = ["bindings", "spawn"]
