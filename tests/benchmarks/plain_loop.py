"""The peer of one worker: the usual training loop around a Hugging Face model, with gradient accumulation."""

import torch
from torch.nn import functional

from frostline_trainer.step.context import RunContext
from tests.benchmarks.subjects import unsplit_model

IGNORED = -100


class PlainLoop:
    """The subject's model, batch, optimizer and clipping without any code of the engine; the batches are the run's own.

    micro_batch_size: the subject's own, or another size when the loop's best size is searched.
    """

    def __init__(self, context: RunContext, micro_batch_size: int | None = None) -> None:
        self.data, self.order = context.data.train, context.order(1)
        self.augmentation = context.job.data.augmentation
        self.size = micro_batch_size or context.micro_batch_size
        self.model = unsplit_model(context).to(context.device)
        self.device, self.mixed = context.device, context.job.training.precision == "mixed_bfloat16"
        section = context.job.training.optimizer
        self.clip_norm = context.job.training.clip_norm
        parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in parameters if p.ndim > 1], "weight_decay": section.weight_decay},
                {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
            ],
            lr=1e-5,
            betas=(section.beta1, section.beta2),
            eps=section.epsilon,
            fused=True,
        )
        self.step_number = 0

    def step(self) -> float:
        """Take one step on the next batch. Returns its loss."""
        self.step_number += 1
        indices = self.order.indices(self.step_number)
        variants = self.order.variants(self.step_number, indices, self.augmentation.mode, self.augmentation.variants)
        batch = {name: tensor.to(self.device) for name, tensor in self.data.collate(indices, variants).items()}
        labels = batch.pop("labels")
        count = (labels != IGNORED).sum()
        losses = []
        for start in range(0, len(labels), self.size):
            rows = {name: tensor[start : start + self.size] for name, tensor in batch.items()}
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed):
                logits = self.model(**rows).logits
            scores, wanted = logits.flatten(0, -2).float(), labels[start : start + self.size].flatten()
            loss = functional.cross_entropy(scores, wanted, reduction="sum", ignore_index=IGNORED)
            loss = loss / count
            loss.backward()
            losses.append(loss.detach())
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(torch.stack(losses).sum())
