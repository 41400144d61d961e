"""The arguments of `frostline`: every subcommand with its help and examples."""

import argparse
import math
from collections.abc import Callable

from frostline_controller.cli.reshape_arguments import RESHAPE, RESHAPE_EXAMPLES, reshape_arguments
from frostline_controller.cli.simulate_arguments import SIMULATE, SIMULATE_EXAMPLES, simulate_arguments
from frostline_controller.local_run import exit_codes

ARMS = ("static", "freezing", "elastic", "freeze", "pipeline", "replicas", "cache")
COUNT_MAX, DEVICES_MAX, SEEDS_MAX = 2**31 - 1, 65536, 10_000
EXIT_CODES = "exit codes:\n" + "\n".join(f"  {code:<4}{text}" for code, text in exit_codes.MEANING.items())


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; `arguments.run_command` is `module:function` of the function that carries a subcommand out."""
    parser = argparse.ArgumentParser(
        prog="frostline",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Elastic training of transformers: what has stopped learning freezes, the pipeline shrinks to the rest.",
        epilog="start here:\n  frostline run -f examples/image_classification/digits.yaml\n  frostline status --watch\n"
        "  frostline job --explain freeze\n\n" + EXIT_CODES,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_run(commands)
    _add_plan(commands)
    simulate_arguments(_add(commands, "simulate", "simulate:simulate", SIMULATE, SIMULATE_EXAMPLES))
    _add_compare(commands)
    _add_sweep(commands)
    _add_looking(commands)
    _add_steering(commands)
    return parser


def seeds(text: str) -> list[int]:
    """Seeds such as 0-9 or 0,3,7-9. Raises argparse.ArgumentTypeError."""
    chosen: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        bounds = [_number(word) for word in ((low, high) if dash else (low, low))]
        if bounds[0] is None or bounds[1] is None or bounds[1] < bounds[0]:
            raise argparse.ArgumentTypeError(f"{text!r} is no list of seeds; write 0-9 or 0,3,7-9")
        if len(chosen) + bounds[1] - bounds[0] >= SEEDS_MAX:
            raise argparse.ArgumentTypeError(f"{text!r} are more than {SEEDS_MAX} seeds; name fewer")
        chosen += range(bounds[0], bounds[1] + 1)
    return list(dict.fromkeys(chosen))


def arms(text: str) -> list[str]:
    """Names of arms, comma-separated. Raises argparse.ArgumentTypeError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in ARMS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown) or 'nothing'} is no arm; known: {', '.join(ARMS)}")
    return list(dict.fromkeys(names))


def step_list(text: str) -> str:
    """Step numbers, comma-separated, passed on as they are. Raises argparse.ArgumentTypeError."""
    if not all(_number(part) for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of steps; write 10,20,30")
    return text


def positive(text: str) -> int:
    """A count from 1 to COUNT_MAX. Raises argparse.ArgumentTypeError."""
    number = _number(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0{_up_to(text)}")
    return number


def natural(text: str) -> int:
    """A count from 0 to COUNT_MAX. Raises argparse.ArgumentTypeError."""
    number = _number(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number{_up_to(text)}")
    return number


def devices(text: str) -> int:
    """A number of devices. Raises argparse.ArgumentTypeError."""
    number = positive(text)
    if number > DEVICES_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is more than the {DEVICES_MAX} devices that can be planned for")
    return number


def speed(text: str) -> float:
    """A positive finite number. Raises argparse.ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no finite number above 0")
    return value


def _number(text: str) -> int | None:
    """Return a whole number from 0 to COUNT_MAX; None for any other text."""
    digits = text.isascii() and text.isdigit() and len(text) <= 10
    return int(text) if digits and int(text) <= COUNT_MAX else None


def _up_to(text: str) -> str:
    return f" and at most {COUNT_MAX}" if text.isdigit() else ""


def _add(commands: argparse._SubParsersAction, name: str, place: str, text: str, examples: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=text, description=text, epilog=f"examples:\n{examples}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run_command=place)
    return parser


def _job_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f", "--file", required=True, metavar="JOB", help="the job file (YAML); `frostline job --explain` documents it"
    )
    _set_argument(parser, "override a field of the job file; may be repeated")


def _set_argument(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="a.b=c", help=text)


def _add_run(commands: argparse._SubParsersAction) -> None:
    run = _add(
        commands, "run", "run:run", "Run a job on this machine: Redis, cache server, controller and trainer processes.",
        "  frostline run -f job.yaml\n  frostline run -f job.yaml --workers 4 --set training.epochs=3 --set elastic.cache=false\n"
        "  frostline run -f job.yaml --replay runs/digits --out runs/again    # the same numerics on any placement\n"
        "Ctrl-C once stops at a checkpoint and says how to resume; twice stops at once.",
    )  # fmt: skip
    _job_arguments(run)
    run.add_argument("--workers", type=positive, metavar="N", help="worker processes; the same as --set placement.workers=N")
    run.add_argument("--out", metavar="DIR", help="run directory; without it runs/<name>, runs/<name>-2, ...")
    run.add_argument("--replay", metavar="RUN_DIR", help="take every decision from this run instead of the policy")
    _shared_cache_argument(run)
    _ending_arguments(run)
    resume = _add(
        commands, "resume", "run:resume", "Go on with a run or sweep that stopped: Ctrl-C, suspend, a crash, a power cut.",
        "  frostline resume runs/digits\n  frostline resume runs/digits --workers 2 --set cache.use=never",
    )  # fmt: skip
    resume.add_argument("dir", nargs="?", metavar="DIR", help="directory of a run (default: the newest in runs/) or a sweep")
    _set_argument(resume, "change a live field; a fixed one is refused")
    resume.add_argument(
        "--workers", type=positive, metavar="N", help="worker processes from now on; lifts the limit of an earlier resize"
    )
    resume.add_argument(
        "--accept-numerics", action="store_true", help="go on although this machine or software computes other bits; recorded"
    )
    resume.add_argument(
        "--from-scratch", action="store_true", help="train again from step 0 where no checkpoint of the run is left"
    )
    _shared_cache_argument(resume)
    _ending_arguments(resume)


def _shared_cache_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument("--shared-cache", metavar="DIR", help="use the cache that a sweep keeps in DIR, not one of its own")


def _ending_arguments(command: argparse.ArgumentParser, whose: str = "") -> None:
    command.add_argument("--quiet", action="store_true", help="say only how it ended")
    command.add_argument(
        "--no-report",
        action="store_true",
        help=f"do not draw {whose}report.html at the end; `frostline report DIR` draws it at any time",
    )


def _add_plan(commands: argparse._SubParsersAction) -> None:
    plan = _add(
        commands, "plan", "plan:plan", "Print what the planner would do with a job, without a cluster.",
        "  frostline plan -f job.yaml\n  frostline plan -f bert-large.yaml --devices 8 16 64 --json\n"
        "  frostline plan -f job.yaml --freeze-point 5      # as if five units were frozen\n"
        "  frostline plan -f job.yaml --picture step.svg    # each rank's operations over time",
    )  # fmt: skip
    _job_arguments(plan)
    plan.add_argument("--json", action="store_true", help="machine-readable")
    plan.add_argument("--devices", type=devices, nargs="+", metavar="N", help="numbers of devices to plan for")
    plan.add_argument("--freeze-point", type=natural, default=0, metavar="N", help="plan as if units 0 to N-1 were frozen")
    plan.add_argument(
        "--profile", metavar="FILE", help="measured unit and link times (a run's profile.json) instead of analytic ones"
    )
    plan.add_argument("--picture", metavar="FILE", help="draw the planned step, each rank's operations over time, as an SVG")
    plan.add_argument("--hardware", choices=("cpu", "gpu"), help="what analytic times assume (default: gpu with --devices)")
    plan.add_argument("--teraflops", type=speed, metavar="X", help="sustained 10^12 FLOP/s of a device, for analytic times")


def _add_compare(commands: argparse._SubParsersAction) -> None:
    compare = _add(
        commands, "compare", "compare:compare",
        "Run a job in several arms and seeds and compare time, metric and loss.",
        "  frostline compare -f job.yaml --seeds 0-9\n"
        "  frostline compare -f job.yaml --arms static,elastic,pipeline,replicas,cache\n"
        "Arms: static (nothing elastic), freezing (alias freeze: layers freeze, nothing else), elastic (all on);\n"
        "pipeline, replicas, cache: freezing and that one part.\n"
        "A finished run in the output folder is kept, so the same command continues a comparison.",
    )  # fmt: skip
    _job_arguments(compare)
    compare.add_argument(
        "--seeds", type=seeds, default=list(range(10)), metavar="0-9", help="seeds for metric and loss (default 0-9)"
    )
    compare.add_argument(
        "--arms", type=arms, default=["static", "freezing", "elastic"], metavar="A,B", help="default static,freezing,elastic"
    )
    compare.add_argument(
        "--time-seeds", type=natural, default=3, metavar="N", help="seeds for wall-clock time (default 3; 0: none)"
    )
    compare.add_argument(
        "--accuracy-workers", type=positive, default=1, metavar="N", help="workers of the runs for metric and loss (default 1)"
    )
    compare.add_argument(
        "--static-micro-batch",
        type=positive,
        metavar="N",
        help="micro-batch of the timed static arm (default: its measured best)",
    )
    compare.add_argument("--out", metavar="DIR", help="where runs and tables go (default runs/compare-<name>)")


def _add_sweep(commands: argparse._SubParsersAction) -> None:
    sweep = _add(
        commands, "sweep", "sweep:sweep",
        "Run a job once for every combination of varied fields, over one cache that all runs share.",
        "  frostline sweep -f job.yaml --vary training.optimizer.learning_rate=3e-5,1e-4 --vary seed=0-3\n"
        "  frostline sweep -f job.yaml --vary model.dropout=0,0.1 --workers 4 --side-by-side 2    # two runs of two workers\n"
        "  frostline sweep -f job.yaml --vary 'data.path=[a.csv, \"b, c.csv\"]'                    # a YAML list\n"
        "  frostline sweep --resume runs/sweep-digits          # or: frostline resume runs/sweep-digits\n"
        "Runs whose frozen layers have the same weights read each other's cached activations, so later ones start warm; no bit\n"
        "depends on it. Each run is an ordinary run directory in DIR/runs; DIR/sweep.html and DIR/sweep.json compare them.\n"
        "A run that fails is shown and ends no other (exit code 1). Ctrl-C once stops all at checkpoints; twice, at once.",
    )  # fmt: skip
    sweep.add_argument("-f", "--file", metavar="JOB", help="the job file (YAML); `frostline job --explain` documents it")
    sweep.add_argument(
        "--vary", action="append", default=[], metavar="a.b=x,y", help="a field and its values: x,y,z, a range 0-3, or [a, list]"
    )
    _set_argument(sweep, "override a field of the job file for all runs; may be repeated")
    sweep.add_argument(
        "--workers", type=positive, metavar="N", help="workers of all runs together, shared out among those side by side"
    )
    sweep.add_argument("--side-by-side", type=positive, metavar="M", help="runs at a time (default 1)")
    sweep.add_argument("--out", metavar="DIR", help="the sweep's directory; without it runs/sweep-<name>, runs/sweep-<name>-2")
    sweep.add_argument("--resume", metavar="DIR", help="go on with a sweep: what has not ended, and nothing that has")
    sweep.add_argument("--retry-failed", action="store_true", help="with --resume: also what failed or was cancelled")
    _ending_arguments(sweep, "each run's ")


def _add_looking(commands: argparse._SubParsersAction) -> None:
    status = _add(commands, "status", "steer:status", "Where a run stands, and what each worker does; or the runs of a sweep.",
                  "  frostline status\n  frostline status runs/digits --json\n  frostline status --watch")  # fmt: skip
    _dir_argument(status)
    status.add_argument("--json", action="store_true", help="machine-readable")
    status.add_argument("--watch", action="store_true", help="again every second until the run has ended, or no process runs it")
    verify = _add(commands, "verify", "steer:verify", "Compute steps of a run again in one process and compare their bits.",
                  "  frostline verify runs/digits\n  frostline verify runs/digits --steps 10,20")  # fmt: skip
    _dir_argument(verify)
    verify.add_argument(
        "--steps", type=step_list, metavar="10,20", help="steps to compute again (default: the verifier's choice)"
    )
    report = _add(commands, "report", "steer:report", "Write a run's report.html and TensorBoard files, or a sweep's page.",
                  "  frostline report runs/digits")  # fmt: skip
    _dir_argument(report)
    examples = "  frostline job --explain\n  frostline job --explain freeze.rails\n  frostline job --schema > schema.json"
    job = _add(commands, "job", "steer:job", "Document the job file.", examples)
    what = job.add_mutually_exclusive_group(required=True)
    what.add_argument("--explain", nargs="?", const="", metavar="FIELD", help="every field, or one field or section")
    what.add_argument("--schema", action="store_true", help="the JSON schema")


def _add_steering(commands: argparse._SubParsersAction) -> None:
    def steer(name: str, text: str, example: str, setup: Callable[[argparse.ArgumentParser], None] | None = None) -> None:
        parser = _add(commands, name, "steer:command", text, f"  frostline {example}")
        parser.set_defaults(command=name)
        _dir_argument(parser, required=setup is not None)
        if setup is not None:
            setup(parser)

    steer("checkpoint", "Write a checkpoint now.", "checkpoint runs/digits")
    steer("freeze", "Freeze units 0 to N-1 by hand, from the next decision on.", "freeze runs/digits 3",
          lambda parser: _value(parser, "freeze_point", "index of the first unit that still learns"))  # fmt: skip
    steer("unfreeze", "Let every unit learn again, from the next decision on.", "unfreeze runs/digits")
    steer("reshape", RESHAPE, RESHAPE_EXAMPLES,
          lambda parser: reshape_arguments(parser, positive))  # fmt: skip
    steer("resize", "Set how many workers the run may have.", "resize runs/digits 2",
          lambda parser: _value(parser, "workers", "most workers"))  # fmt: skip
    steer("suspend", "Stop at a checkpoint; `frostline resume` goes on.", "suspend runs/digits")
    steer("cancel", "End the run at a checkpoint, as cancelled (exit status 1); `resume` can still go on.", "cancel runs/digits")


def _dir_argument(parser: argparse.ArgumentParser, required: bool = False) -> None:
    if required:
        parser.add_argument("dir", metavar="DIR", help="run directory")
    else:
        parser.add_argument("dir", nargs="?", metavar="DIR", help="run directory (default: the newest in runs/)")


def _value(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    parser.add_argument(name, type=natural, metavar="N", help=text)
