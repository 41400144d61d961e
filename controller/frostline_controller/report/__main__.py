"""`python -m frostline_controller.report RUN_DIR` writes report.html and TensorBoard files, as `frostline report` does."""

import sys
from pathlib import Path

from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.exit_status import exit_status
from frostline_controller.report.build import build_report
from frostline_controller.report.tensorboard import write_tensorboard


def main() -> int:
    """Draw the report; return the exit status (`exit_codes`)."""
    return exit_status(lambda: _draw(Path(sys.argv[1])))


def _draw(folder: Path) -> int:
    build_report(folder)
    write_tensorboard(folder)
    return exit_codes.DONE


if __name__ == "__main__":
    sys.exit(main())
