"""One module for each description of a machine that can be read; each returns the same graph.

:func:`detect` reads the machine that it runs on, :func:`load` a file or a recorded tree.
"""

from collectives.topology.sources.files import load
from collectives.topology.sources.live import Detected, detect

__all__ = ["Detected", "detect", "load"]
