"""``python -m collectives.topology``."""

import sys

from collectives.topology.commands.command_line import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
