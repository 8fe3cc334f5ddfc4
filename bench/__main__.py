"""``python -m collectives.bench``."""

import sys

from collectives.bench.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
