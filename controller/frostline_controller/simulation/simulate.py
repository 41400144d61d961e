"""A simulation: a job on a described cluster, in one or several arms, each replayed from the first step to the last."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.job import Job
from frostline_contract.job.freezing import ElasticSection
from frostline_contract.mesh import in_words
from frostline_contract.statistics import IntervalStatistics
from frostline_controller.comparison.trials import ARM_PARTS, PARTS
from frostline_controller.simulation.history import NOTHING_FREEZES, History, by_policy
from frostline_controller.simulation.replay import Length, Replay, Span, replay
from frostline_controller.simulation.world import World

JOB_ARM, STATIC_ARM = "job", "static"
"""Names of two arms: the job by its file, and the static arm with which the others are compared."""

DIGITS_SAMPLES = 1797


@dataclass(frozen=True)
class Simulation:
    """A job's arms on one cluster.

    Attributes:
        job: the job by its file.
        world: the cluster, with the unit costs.
        arms: replays by name; the others are compared with `static`, if present.
        notes: assumptions and omissions, for people.
    """

    job: Job
    world: World
    arms: dict[str, Replay]
    notes: tuple[str, ...]

    def speedup(self, arm: str) -> float | None:
        """Return the time a sample of the static arm over that of `arm`; None without a static arm."""
        static = self.arms.get(STATIC_ARM)
        if static is None:
            return None
        own = self.arms[arm]
        return (static.seconds / static.samples) / (own.seconds / own.samples)

    def as_json(self) -> dict[str, Any]:
        """Return the output of `frostline simulate --json` (docs/simulate.md)."""
        cluster = self.world.cluster
        return {
            "version": 1,
            "job": self.job.name,
            "cluster": cluster.model_dump(mode="json"),
            "unit_times": self.world.unit_source,
            "notes": list(self.notes),
            "arms": {name: self._arm_json(name) for name in self.arms},
        }

    def _arm_json(self, name: str) -> dict[str, Any]:
        run = self.arms[name]
        return {
            "history": run.history.source,
            "seconds": run.seconds,
            "steps": run.steps,
            "samples": run.samples,
            "speedup": self.speedup(name),
            "device_hours": run.device_hours,
            "money": run.money,
            "reshapes": run.reshapes,
            "spans": [span_json(span) for span in run.spans],
        }


def span_json(span: Span) -> dict[str, Any]:
    """Return a span as plain data; `parts` are seconds of a step, as in `frostline plan --json`."""
    placement = span.placement
    return {
        "first_step": span.first_step,
        "steps": span.steps,
        "samples_before": span.samples,
        "freeze_point": span.freeze_point,
        "degrees": placement.degrees,
        "virtual_stages": placement.virtual_stages,
        "schedule": placement.schedule,
        "stage_bounds": list(placement.stage_bounds),
        "workers": len(placement.workers),
        "held": span.held,
        "use_cache": placement.use_cache,
        "hit_fraction": span.hit_fraction,
        "step_seconds": span.cost.total_seconds,
        "parts": dict(span.cost.parts),
        "samples_per_second": span.samples_per_second,
        "bubble_share": span.bubble_share,
        "peak_bytes": span.cost.peak_bytes,
        "start_seconds": span.start_seconds,
        "reshape_seconds": span.reshape_seconds,
        "device_hours": span.device_hours,
        "money": span.money,
        "reason": span.reason,
    }


def simulate(
    job: Job,
    world: World,
    *,
    history: History | None = None,
    statistics: Sequence[IntervalStatistics] = (),
    arms: Sequence[str] = (STATIC_ARM, JOB_ARM),
    length: Length | None = None,
) -> Simulation:
    """Return the replays of a job on a cluster.

    Args:
        job: the job to be simulated.
        world: the cluster, with the unit costs.
        history: the freeze history; None: that of the job's policy.
        statistics: of a finished run, as the policy's inputs.
        arms: `job` for the job by its file, or any arm of `frostline compare`.
        length: of the run; None: the job's.

    Raises:
        ValueError: the run's length is not known, no placement fits, or the freeze history is wrong.
    """
    length = length or length_of(job, world.train_samples)
    followed = history or policy_history(job, world, length, statistics)
    found = {}
    for arm in arms:
        arm_job = job if arm == JOB_ARM else _with_parts(job, ARM_PARTS[arm])
        found[arm] = replay(arm_job, world, followed if arm_job.elastic.freeze else NOTHING_FREEZES, length)
    return Simulation(job, world, found, tuple(_notes(job, world)))


def policy_history(job: Job, world: World, length: Length, statistics: Sequence[IntervalStatistics]) -> History:
    """Return the freeze history that the job's own policy decides over the run.

    Raises:
        ValueError: the length of an interval is not known, or `by_policy` refuses.
    """
    per_epoch = _steps_per_epoch(job, world.train_samples) if world.train_samples else 0
    interval = statistics[0].last_step if statistics else job.freeze.interval_steps or per_epoch
    if not job.elastic.freeze:
        return NOTHING_FREEZES
    if not interval:
        raise ValueError(
            "freeze.interval_steps is null, which means an epoch, and the number of training samples is not known here; give "
            "--train-samples N"
        )
    calendar = DecisionCalendar(max(interval, job.decisions.lag_steps + 1), job.decisions.lag_steps, length.steps)
    return by_policy(job, world.num_units, calendar, statistics, world.tied)


def length_of(job: Job, train_samples: int) -> Length:
    """Return the run's length as the trainer counts it.

    Raises:
        ValueError: the job says epochs, and the number of samples is not known; or the run has no sample at all.
    """
    if job.training.steps is None and not train_samples:
        raise ValueError(
            f"training.epochs is {job.training.epochs:g} and the number of training samples is not known here; give "
            "--train-samples N, or --set training.steps=N"
        )
    steps = job.total_steps(_steps_per_epoch(job, train_samples) if train_samples else 1)
    grows = job.training.batch == "per_replica" and job.training.epochs is not None
    samples = round(job.training.epochs * train_samples) if grows else None
    if samples == 0:
        raise ValueError(
            f"training.epochs is {job.training.epochs:g} and the training samples are {train_samples}, so that the run has none; "
            "raise training.epochs, or give --train-samples N"
        )
    return Length(steps, samples)


def known_train_samples(job: Job) -> int:
    """Return the training samples of a data set whose size is known here; 0: not known without reading the data.

    The splits are those of the trainer: first the test split, then `data.max_samples`, then the guard split.
    """
    data = job.data
    if data.source != "digits":
        return 0
    test = 0 if data.test_path else round(data.test_fraction * DIGITS_SAMPLES)
    rest = min(DIGITS_SAMPLES - test, data.max_samples or DIGITS_SAMPLES)
    return rest - min(round(data.guard_fraction * rest), data.guard_samples_max)


def _steps_per_epoch(job: Job, train_samples: int) -> int:
    return -(-train_samples // job.training.batch_size)


def _with_parts(job: Job, parts: Sequence[str]) -> Job:
    return job.model_copy(update={"elastic": ElasticSection(**{part: part in parts for part in PARTS})})


def _notes(job: Job, world: World) -> list[str]:
    """Return the assumptions, and the parts of a run that the figures leave out, in words."""
    cluster = world.cluster
    notes = [f"unit times: {world.unit_source}"]
    limit = job.placement.workers
    if cluster.devices > limit:
        notes.append(f"the cluster has {cluster.devices} devices, the job takes placement.workers {limit} of them")
    elif cluster.devices < limit:
        notes.append(f"the job wants placement.workers {limit}, the cluster has {cluster.devices} devices")
    if spare := len(world.prices) - len(world.workers):
        notes.append(f"{spare} more device(s) are held by placement.spare_workers, and counted")
    if cluster.cache is None:
        notes.append("cache traffic: as the planner predicts it before it has measured")
    if not world.train_samples:
        notes.append("the number of training samples is not known: the cache counts as warm at once")
    if job.reshapes or job.faults:
        notes.append("scheduled reshapes and planned faults of the job are left out")
    notes.append("not in the figures: start, evaluation, checkpoints, waiting for data, failures")
    return notes


def shape_words(span: Span) -> str:
    """Return a span's shape in words."""
    placement = span.placement
    virtual = f" x {placement.virtual_stages} virtual" if placement.virtual_stages > 1 else ""
    return f"{in_words(placement.degrees)}{virtual}"


def on_workers(job: Job, workers: int) -> Job:
    """Return the job with so many workers."""
    section = job.placement.model_copy(update={"workers": workers})
    return job.model_copy(update={"placement": replace_checked(section)})


def replace_checked(section: Any) -> Any:
    """Return a section whose fields were replaced, validated again. Raises ValueError where the fields are inconsistent."""
    return type(section).model_validate(section.model_dump())
