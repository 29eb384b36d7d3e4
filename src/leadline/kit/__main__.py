"""Run the kit's own command line: ``python -m leadline.kit``."""

import sys

from leadline.kit.command import main

if __name__ == "__main__":
    sys.exit(main())
