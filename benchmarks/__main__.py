"""Run one benchmark: ``python -m benchmarks NAME``."""

import sys

from benchmarks.command import app
from leadline.interfaces.cli.output import run_command

if __name__ == "__main__":
    sys.exit(run_command(app, "bench", sys.argv[1:]))
