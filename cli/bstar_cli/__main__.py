"""``python -m bstar_cli`` is ``bstar``."""

import sys

from bstar_cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
