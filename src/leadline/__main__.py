"""Run the command line as ``python -m leadline``."""

import sys

from leadline.interfaces.cli.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
