"""The peer for pipelining: torch.distributed.pipelining's Schedule1F1B over the very same stage modules."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional

from frostline_contract.plan import Placement
from frostline_trainer.step.context import RunContext

IGNORED = -100
RAW_INPUTS = ("pixel_values", "input_ids")


class StageModule(nn.Module):
    """A stage's units with the signature that torch's stages need: one positional tensor, the rest by keyword.

    raw: the name of the first stage's positional input, None for later stages, whose input is the hidden tensor.
    """

    def __init__(self, units: list[nn.Module], raw: str | None) -> None:
        super().__init__()
        self.units = nn.ModuleList(units)
        self.raw = raw

    def forward(self, tensor: Tensor, **inputs: Tensor) -> Tensor:
        hidden = None if self.raw else tensor
        inputs = {**inputs, self.raw: tensor} if self.raw else inputs
        for unit in self.units:
            hidden = unit(hidden, inputs)
        assert hidden is not None
        return hidden


class TorchPipeline:
    """One rank of a pipeline as torch's own schedule runs it, with the clipping and AdamW of a usual training script.

    The constructor creates the process's default group on `store`; `close` ends this group.
    """

    def __init__(self, context: RunContext, placement: Placement, index: int, store: Any, name: str) -> None:
        self.parts: dict[str, float] = {}
        self._context, self._last = context, index == placement.pp_degree - 1
        self._order, self._data = context.order(1), context.data.train
        dist.init_process_group("gloo", store=dist.PrefixStore(name, store), rank=index, world_size=placement.pp_degree)
        sample = context.on_device(self._data.collate([0] * context.micro_batch_size, [0] * context.micro_batch_size))
        self._raw = next(key for key in RAW_INPUTS if key in sample)
        units = [context.cut.units[unit] for unit in placement.units_of_stage(index)]
        self._first = index == 0
        module = StageModule(units, self._raw if self._first else None)
        # Torch sends gradients only where the sample says that it needs one.
        hidden = context.hidden_like().requires_grad_()
        logits = torch.empty(context.micro_batch_size, context.cut.model.config.num_labels).requires_grad_()
        stage = PipelineStage(
            module,
            index,
            placement.pp_degree,
            context.device,
            input_args=(sample[self._raw] if self._first else hidden,),
            output_args=(logits if self._last else hidden,),
        )
        self._count = 1
        self._schedule = Schedule1F1B(stage, context.num_microbatches(1), loss_fn=self._loss, scale_grads=False)
        self._parameters = list(module.parameters())
        section = context.job.training.optimizer
        groups = [
            {"params": [p for p in self._parameters if p.ndim > 1], "weight_decay": section.weight_decay},
            {"params": [p for p in self._parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=1e-5, fused=True)
        self._step_number = 0

    def step(self) -> float:
        """Take one step on the next batch. Returns its loss, the same on every rank."""
        self._step_number += 1
        indices = self._order.indices(self._step_number)
        section = self._context.job.data.augmentation
        variants = self._order.variants(self._step_number, indices, section.mode, section.variants)
        batch = self._data.collate(indices, variants)
        labels, raw = batch.pop("labels"), batch.pop(self._raw)
        self._count = int((labels != IGNORED).sum())
        losses: list[Tensor] = []
        if self._first:
            self._schedule.step(raw, **batch)
        elif self._last:
            self._schedule.step(target=labels, losses=losses, **batch)
        else:
            self._schedule.step(**batch)
        return self._finish(losses)

    def close(self) -> None:
        """End the default group."""
        dist.destroy_process_group()

    def _finish(self, losses: list[Tensor]) -> float:
        norms = torch._foreach_norm([parameter.grad for parameter in self._parameters])
        sums = torch.stack([torch.stack(norms).square().sum(), sum(losses, torch.zeros(())).detach()])
        dist.all_reduce(sums)
        clip = self._context.job.training.clip_norm
        if clip is not None:
            factor = min(1.0, clip / (float(sums[0]) ** 0.5 + 1e-6))
            torch._foreach_mul_([parameter.grad for parameter in self._parameters], factor)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(sums[1])

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED) / self._count
