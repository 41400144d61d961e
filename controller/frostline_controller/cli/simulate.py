"""`frostline simulate`: a simulation of a whole run on a described cluster."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from frostline_contract.durable_files import make_folder_durably
from frostline_contract.job import Job, JobError, apply_overrides, load_job, parse_job
from frostline_controller.cli.job import explain
from frostline_controller.cli.plan import measured_profile
from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.errors import CommandError, UserMistake
from frostline_controller.local_run.run_folder import find_run_folder
from frostline_controller.simulation.cluster_file import Cluster, load_cluster
from frostline_controller.simulation.finished import FinishedRun, read_finished
from frostline_controller.simulation.question import Answer, Question, answer
from frostline_controller.simulation.tables import as_text


def simulate(arguments: argparse.Namespace) -> int:
    """Print a job's simulated run on a cluster, or a finished run's beside its measurements; text, or one JSON object with
    --json."""
    if arguments.explain is not None:
        print(explain(arguments.explain or None, Cluster, "cluster file", "simulate"))
        return exit_codes.DONE
    question = _question(arguments)
    out = Path(arguments.out) if arguments.out else None
    with _folder(out) if out is not None else nullcontext():
        found = answer(question)
    if out is not None:
        _write(found, out)
    print(json.dumps(_as_json(found), allow_nan=False) if arguments.json else _as_text(found))
    return exit_codes.DONE


def _question(arguments: argparse.Namespace) -> Question:
    """Check the arguments: a job and a cluster, or a finished run."""
    if arguments.dir is None and not (arguments.file and arguments.cluster):
        raise UserMistake("give a job and a cluster (-f JOB --cluster FILE), or the directory of a finished run")
    if arguments.policy and arguments.dir is None:
        raise UserMistake("--policy reads the statistics of a finished run; give its directory, or leave --policy out")
    run = read_finished(find_run_folder(arguments.dir)) if arguments.dir is not None else None
    return Question(
        job=_job(arguments, run),
        cluster=load_cluster(arguments.cluster) if arguments.cluster else None,
        run=run,
        profile=measured_profile(arguments.profile) if arguments.profile else None,
        points=arguments.freeze,
        ask_policy=arguments.policy,
        train_samples=arguments.train_samples,
        arms=arguments.arms,
        all_devices=arguments.all_devices,
    )


def _job(arguments: argparse.Namespace, run: FinishedRun | None) -> Job | None:
    """Return the job of the file, or the run's with changes; None: the run's job as it is."""
    try:
        if arguments.file:
            return _whole(load_job(arguments.file, arguments.overrides))
        if arguments.overrides and run is not None:
            return parse_job(apply_overrides(run.data.job, arguments.overrides), "the run's job with --set")
    except JobError as error:
        raise UserMistake(str(error)) from None
    return None


def _whole(job: Job) -> Job:
    """Return the job. Raises UserMistake where it has `auto` fields, since a run's measurements are not available here."""
    if names := job.training.automatic:
        settings = " ".join(f"--set training.{name}=8" for name in names)
        raise UserMistake(
            f"training.{' and training.'.join(names)}: auto, which a run settles by what its machine measures; a simulation "
            f"needs numbers, such as {settings} (`frostline plan` says what they would be)"
        )
    return job


def _as_json(found: Answer) -> dict[str, object]:
    compared = {"measured": found.comparison.as_json()} if found.comparison is not None else {}
    return {**found.simulation.as_json(), "sharing": found.sharing.as_json(), **compared}


def _as_text(found: Answer) -> str:
    compared = [found.comparison.as_text()] if found.comparison is not None else []
    return "\n\n".join(filter(None, [as_text(found.simulation), "\n".join(found.sharing.lines()), *compared]))


@contextmanager
def _folder(out: Path) -> Iterator[None]:
    """Make the folder of the results before they are computed; a question that is refused leaves no new one behind.

    Raises UserMistake where it cannot be made.
    """
    new = not out.exists()
    try:
        make_folder_durably(out)
    except OSError as error:
        raise UserMistake(f"{out}: cannot be made ({error.strerror}); give another --out") from None
    try:
        yield
    except (ValueError, CommandError):
        if new:
            out.rmdir()
        raise


def _write(found: Answer, out: Path) -> None:
    """Write the JSON, the page and its pictures."""
    from frostline_controller.simulation.page import write_page

    write_page(found.simulation, _as_json(found), _as_text(found), out)
