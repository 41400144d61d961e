"""The start-up check that a model can compute token cells (docs/protocols.md 1.21).

One unit of each kind computes a sequence as a whole and in cells; outputs and gradients must be the same up to rounding. This
finds a block that reads later tokens, that keeps state along tokens which its cells do not pass on, or that attends to earlier
keys with a wrong mask.
"""

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from frostline_contract.seeds import seed_of
from frostline_trainer.data.split import first_samples
from frostline_trainer.process.probe import draw_weights, drawn_pattern
from frostline_trainer.step.building import stage_settings
from frostline_trainer.step.chunks import Inputs
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.grid import Grid
from frostline_trainer.step.one_unit import OneUnit
from frostline_trainer.step.precision import Precision
from frostline_trainer.step.stage import Stage, StageSettings
from frostline_trainer.step.unit_kinds import first_of_its_kind

ROUNDING = 1e-3
"""Largest relative difference in norm between the two computations in float32: a thousand times the observed one. A missing mask
or a token too many changes results by a hundredth."""


def check_cells(context: RunContext) -> None:
    """Raise ValueError, with field, value and remedy, if a unit computes other results in cells than on whole sequences."""
    if not context.grid:
        return
    with torch.random.fork_rng(devices=[context.device] if context.device.type == "cuda" else []):
        for index, first in enumerate(first_of_its_kind(context.cut.units)):
            if index == first and index > 0:
                _Examined(context, index).examine()


class _Examined:
    """A copy of one unit, in float32 and eval mode, on the first sample."""

    def __init__(self, context: RunContext, index: int) -> None:
        self._context, self._index = context, index
        device = context.device
        self._unit: nn.Module = copy.deepcopy(context.cut.units[index]).to(device, torch.float32)
        draw_weights(self._unit, drawn_pattern(device, torch.float32))
        exact = Precision("float32", torch.float32, torch.float32)
        settings: StageSettings = replace(
            stage_settings(context), precision=exact, dropout=False, checkpointing=False, compiled=False
        )
        self._stage = Stage([self._unit], index, 0, settings)
        self._unit.eval()
        samples = first_samples(context.data.train, 1)
        self._inputs: Inputs = context.on_device(context.data.train.collate(samples, [0]))
        counts = context.task.loss_counts(context.data.train, samples)
        is_head = index == context.num_units - 1
        self._score: Callable[[torch.Tensor, Inputs], torch.Tensor] | None = (
            (lambda logits, given: context.task.loss(logits, given, counts)) if is_head else None
        )
        generator = torch.Generator().manual_seed(seed_of("cells"))
        self._entry, self._other = (torch.randn(1, *context.hidden_shape, generator=generator).to(device) for _ in range(2))

    def examine(self) -> None:
        if self._score is None:
            self._check_order()
        names = ("the output", "the gradient of its input", "the gradients of its weights")
        for name, whole, cells in zip(names, self._computed(()), self._computed(self._context.grid), strict=True):
            if _differ(whole, cells):
                raise ValueError(
                    f"{self._words()}: {name} in cells is not that of the whole sequence, so the unit shares something along "
                    "tokens that it does not hand to its cell (frostline_trainer.families.base.Unit); set training.token_cells "
                    "to 1, or repair the family"
                )

    def _check_order(self) -> None:
        """Check that outputs of tokens before a cell's end do not depend on tokens behind it."""
        bound = self._context.grid[len(self._context.grid) // 2]
        changed = torch.cat([self._entry[:, :bound], self._other[:, bound:]], dim=1)
        with torch.no_grad():
            before, after = (self._stage.run_trainable(entry, self._inputs, 0, 0)[:, :bound] for entry in (self._entry, changed))
        if _differ(before, after):
            raise ValueError(
                f"{self._words()}: tokens before {bound} change with those behind them, so the family is not causal; set "
                "training.token_cells to 1, or causal to False in the family"
            )

    def _computed(self, grid: Grid) -> list[torch.Tensor]:
        """(what the unit adds to its input, or the loss; the input's gradient; all weights' gradients)."""
        entry = self._entry.clone().requires_grad_()
        self._unit.zero_grad(set_to_none=True)
        run = OneUnit(self._stage, self._inputs, entry, self._score, grid)
        output = run.forward()
        run.backward(None if self._score is not None else self._other)
        assert entry.grad is not None
        weights = [parameter.grad.flatten() for parameter in self._unit.parameters() if parameter.grad is not None]
        given, taken = (output, entry.grad) if self._score is not None else (output - self._entry, entry.grad - self._other)
        return [given, taken, torch.cat(weights)]

    def _words(self) -> str:
        context, unit = self._context, self._context.cut.units[self._index]
        wanted, family = context.job.training.token_cells, context.job.model.family
        name = f"{context.cut.unit_names[self._index]} ({type(unit).__name__})"
        return f"training.token_cells is {wanted} and model.family {family}, {name}"


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two results of one computation differ by more than rounding; NaN counts as a difference."""
    return not bool((one - other).double().norm() <= ROUNDING * one.double().norm())
