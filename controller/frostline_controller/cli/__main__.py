"""`python -m frostline_controller.cli` is the command `frostline`."""

import sys

from frostline_controller.cli.main import main

sys.exit(main())
