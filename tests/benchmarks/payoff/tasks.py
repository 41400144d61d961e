"""The tasks of the benchmark: six of them, each a job file and the fields that the benchmark sets in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.benchmarks.devices import SHARE, WORKERS
from tests.benchmarks.payoff.text_sets import SETS

ROOT = Path(__file__).parents[3]
PLACE = ROOT / "runs" / "payoff"
"""Run directories and text sets; not committed."""

DEVICES = (f"placement.workers={WORKERS}", f"placement.worker_cpus={SHARE}", "placement.initial_pp_degree=null")


@dataclass(frozen=True)
class Task:
    """One row of the page.

    Attributes:
        text: whether it is a text task, which the goals count.
        fields: settings in the form of `--set`, for every arm.
        small: further settings of the smaller variant; all figures list this variant separately.
        elastic: further settings of the elastic arm: those that suit a run whose first units are frozen.
        frontier: settings of freezing beside the elastic arm's, by the arms' names: time against accuracy.
        metric: the metric by which accuracy is compared; None: the loss alone.
    """

    name: str
    title: str
    job: Path
    text: bool
    fields: tuple[str, ...]
    small: tuple[str, ...]
    frontier: Mapping[str, tuple[str, ...]]
    elastic: tuple[str, ...] = ()
    metric: str | None = "accuracy"

    def overrides(self, scale: str) -> list[str]:
        """Return all fields that the benchmark sets for all arms."""
        return [*DEVICES, *self.fields, *(self.small if scale == "small" else ())]


TEXT_JOB = Path(__file__).with_name("text.yaml")
_TEXT = yaml.safe_load(TEXT_JOB.read_text())
TEXT_UNITS: int = _TEXT["freeze"]["initial_units"]
"""Units that text tasks freeze from step 1 in the elastic arm."""
STATIC_RATE: float = _TEXT["training"]["optimizer"]["learning_rate"]
ELASTIC_RATE = 2 * STATIC_RATE
"""Learning rate of text tasks with the first units frozen; static has the job's, which suits it better (`words.METHOD`)."""
AUTO = ("training.micro_batch_size=auto", "training.reduction_leaves=auto")
SHARED_AS_NEEDED = ("training.state_ranges=4", "placement.shard=auto")
"""As the text tasks' job has it: replicas share state out where memory is short. Static placements that do are candidates too."""
SMALL_TEXT = ("data.max_samples=445",)

INITIAL = {f"initial-{units}": (f"freeze.initial_units={units}",) for units in (2, 4, 5)}
"""Text tasks freeze so many units from step 1 instead of the elastic arm's, at the job's learning rate."""
HALF = {
    f"half-{percent}": (
        "freeze.policy.name=stairs",
        f"freeze.policy.stairs={{{percent / 100:g}: 0.5}}",
        "freeze.rails.warmup_fraction=0",
        "freeze.rails.blocks_per_interval=6",
        "freeze.rails.patience=1",
    )
    for percent in (50, 40, 30)
}
"""Tasks from scratch freeze half of the blocks by one move at such a share of the run, in percent."""


def _text(name: str, title: str) -> Task:
    folder = PLACE / "sets" / name
    fields = (f"data.path={folder / 'train.csv'}", f"data.test_path={folder / 'test.csv'}")
    return Task(name, title, TEXT_JOB, True, fields, SMALL_TEXT, INITIAL, (f"training.optimizer.learning_rate={ELASTIC_RATE}",))


TASKS = {
    task.name: task
    for task in (
        Task(
            "digits", "digits, from scratch", ROOT / "examples/image_classification/digits.yaml", False,
            (*AUTO, *SHARED_AS_NEEDED, "placement.planner=optimal", "placement.reshape_every_freeze=false"),
            ("training.epochs=12",), HALF,
        ),
        _text("reviews", "film reviews"),
        _text("tweets", "tweets"),
        _text("products", "product reviews"),
        _text("editorials", "editorials"),
        Task(
            "stdlib", "language model, from scratch", ROOT / "examples/language_modeling/stdlib_gpt2.yaml", False,
            (*AUTO, *SHARED_AS_NEEDED), ("training.epochs=2",), HALF, metric=None,
        ),
    )
}  # fmt: skip
assert set(SETS) == {task.name for task in TASKS.values() if task.text}

CAPS = ("capped", "free")
PARTS = ("freeze", "pipeline", "replicas", "cache")
ABLATION = {
    "freeze": ("freeze",),
    "shrink": ("freeze", "pipeline"),
    "width": ("freeze", "pipeline", "replicas"),
    "elastic": PARTS,
}
"""The four switches, one by one; each arm includes the switches before it. The last arm is the one compared with static."""


def arm_fields(task: Task, arm: str) -> list[str]:
    """Return the fields that an arm with exact numerics changes in the task's job."""
    if arm in task.frontier:
        return [*switches(PARTS), *task.frontier[arm]]
    return [*switches(ABLATION[arm]), *task.elastic]


def switches(parts: tuple[str, ...]) -> list[str]:
    """Return the settings of the four switches, in the form of `--set`."""
    return [f"elastic.{part}={'true' if part in parts else 'false'}" for part in PARTS]
