"""Schedules over token slices on workers of fixed speed, beside the planner's prediction; and what cells cost on one worker."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from frostline_contract.job import load_job
from frostline_contract.schedules import BUILT_IN
from frostline_trainer.process.setup import build_context
from frostline_trainer.step.context import RunContext
from tests.benchmarks.fixed_speed import ROOT, SHARE, WORKERS, Stretch, fixed_speed_job, walk
from tests.benchmarks.measuring import Effort, Report, Row, Spread, interleave_both, milliseconds, ratios
from tests.benchmarks.stepper import Stepper

LANGUAGE_JOB = ROOT / "examples" / "language_modeling" / "stdlib_gpt2.yaml"
TOKENS, CELLS, MICRO_BATCHES = 256, 4, 4
STEPS, ROUNDS = 16, 2
GOAL_PERCENT = 10.0
UNSLICED = "1f1b"
BETWEEN_STAGES = {"interleaved_1f1b": 2}
"""Virtual stages of orders that are themselves only with more than one."""
COUNTS, WIDTHS, ALONE_TOKENS, PAIRS = (1, 2, 4, 8), (64, 192), 512, 6


@dataclass(frozen=True)
class Way:
    """How a micro-batch passes the pipeline."""

    schedule: str
    virtual_stages: int
    slices: int

    @property
    def words(self) -> str:
        virtual = f", {self.virtual_stages} stages a rank" if self.virtual_stages > 1 else ""
        return f"{self.schedule}{virtual}, {'unsliced' if self.slices == 1 else f'{self.slices} slices'}"


def slices(effort: Effort) -> Report:
    """All built-in schedules in turns, in one run; then the price of cells."""
    torch.set_num_threads(1)
    return Report(
        "Schedules over token slices",
        f"A GPT-2 of 192 x 6 on sequences of {TOKENS} tokens in {CELLS} cells, {MICRO_BATCHES} micro-batches of one sequence, a "
        f"pipeline of {WORKERS} workers, each with {SHARE:g} of a processor by a control group's quota. One run reshapes through "
        f"every built-in schedule, {ROUNDS} rounds; the first row is 1F1B whose micro-batches travel whole. Beside each measured "
        "step stands the planner's. Then the price of cells: a step on one worker, which computes them all, by its thread's "
        "processor time, in turns.",
        [*_in_turns(effort), *_prices(effort)],
    )


def ways() -> list[Way]:
    """Unsliced 1F1B, then every built-in schedule that takes slices, over all cells."""
    return [Way(UNSLICED, 1, 1), *(Way(name, _virtual(name), CELLS) for name, known in BUILT_IN.items() if known.takes_slices)]


def _virtual(name: str) -> int:
    """Stages a rank: one, where the order is itself with one."""
    if name in BETWEEN_STAGES:
        return BETWEEN_STAGES[name]
    try:
        BUILT_IN[name].operations(0, WORKERS, 1, MICRO_BATCHES, CELLS)
    except ValueError:
        return 2
    return 1


def language_job(steps: int, **changes: Any) -> dict[str, Any]:
    """A job of the language model, sliced 1F1B at its start."""
    job = fixed_speed_job("language", steps, (WORKERS, 1), **changes)
    job["training"] |= {"token_cells": CELLS}
    return job


def _in_turns(effort: Effort) -> list[Row]:
    every, steps = ways() * (2 if effort.quick else ROUNDS), 8 if effort.quick else STEPS
    reshapes = [
        {"step": place * steps, "pp_degree": WORKERS, "dp_degree": 1, "schedule": way.schedule,
         "virtual_stages": way.virtual_stages, "slices": way.slices}
        for place, way in enumerate(every) if place
    ]  # fmt: skip
    first = {"schedule": every[0].schedule, "virtual_stages": every[0].virtual_stages, "slices": every[0].slices}
    found = walk(language_job(len(every) * steps, placement=first, reshapes=reshapes)).stretches
    seen: dict[Way, list[Stretch]] = {}
    for stretch in found:
        seen.setdefault(_way_of(stretch), []).append(stretch)
    baseline = median(seconds for stretch in seen[ways()[0]] for seconds in stretch.seconds)
    rows = [row for way in ways() for row in _rows(way, seen.get(way, []), baseline)]
    errors = [abs(row.spread.median) for row in rows if row.unit == "%"]
    return [*rows, Row("all schedules", "median error", "%", Spread.of(errors), at_most=GOAL_PERCENT)]


def _way_of(stretch: Stretch) -> Way:
    placement = stretch.placement
    return Way(placement.schedule, placement.virtual_stages, max(1, len(placement.slices)))


def _rows(way: Way, stretches: list[Stretch], baseline: float) -> list[Row]:
    """None where the planner took another schedule in its place."""
    seconds = [one for stretch in stretches for one in stretch.seconds]
    if not seconds:
        return []
    predicted = stretches[-1].predicted
    sides = {"measured ms": milliseconds(seconds), "predicted ms": 1e3 * predicted}
    errors = [100 * (predicted / one - 1) for one in seconds]
    error = Spread(min(errors), 100 * (predicted / median(seconds) - 1), max(errors), len(errors))
    gain = Spread.of([baseline / one for one in seconds])
    return [
        Row(way.words, "predicted above measured", "%", error, sides, note=stretches[-1].in_words()),
        Row(way.words, "unsliced 1F1B / this", "x", gain),
    ]


def _prices(effort: Effort) -> list[Row]:
    """A step in so many cells against the same in one."""
    rows = []
    for width in WIDTHS:
        contexts = {count: _alone(width, count) for count in COUNTS}
        steppers: dict[str, Callable[[], object]] = {str(count): Stepper(context).step for count, context in contexts.items()}
        _, processor = interleave_both(steppers, effort.pairs(PAIRS))
        whole = processor[str(COUNTS[0])]
        for count in COUNTS[1:]:
            taken = processor[str(count)]
            sides = {"cells ms": milliseconds(taken), "whole ms": milliseconds(whole)}
            case = f"one worker, width {width}, {ALONE_TOKENS} tokens in {count} cells"
            rows.append(Row(case, "cells / whole", "x", Spread.of(ratios(taken, whole)), sides))
    return rows


def _alone(width: int, cells: int) -> RunContext:
    """The language model by itself, two sequences a step."""
    job = load_job(LANGUAGE_JOB, [
        "training.device=cpu", "training.batch_size=2", "training.micro_batch_size=1", "training.reduction_leaves=2",
        f"model.config.n_embd={width}", f"model.config.n_positions={ALONE_TOKENS}", f"data.sequence_length={ALONE_TOKENS}",
        "data.max_samples=64", "data.vocabulary_size=512", f"training.token_cells={cells}",
    ])  # fmt: skip
    return build_context(job)
