"""Run one benchmark: ``python -m benchmarks NAME``."""

import sys

from benchmarks.command import bench
from leadline.interfaces.cli.command import run_command

if __name__ == "__main__":
    sys.exit(run_command(bench, "bench", sys.argv[1:]))
