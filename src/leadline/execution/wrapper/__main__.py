"""Run the wrapper as ``python -P -m leadline.execution.wrapper --result FILE -- COMMAND``."""

import sys

from leadline.execution.wrapper.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
