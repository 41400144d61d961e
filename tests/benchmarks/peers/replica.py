"""The training of all peers: one of four data-parallel replicas of the digits model, each on its share of the batch."""

import json
import time
from pathlib import Path

import torch
from torch.nn import functional

from tests.benchmarks.subjects import new_context, unsplit_model


class Replica:
    """The unsplit model, AdamW and the run's own batches; the caller exchanges the flat gradient."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        context = new_context("digits")
        self._data, self._order = context.data.train, context.order(1)
        self._size, self._augmentation = context.micro_batch_size, context.job.data.augmentation
        self.model = unsplit_model(context)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4, fused=True)
        self.flat = torch.zeros(sum(parameter.numel() for parameter in self.parameters))
        place = 0
        for parameter in self.parameters:
            parameter.grad = self.flat[place : place + parameter.numel()].view_as(parameter)
            place += parameter.numel()

    def gradient(self, step: int, index: int, replicas: int) -> None:
        """Fill `flat` with this replica's part of the step's gradient."""
        indices = self._order.indices(step)
        variants = self._order.variants(step, indices, self._augmentation.mode, self._augmentation.variants)
        bounds = [len(indices) * place // replicas for place in range(replicas + 1)]
        mine = slice(bounds[index], bounds[index + 1])
        batch = self._data.collate(indices[mine], variants[mine])
        labels = batch.pop("labels")
        self.flat.zero_()
        for start in range(0, len(labels), self._size):
            rows = {name: tensor[start : start + self._size] for name, tensor in batch.items()}
            logits = self.model(**rows).logits
            (functional.cross_entropy(logits, labels[start : start + self._size], reduction="sum") / len(indices)).backward()

    def update(self) -> None:
        self.optimizer.step()


def log_step(log: Path, replica: int, step: int, members: int, process_id: int) -> None:
    """Append one committed step as a line to `log`; a line is one write, so that lines of several processes do not mix."""
    line = {"replica": replica, "step": step, "members": members, "process_id": process_id, "time": time.time()}
    with open(log, "ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")
