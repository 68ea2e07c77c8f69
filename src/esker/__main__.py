"""`python -m esker` is the command `esker`."""

from __future__ import annotations

import sys

from esker.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
