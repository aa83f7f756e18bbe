"""`python -m towernmt`: the command line, where the program `towernmt` is not on the path."""

from __future__ import annotations

import sys

from towernmt.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
