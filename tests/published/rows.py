"""The published figures one by one, beside the simulator's figures."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from frostline_controller.simulation.history import NOTHING_FREEZES
from frostline_controller.simulation.replay import Length, Replay, replay
from tests.published.setting import ALL, TASKS, Task, baseline, our_run, their_run, their_world, with_parts, with_placement
from tests.unit.controller.test_planner_pipetransformer import (
    BERT_EMBEDDING,
    BERT_HEAD,
    VIT_EMBEDDING,
    VIT_HEAD,
    compression_thresholds,
    transformer_half_blocks,
)

FIGURES = Path(__file__).with_name("figures.yaml")
DEVICES = 16


@dataclass(frozen=True)
class Row:
    """A published figure and the simulated one. goal: the largest difference that counts as reproduced; None: no goal."""

    name: str
    published: float
    simulated: float
    goal: float | None
    unit: str = ""

    @property
    def difference(self) -> float:
        return self.simulated / self.published - 1

    @property
    def met(self) -> bool:
        assert self.goal is not None, f"{self.name} has no goal"
        return abs(self.difference) <= self.goal + 1e-9


@cache
def published() -> dict[str, Any]:
    """Return the content of figures.yaml."""
    found: dict[str, Any] = yaml.safe_load(FIGURES.read_text(encoding="utf-8"))
    return found


@cache
def their_runs(task: Task) -> dict[str, Replay]:
    """Return the baseline and the arms of the ablation, by the published names."""
    return {
        "baseline": baseline(task),
        "freeze only": their_run(task, ("freeze",), recut=False),
        "freeze, pipeline, cache": their_run(task, ("freeze", "pipeline", "cache")),
        "freeze, pipeline, replicas": their_run(task, ("freeze", "pipeline", "replicas")),
        "all": their_run(task, ALL),
    }


@cache
def alpha_run(alpha: float) -> Replay:
    return their_run(TASKS["cifar100"], ALL, alpha)


@cache
def our_runs(task: Task) -> dict[str, Replay]:
    """Return our planner's runs on the same cluster and freeze history: with their growing batch, and with the baseline's."""
    held = ("training.batch=global", f"training.batch_size={2 * task.job().training.batch_size}")
    return {
        "their batch": our_run(task),
        "the baseline's batch": our_run(task, *held),
        "the baseline's batch, no cache": our_run(task, *held, cache="never"),
    }


def time_rows() -> list[Row]:
    rows = []
    for task in TASKS.values():
        figures, runs = published()["tasks"][task.name], their_runs(task)
        before, after = runs["baseline"].seconds, runs["all"].seconds
        rows += [
            Row(f"{task.title}: baseline", figures["baseline_seconds"], before, 0.1, "s"),
            Row(f"{task.title}: PipeTransformer", figures["elastic_seconds"], after, 0.1, "s"),
            Row(f"{task.title}: speed-up", figures["speedup"], before / after, 0.1, "x"),
        ]
    return rows


def ablation_rows() -> list[Row]:
    runs = their_runs(TASKS["imagenet"])
    return [
        Row(name, bar, runs["baseline"].seconds / runs[name].seconds, 0.15, "x") for name, bar in published()["ablation"].items()
    ]


def alpha_rows() -> list[Row]:
    """Return the rows of the alpha table, over the simulated baseline."""
    before = their_runs(TASKS["cifar100"])["baseline"].seconds
    return [
        Row(f"alpha {alpha:.2g}", bar, before / alpha_run(alpha).seconds, 0.1, "x") for alpha, bar in published()["alpha"].items()
    ]


def alpha_rows_over_published() -> list[Row]:
    """Return the rows of the alpha table, over the baseline's published time."""
    before = published()["tasks"]["cifar100"]["baseline_seconds"]
    return [
        Row(f"alpha {alpha:.2g}", bar, before / alpha_run(alpha).seconds, 0.1, "x") for alpha, bar in published()["alpha"].items()
    ]


def micro_batch_rows() -> list[Row]:
    """Return the throughput of eight stages by micro-batches a stage; the calibration was fitted to these figures."""
    return [
        Row(f"K = 8, {int(multiple)} K micro-batches", bar, throughput(8, int(multiple)), 0.1, "images/s")
        for multiple, bar in published()["micro_batches"].items()
    ]


def best_multiple_rows() -> list[Row]:
    """Return for each K the number of micro-batches a stage with the highest throughput; nothing is frozen."""
    rows = []
    for stages, best in published()["best_multiple"].items():
        found = max((1, 2, 3, 4, 6, 8), key=lambda multiple: throughput(int(stages), multiple))
        rows.append(Row(f"K = {int(stages)}: best M / K", best, found, 0.0))
    return rows


def throughput_rows() -> list[Row]:
    """Return the images a second while ImageNet trains, by epoch."""
    runs, samples = their_runs(TASKS["imagenet"]), TASKS["imagenet"].samples
    rows = [Row("baseline", published()["throughput_baseline"], _rate(runs["baseline"], 0), None, "images/s")]
    for epoch, bar in published()["throughput"].items():
        rows.append(Row(f"all parts, epoch {int(epoch)}", bar, _rate(runs["all"], (epoch + 0.5) * samples), None, "images/s"))
    without = runs["freeze, pipeline, replicas"]
    return [
        *rows,
        Row("without the cache, epoch 9", published()["throughput_plateau"], _rate(without, 9.5 * samples), None, "images/s"),
    ]


def threshold_rows() -> list[tuple[str, dict[int, int], dict[int, int]]]:
    """Return (model and start, published, found): layers frozen when each K is reached."""
    vit = (VIT_EMBEDDING, transformer_half_blocks(12, 768), VIT_HEAD)
    bert = (BERT_EMBEDDING, transformer_half_blocks(24, 1024), BERT_HEAD)
    ask: dict[str, Callable[[], dict[int, int]]] = {
        "vit from 8": lambda: compression_thresholds(*vit, 8),
        "vit from 4": lambda: compression_thresholds(*vit, 4),
        "bert from 8": lambda: compression_thresholds(*bert, 8),
    }
    reported = published()["thresholds"]
    return [(name, {int(stages): int(layers) for stages, layers in reported[name].items()}, ask[name]()) for name in ask]


@cache
def throughput(stages: int, multiple: int) -> float:
    """Return images a second of ViT-B/16 on all devices, unfrozen, with `multiple` micro-batches a stage, without a memory limit.

    A run of ours has no more replicas than a replica has micro-batches; with fewer replicas the figure is scaled to all devices.
    """
    task, leaves = TASKS["imagenet"], _leaves(stages * multiple)
    replicas = min(DEVICES // stages, leaves)
    job = with_parts(task.job(stages * multiple, f"training.reduction_leaves={leaves}"), ())
    job = with_placement(job, pp_degree=stages, dp_degree=replicas)
    world = their_world(job, task.samples, with_memory=False)
    run = replay(job, world, NOTHING_FREEZES, Length(1, None))
    return run.spans[0].samples_per_second * DEVICES / (stages * replicas)


def _leaves(micro_batches: int) -> int:
    """Return the greatest number of leaves, a power of two, that so many micro-batches fill."""
    return min(16, 1 << (micro_batches.bit_length() - 1))


def _rate(run: Replay, samples: float) -> float:
    """Return the images a second at the moment when `samples` images have been trained."""
    return next(span for span in reversed(run.spans) if span.samples <= samples).samples_per_second
