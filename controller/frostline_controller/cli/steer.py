"""The commands that show or control a run: status, checkpoint, freeze, unfreeze, reshape, resize, suspend, cancel, ..."""

import argparse
import time
from contextlib import closing
from typing import Any

from frostline_contract.plain_json import plain_json
from frostline_contract.run_directory import read_json
from frostline_contract.run_status import ENDED
from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.control import OperatorClient
from frostline_controller.local_run.run_folder import find_run_folder
from frostline_controller.local_run.run_lock import owner
from frostline_controller.local_run.status import read_status, status_text
from frostline_controller.sweep.directory import SweepDirectory, sweep_in

WATCH_SECONDS = 1.0


def status(arguments: argparse.Namespace) -> int:
    """Print the status of a run, or of the runs of a sweep; with --watch until it has ended."""
    if sweep := sweep_in(arguments.dir):
        return _sweep_status(sweep, arguments)
    folder = find_run_folder(arguments.dir)
    with closing(OperatorClient(folder)) as client:
        while True:
            found, reachable = read_status(folder, client)
            print(plain_json(found) if arguments.json else status_text(found), flush=True)
            ended = found["state"] in ENDED
            # A controller that starts anew does not answer for some seconds, and the run goes on.
            goes_on = not ended and (reachable or bool(owner(folder)))
            if not arguments.watch or not goes_on:
                return exit_codes.DONE if reachable or ended else exit_codes.NO_RUN
            time.sleep(WATCH_SECONDS)


def _sweep_status(sweep: SweepDirectory, arguments: argparse.Namespace) -> int:
    from frostline_controller.sweep.wording import table_of, table_text

    while True:
        running = bool(owner(sweep.path))  # read first, so that the sweep's last writes are shown
        found = plain_json(read_json(sweep.state), indent=1) if arguments.json else table_text(table_of(sweep.read()))
        print(found, flush=True)
        if not arguments.watch or not running:
            return exit_codes.DONE
        time.sleep(WATCH_SECONDS)


def command(arguments: argparse.Namespace) -> int:
    """Send one Command to the controller and print its answer."""
    fields: dict[str, Any] = {name: getattr(arguments, name) for name in ("freeze_point", "workers") if hasattr(arguments, name)}
    if arguments.command == "reshape":
        fields |= reshape_fields(arguments)
    folder = find_run_folder(arguments.dir)
    with closing(OperatorClient(folder)) as client:
        print(client.command(arguments.command, **fields) or f"{arguments.command}: accepted")
    return exit_codes.DONE


def reshape_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a reshape's request: what was not given is left to the controller."""
    ways = ("schedule", "virtual_stages", "slices", "shard", "tensor_rows")
    given = {name: value for name in ways if (value := getattr(arguments, name)) is not None}
    degrees = {"pp": arguments.pp, "dp": arguments.dp, "tp_columns": arguments.tp, "tp_depth": arguments.tp_depth}
    return {"degrees": degrees, **given}


def report(arguments: argparse.Namespace) -> int:
    """Write report.html and the TensorBoard files of a run, or the page of a sweep, finished or not."""
    if sweep := sweep_in(arguments.dir):
        from frostline_controller.sweep.page import write_page

        print(write_page(sweep, sweep.read()))
        return exit_codes.DONE
    from frostline_controller.report.build import build_report
    from frostline_controller.report.tensorboard import write_tensorboard

    folder = find_run_folder(arguments.dir)
    print(build_report(folder))
    print(write_tensorboard(folder))
    return exit_codes.DONE


def verify(arguments: argparse.Namespace) -> int:
    """Compute chosen steps again in one process and print the verifier's output as it comes."""
    from frostline_controller import api

    steps = [int(step) for step in arguments.steps.split(",")] if arguments.steps else []
    api.verify(find_run_folder(arguments.dir), steps=steps, quiet=False)
    return exit_codes.DONE


def job(arguments: argparse.Namespace) -> int:
    """Print the documented job model, or its JSON schema."""
    from frostline_controller.cli.job import explain, schema_text

    print(schema_text() if arguments.schema else explain(arguments.explain or None))
    return exit_codes.DONE
