"""`frostline plan`: the planner's choices for a job, printed without a cluster."""

import argparse
import json
from pathlib import Path

from pydantic import ValidationError

from frostline_contract.job import Job, JobError, load_job
from frostline_contract.mesh import in_words
from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.errors import UserMistake
from frostline_controller.planner.advice import Advice
from frostline_controller.planner.assumed import hardware_for
from frostline_controller.planner.describe import describe, grid_lines, schedule_lines
from frostline_controller.planner.forecast import Forecast, forecast
from frostline_controller.planner.placing import PlannedPlacement
from frostline_controller.planner.profile_file import MeasuredProfile


def plan(arguments: argparse.Namespace) -> int:
    """Print the plan for each number of devices: text, or one JSON object with --json."""
    try:
        job = load_job(arguments.file, arguments.overrides)
    except JobError as error:
        raise UserMistake(str(error)) from None
    found = forecast(
        job,
        devices=arguments.devices or (),
        freeze_point=arguments.freeze_point,
        hardware=hardware_for(job, bool(arguments.devices), arguments.hardware, arguments.teraflops),
        measured=measured_profile(arguments.profile) if arguments.profile else None,
    )
    if arguments.picture:
        _draw(found, arguments.picture)
    if arguments.json:
        print(json.dumps(found.as_json(), allow_nan=False))
        return exit_codes.DONE
    print(_assumptions(found))
    for one in found.plans:
        print(f"\n{one.devices} device{'s' if one.devices != 1 else ''}: {describe(one.planned, one.inputs)}\n")
        print("".join(f"{line}\n" for line in schedule_lines(one.by_schedule)))
        print("\n".join(_walk_lines(one.walk)))
        if shared := found.sharing(one).lines():
            print("\n" + "\n".join(shared))
    if found.grid is not None:
        print("\n" + "\n".join(grid_lines(found.grid)))
    if found.settled:
        print(f"\n{found.settled}; a run settles it by what its own machine measures, before the first step")
        return exit_codes.DONE
    if found.advice is not None:
        print(f"\n{found.advice.reason}" + _advice_caveat(found.job, found.advice))
    return exit_codes.DONE


def _draw(found: Forecast, path: str) -> None:
    """Write the picture of the one planned step. Raises UserMistake."""
    if len(found.plans) != 1:
        raise UserMistake(f"--picture {path}: draws one plan, and --devices names {len(found.plans)}; name one")
    try:
        Path(path).write_text(found.plans[0].picture(), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserMistake(f"--picture {path}: {getattr(error, 'strerror', None) or error}") from None


def measured_profile(path: str) -> MeasuredProfile:
    """Read a run's profile.json. Raises UserMistake."""
    try:
        return MeasuredProfile.model_validate_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserMistake(f"--profile {path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserMistake(f"--profile {path}: is no UTF-8 text; give a run's profile.json") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise UserMistake(f"--profile {path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _assumptions(found: Forecast) -> str:
    job, size, hardware, measured = found.job, found.size, found.hardware, found.measured
    source = f"measured on {measured.device}" if measured else f"analytic at {hardware.teraflops:g} TFLOP/s a {hardware.name}"
    return (
        f"{job.name}: {job.model.family}, {size.num_units} units "
        f"(embedding, {size.num_blocks} blocks of width {size.hidden}, head), {size.sequence} tokens a sample\n"
        f"unit times: {source}; batch {job.training.batch_size} in "
        f"{job.training.num_microbatches} micro-batches of {job.training.micro_batch_size}"
    )


def _walk_lines(steps: list[tuple[int, PlannedPlacement]]) -> list[str]:
    first = steps[0][1].cost
    width = max(13, *(len(in_words(planned.placement.degrees)) for _, planned in steps)) + 2
    lines = ["as layers freeze:", f"  {'freeze point':<14}{'shape':<{width}}{'workers':>8}{'cache':>8}{'step':>12}{'speed':>8}"]
    for point, planned in steps:
        placement, cost = planned.placement, planned.cost
        shape = in_words(placement.degrees)
        speed = first.seconds_per_sample / cost.seconds_per_sample
        cached = "yes" if placement.use_cache else "no"
        lines.append(
            f"  {point:<14}{shape:<{width}}{len(placement.workers):>8}{cached:>8}{_step(cost.total_seconds):>12}{speed:>7.2f}x"
        )
    return lines


def _step(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _advice_caveat(job: Job, advice: Advice) -> str:
    if advice.best == job.training.micro_batch_size:
        return "; the job has it already"
    return f"; try --set training.micro_batch_size={advice.best} (it is a part of the numerics: a new run, not a resumed one)"
