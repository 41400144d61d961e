"""The question that a user puts to `frostline simulate` by files and options, and its answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from frostline_contract.job import Job
from frostline_contract.precision import BYTES, VALUE_TYPES, resolve_precision
from frostline_controller.local_run.errors import UserMistake
from frostline_controller.planner.adapter import plan_inputs
from frostline_controller.planner.model_size import ModelSize, model_size
from frostline_controller.planner.profile_file import MeasuredProfile
from frostline_controller.planner.tensor.advice import SharingAdvice, advise_sharing
from frostline_controller.simulation.cluster_file import Cluster
from frostline_controller.simulation.finished import FinishedRun
from frostline_controller.simulation.history import History, by_epoch
from frostline_controller.simulation.measured import Comparison, compare_with_measured
from frostline_controller.simulation.replay import Length
from frostline_controller.simulation.simulate import (
    JOB_ARM,
    STATIC_ARM,
    Simulation,
    known_train_samples,
    length_of,
    on_workers,
    simulate,
)
from frostline_controller.simulation.world import World, build_world


@dataclass(frozen=True)
class Question:
    """A job, a cluster, and the source of the freeze history.

    Attributes:
        job: None: the finished run's.
        cluster: None: the machine that the finished run ran on.
        run: a finished run, whose unit times and decisions are used; None: there is none.
        profile: unit times of another run; None: the run's, else computed ones.
        points: freeze points by epoch, in place of every other history.
        ask_policy: the job's policy decides again on the finished run's statistics.
        train_samples: of the training split; 0: the number known of the run or data set.
        arms: `job` as its file says, or any of `frostline compare`'s.
        all_devices: the job takes every device of the cluster, whatever placement.workers says.
    """

    job: Job | None = None
    cluster: Cluster | None = None
    run: FinishedRun | None = None
    profile: MeasuredProfile | None = None
    points: Mapping[float, int] | None = None
    ask_policy: bool = False
    train_samples: int = 0
    arms: Sequence[str] = (STATIC_ARM, JOB_ARM)
    all_devices: bool = False


@dataclass(frozen=True)
class Answer:
    """The answer to a question.

    Attributes:
        simulation: the arms.
        comparison: of predicted with measured steps, where a finished run is simulated on its own machine; else None.
    """

    simulation: Simulation
    comparison: Comparison | None

    @cached_property
    def sharing(self) -> SharingAdvice:
        """The advice on tensor parallelism and sharded state for the run, with the units frozen at its start."""
        job, world = self.simulation.job, self.simulation.world
        frozen, workers = job.initial_freeze_point(world.num_units), len(world.workers)
        inputs = plan_inputs(job, world.situation(job, frozen, None, {}, job.training.steps or 0, workers))
        types = VALUE_TYPES[resolve_precision(job.training.precision, world.cluster.device.kind == "gpu")]
        return advise_sharing(job, inputs, BYTES[types.weights])


def answer(question: Question) -> Answer:
    """Return the simulation for a question. Raises ValueError where parts of it are missing or inconsistent."""
    run = question.run
    job = question.job or (run.job if run is not None else None)
    cluster = question.cluster or (run.own_cluster(job) if run is not None and job is not None else None)
    if job is None or cluster is None:
        raise ValueError("a simulation needs a job (-f JOB) and a cluster (--cluster FILE), or a finished run")
    if question.all_devices:
        job = on_workers(job, cluster.devices)
    if question.points is not None and JOB_ARM in question.arms and not job.elastic.freeze:
        raise ValueError(
            f"--freeze: the job's elastic.freeze is false, so that nothing freezes in the arm {JOB_ARM}; leave --freeze out, or "
            "give --set elastic.freeze=true"
        )
    world = _world(question, job, cluster)
    statistics = run.data.statistics if run is not None and question.ask_policy else ()
    simulation = simulate(
        job, world, history=_history(question), statistics=statistics, arms=question.arms, length=_length(question, job, world)
    )
    same = run is not None and question.job is None and question.cluster is None
    return Answer(simulation, compare_with_measured(run, world) if same and run is not None else None)


def _world(question: Question, job: Job, cluster: Cluster) -> World:
    run, samples = question.run, question.train_samples
    same_data = run is not None and job.data == run.job.data
    samples = samples or (run.train_samples if run is not None and same_data else known_train_samples(job))
    measured = question.profile or (run.profile if run is not None else None)
    table = cluster.device.units is not None
    return build_world(cluster, job, size=_size(job, table or measured is not None), measured=measured, train_samples=samples)


def _size(job: Job, measured: bool) -> ModelSize | None:
    """Return the model's size; None where it is not known here but unit times are given.

    Raises:
        UserMistake: the size is not known and no unit times are given.
    """
    try:
        return model_size(job)
    except UserMistake:
        if measured:
            return None
        raise


def _history(question: Question) -> History | None:
    if question.points is not None:
        return by_epoch(question.points)
    if question.run is not None and not question.ask_policy:
        return question.run.history
    return None


def _length(question: Question, job: Job, world: World) -> Length:
    run = question.run
    if run is not None and question.job is None:
        return Length(run.steps, None)
    return length_of(job, world.train_samples)
