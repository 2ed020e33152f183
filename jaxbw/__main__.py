"""`python -m jaxbw`: the command line."""

import sys

from jaxbw._src.lab.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
