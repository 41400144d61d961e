"""The arguments of `frostline simulate`."""

import argparse

SIMULATE = "Replay a whole run on a described cluster, on paper: shape, speed, cache, device-hours and money over time."
SIMULATE_EXAMPLES = (
    "  frostline simulate -f job.yaml --cluster cluster.yaml --train-samples 50000\n"
    "  frostline simulate -f job.yaml --cluster cluster.yaml --freeze 1:5,2:8 --out simulated    # with pictures\n"
    "  frostline simulate runs/digits                          # a finished run again: predicted against measured\n"
    "  frostline simulate runs/digits --cluster cluster.yaml   # its decisions and unit times, elsewhere\n"
    "  frostline simulate runs/digits --policy --set freeze.policy.alpha=0.2\n"
    "  frostline simulate --explain device                     # documents the cluster file\n"
    "Without a finished run the job's policy decides by schedule, caps and rails alone (docs/simulate.md)."
)
SIMULATED_ARMS = ("job", "static", "freezing", "elastic", "freeze", "pipeline", "replicas", "cache")


def simulate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to the subcommand's parser."""
    parser.add_argument("dir", nargs="?", metavar="DIR", help="a finished run: its job, unit times and decisions are taken")
    parser.add_argument("-f", "--file", metavar="JOB", help="the job file (YAML)")
    parser.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="a.b=c", help="override a field of the job"
    )
    parser.add_argument("--cluster", metavar="FILE", help="the cluster file (YAML); without it the machine of the finished run")
    parser.add_argument(
        "--all-devices", action="store_true", help="take every device of the cluster, whatever placement.workers says"
    )
    freezes = parser.add_mutually_exclusive_group()
    freezes.add_argument(
        "--freeze", type=freeze_points, metavar="E:N,...", help="freeze point N from epoch E on (epochs count from 0)"
    )
    freezes.add_argument(
        "--policy", action="store_true", help="the job's policy decides again, on what the finished run measured of gradients"
    )
    parser.add_argument("--profile", metavar="FILE", help="unit times of another run (its profile.json)")
    parser.add_argument("--train-samples", type=_count, default=0, metavar="N", help="samples of the training split")
    parser.add_argument(
        "--arms", type=arms, default=["static", "job"], metavar="A,B",
        help=f"what is replayed, of {', '.join(SIMULATED_ARMS)} (default static,job: the job as its file says)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--out", metavar="DIR", help="write simulation.json, simulation.html and the pictures there")
    parser.add_argument("--explain", nargs="?", const="", metavar="FIELD", help="document the cluster file, or one field of it")


def freeze_points(text: str) -> dict[float, int]:
    """Parse freeze points by epoch, such as 1:5,2.5:8. Raises argparse.ArgumentTypeError."""
    found: dict[float, int] = {}
    for part in text.split(","):
        epoch, colon, point = part.partition(":")
        try:
            at, units = float(epoch), int(point)
        except ValueError:
            at, units = -1.0, -1
        if not colon or not 0 <= at < 1e6 or not 0 <= units < 1 << 20:
            raise argparse.ArgumentTypeError(f"{part!r} is no epoch and freeze point; write 1:5,2:8")
        found[at] = units
    return found


def arms(text: str) -> list[str]:
    """Parse names of arms. Raises argparse.ArgumentTypeError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in SIMULATED_ARMS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown) or 'nothing'} is no arm; known: {', '.join(SIMULATED_ARMS)}")
    return list(dict.fromkeys("freezing" if name == "freeze" else name for name in names))


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:12]) > 0 and len(text) <= 12):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)
