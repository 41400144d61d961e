"""The start-up probe: the digest of one step of one real unit of each kind, in the job's precision (docs/protocols.md 1.9).

Workers with equal probes compute the same bits; `numerics: exact` admits only workers with the run's probe. Forward, loss,
backward and update are the run's own code on the run's first samples; the probe draws its own weights. One unit at a time is on
the device. Runs that share cached values compare another digest (`prefix.prefix_probe`).
"""

import copy
import hashlib
import platform

import torch
from torch import nn

from frostline_contract.seeds import seed_of
from frostline_trainer.data.split import first_samples
from frostline_trainer.families.base import never_learns
from frostline_trainer.process.device_facts import library_versions
from frostline_trainer.process.kernels import kernel_settings
from frostline_trainer.step.building import stage_settings
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.one_unit import OneUnit
from frostline_trainer.step.optimizer import Moments, UnitOptimizer
from frostline_trainer.step.stage import Stage
from frostline_trainer.step.unit_kinds import first_of_its_kind

PATTERN_VALUES = 65521
"""Numbers drawn once and repeated; a prime, so that no two rows of a matrix are alike."""
WEIGHT_SCALE, LEARNING_RATE = 0.05, 1e-3


def run_probe(context: RunContext) -> tuple[str, str]:
    """Run the probe. Returns (digest in hex, a description of its platform). Units and torch's generators are not changed."""
    decisive, where = computes_on(context)
    digest = hashlib.sha256(decisive.encode())
    pattern = drawn_pattern(context.device, context.precision.weights)
    with torch.random.fork_rng(devices=[context.device] if context.device.type == "cuda" else []):
        for index, first in enumerate(first_of_its_kind(context.cut.units)):
            if index == first:
                for tensor in _one_step(context, index, pattern):
                    digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest(), f"{decisive}, {where}"


def drawn_pattern(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """The pattern with which weights and inputs are filled, the same on every worker."""
    values = torch.randn(PATTERN_VALUES, generator=torch.Generator().manual_seed(seed_of("probe")))
    return values.to(device, dtype)


def computes_on(context: RunContext) -> tuple[str, str]:
    """The platform in words: (facts that are part of the digest, since they decide bits which one step may not show; the rest).

    A GPU's libraries promise equal bits for the same version, GPU model and number of multiprocessors.
    """
    numerics = ", ".join(filter(None, (context.precision.name, context.numerics)))
    common = f"torch {torch.__version__.split('+')[0]}, {numerics}, {torch.get_num_threads()} thread(s), {kernel_settings()}"
    if context.device.type == "cuda":
        found = torch.cuda.get_device_properties(context.device)
        versions = ", ".join(f"{name} {version}" for name, version in library_versions().items() if name != "nccl")
        return f"{common}, {found.name} with {found.multi_processor_count} multiprocessors, {versions}", "one GPU a worker"
    return common, f"{platform.processor() or platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def _one_step(context: RunContext, index: int, pattern: torch.Tensor) -> list[torch.Tensor]:
    """All results of one step of a copy of a unit: output, gradients, updated weights, moments."""
    unit = copy.deepcopy(context.cut.units[index]).to(context.device)
    never_learns(unit, ())  # in the probe all weights learn, also those below adapters
    draw_weights(unit, pattern)
    samples = first_samples(context.data.train, context.micro_batch_size)
    inputs = context.on_device(context.data.train.collate(samples, [0] * len(samples)))
    counts = context.task.loss_counts(context.data.train, samples)
    entry = None
    if index > 0:
        entry = drawn(pattern, context.hidden_like()).requires_grad_()
    is_head = index == context.num_units - 1
    score = (lambda logits, given: context.task.loss(logits, given, counts)) if is_head else None
    run = OneUnit(Stage([unit], index, 0, stage_settings(context)), inputs, entry, score, context.grid)
    output = run.forward()
    run.backward(None if is_head else drawn(pattern, torch.empty_like(output)))
    found = [output, *([] if entry is None else [entry.grad]), *(p.grad for p in unit.parameters() if p.grad is not None)]
    moments: Moments = {}
    UnitOptimizer(context.job.training.optimizer, [(index, unit)], moments).step(LEARNING_RATE)
    return [*found, *unit.parameters(), *(moment for state in moments.values() for moment in state.values())]


@torch.no_grad()
def draw_weights(unit: nn.Module, pattern: torch.Tensor) -> None:
    """Give a copy of a unit weights that depend on its shapes only."""
    for name, parameter in unit.named_parameters():
        parameter.requires_grad_(True)
        drawn(pattern, parameter).mul_(WEIGHT_SCALE)
        if parameter.ndim == 1 and name.endswith("weight"):
            parameter.add_(1.0)  # a normalisation's scale


def drawn(pattern: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
    """Fill a tensor, with any strides, with the repeated pattern; returns it."""
    count = into.numel()
    into.detach().copy_(pattern.repeat(-(-count // len(pattern)))[:count].view(into.shape))
    return into
