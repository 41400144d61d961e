"""Schedules over token slices on workers of fixed speed, beside the planner's prediction; and the cost of cells on one worker."""

from collections.abc import Callable
from typing import Any

import torch

from frostline_contract.job import load_job
from frostline_contract.schedules import BUILT_IN
from frostline_trainer.process.setup import build_context
from frostline_trainer.step.context import RunContext
from tests.benchmarks.devices import SHARE, WORKERS
from tests.benchmarks.fixed_speed import AT_ONE_SPEED, ROOT
from tests.benchmarks.fixed_speed_jobs import fixed_speed_job
from tests.benchmarks.in_turns import Way, in_turns, judged
from tests.benchmarks.measuring import Effort, Report, Row, Spread, interleave_both, milliseconds, ratios
from tests.benchmarks.stepper import Stepper

LANGUAGE_JOB = ROOT / "examples" / "language_modeling" / "stdlib_gpt2.yaml"
BLOCKS, TOKENS, CELLS, MICRO_BATCHES = 8, 512, 4, 4
STEPS, ROUNDS = 8, 2
GOAL_PERCENT, GOAL_GAIN = 10.0, 1.35
UNSLICED = "1f1b"
BETWEEN_STAGES = {"interleaved_1f1b": 2}
"""Virtual stages of schedules that with one stage a rank would be another schedule."""
COUNTS, WIDTHS, ALONE_TOKENS, PAIRS = (1, 2, 4, 8), (64, 192), 512, 6


def slices(effort: Effort) -> Report:
    """Measure all built-in schedules in turns, in one run; then the cost of cells."""
    torch.set_num_threads(1)
    return Report(
        "Schedules over token slices",
        f"A GPT-2 of 192 x {BLOCKS} on sequences of {TOKENS} tokens in {CELLS} cells, {MICRO_BATCHES} micro-batches of one "
        f"sequence, a pipeline of {WORKERS} workers, each with {SHARE:g} of one processor by a control group's quota. One run "
        f"reshapes through every built-in schedule, {ROUNDS} rounds; the first row is 1F1B whose micro-batches travel whole. "
        "Beside each measured step stands the planner's, and beside the planned memory what the fullest worker's tensors took. "
        "A run with one cell for the whole sequence says what cells cost that pipeline. "
        f"{AT_ONE_SPEED} Then the price of cells: a step on one worker, which computes them all, by its thread's processor "
        "time, in turns.",
        [*_in_turns(effort), *_prices(effort)],
    )


def ways() -> list[Way]:
    """Return unsliced 1F1B, then every built-in schedule that takes slices, over all cells."""
    return [Way(UNSLICED, 1, 1), *(Way(name, _virtual(name), CELLS) for name, known in BUILT_IN.items() if known.takes_slices)]


def _virtual(name: str) -> int:
    """Return the stages a rank that a schedule needs: one if it accepts one."""
    if name in BETWEEN_STAGES:
        return BETWEEN_STAGES[name]
    try:
        BUILT_IN[name].operations(0, WORKERS, 1, MICRO_BATCHES, CELLS)
    except ValueError:
        return 2
    return 1


def language_job(steps: int, cells: int = CELLS, **changes: Any) -> dict[str, Any]:
    """Return a job of the language model with so many token cells."""
    job = fixed_speed_job("language", steps, (WORKERS, 1), blocks=BLOCKS, **changes)
    job["model"]["config"]["n_positions"] = job["data"]["sequence_length"] = TOKENS
    job["training"] |= {"token_cells": cells}
    return job


def _in_turns(effort: Effort) -> list[Row]:
    rounds = 1 if effort.quick else ROUNDS
    rows = in_turns(language_job(STEPS), ways(), rounds, STEPS)
    whole = in_turns(language_job(STEPS, cells=1), [Way(UNSLICED, 1, 1)], 1, 2 * STEPS, "one cell: ")
    return [*whole, *rows, *judged(rows, "", GOAL_PERCENT, GOAL_GAIN)]


def _prices(effort: Effort) -> list[Row]:
    """Measure a step in several cells against the same step in one cell."""
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
    """Return the language model's context for one worker, with two sequences a step."""
    job = load_job(LANGUAGE_JOB, [
        "training.device=cpu", "training.batch_size=2", "training.micro_batch_size=1", "training.reduction_leaves=2",
        f"model.config.n_embd={width}", f"model.config.n_positions={ALONE_TOKENS}", f"data.sequence_length={ALONE_TOKENS}",
        "data.max_samples=64", "data.vocabulary_size=512", f"training.token_cells={cells}",
    ])  # fmt: skip
    return build_context(job)
