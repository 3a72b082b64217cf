import sys

from spectralgrad.cli import main

sys.exit(main())
