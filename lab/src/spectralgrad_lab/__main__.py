import sys

from spectralgrad_lab.cli import main

if __name__ == "__main__":  # workers of a sweep import this file too
    sys.exit(main())
