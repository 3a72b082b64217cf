"""`python -m spectralgrad_lab`: the command spectralgrad, out of a checkout that is not installed too."""

import sys

from .cli import main

if __name__ == "__main__":  # and not in the workers, which import this
    sys.exit(main())
