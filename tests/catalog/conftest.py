"""Where the tests of the catalog find what Slurm prints."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "probes"))
