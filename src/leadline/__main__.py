"""Run the command line with ``python -m leadline``."""

from leadline.interfaces.cli.main import run

if __name__ == "__main__":
    run()
