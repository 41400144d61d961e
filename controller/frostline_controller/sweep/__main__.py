"""The process of one sweep: `python -m frostline_controller.sweep` carries out the request on its standard input."""

import sys

from frostline_controller.local_run.request_process import carry_out_request

if __name__ == "__main__":
    sys.exit(carry_out_request("frostline_controller.sweep.requests"))
