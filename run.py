"""Run an agent in environments from a shell; the same as `operant run`."""

import sys

from operant.cli import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
