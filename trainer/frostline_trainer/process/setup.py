"""Builds the RunContext of a job: data, model cut into units, numerics of this process."""

import hashlib
import logging
import os

import torch

from frostline_contract.job import Job
from frostline_contract.schedules import schedule_named
from frostline_trainer.data.decoding import decoders_of
from frostline_trainer.data.load import load_data
from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.families.adapters import parameters_added
from frostline_trainer.families.base import CutModel, Family
from frostline_trainer.families.registry import family_named
from frostline_trainer.model import build_cut_model
from frostline_trainer.prefix.own_tokens import own_tokens
from frostline_trainer.prefix.padding_check import find_padding_dependence
from frostline_trainer.prefix.prefix_probe import probe_prefix
from frostline_trainer.prefix.tile_check import (
    find_address_dependence,
    find_place_dependence,
    may_use_cache,
    measure_sample_tiles,
)
from frostline_trainer.process.cell_check import check_cells
from frostline_trainer.process.probe import run_probe
from frostline_trainer.process.self_test import examine_gpu
from frostline_trainer.process.tensor_tiles import install_tiles
from frostline_trainer.step.backward_thread import backward_in_own_thread
from frostline_trainer.step.compiling import check_compiler
from frostline_trainer.step.context import RunContext, has_dropout
from frostline_trainer.step.grid import grid_of
from frostline_trainer.tasks import task_for

log = logging.getLogger(__name__)


def build_context(job: Job, device: torch.device | None = None) -> RunContext:
    """Load the job's data and model, and run the start-up checks. Raises ValueError with one line for a mistake of the user."""
    _check_schedules(job)
    context = unproven_context(job, device)
    _check_batch(context)
    _check_head(context)
    check_cells(context)
    context.probe_digest, context.probe_detail = run_probe(context)
    if context.device.type == "cuda":
        examine_gpu(context.device, lambda: run_probe(context)[0], context.probe_digest)
    check_tiles(context)
    return context


def unproven_context(job: Job, device: torch.device | None = None) -> RunContext:
    """The context with the job's data and model, before the start-up checks. Raises ValueError for a mistake of the user."""
    torch.set_num_threads(job.training.threads)
    device = device or choose_device(job)
    settle_torch(device)
    if job.training.compile:
        check_compiler(device.type)
    data = load_data(job, decoders_of(job, device.type == "cpu"))
    family = family_named(job.model.family)
    cut = build_cut_model(job, data.sizes)  # in host memory: a plan says which units go to the device
    context = RunContext(
        job=job,
        data=data,
        task=task_for(job, data.sizes),
        cut=cut,
        device=device,
        hidden_shape=family.hidden_shape(cut.model.config, data.sizes),
        dropout=draws_random_numbers(job, cut),
        unit_flops=unit_flops(family, cut, data.sizes, job),
        grid=grid_of(job, family, cut.model.config, data.sizes),
    )
    install_tiles(context)
    return context


def draws_random_numbers(job: Job, cut: CutModel) -> bool:
    """Whether any unit has dropout: the model's own, or that of adapters."""
    adapters = job.model.adapters
    return has_dropout(cut.model.config) or (adapters is not None and adapters.dropout > 0)


def unit_flops(family: Family, cut: CutModel, sizes: DataSizes, job: Job) -> tuple[int, ...]:
    """FLOPs of one sample's forward in each unit; adapters add two for each of their parameters and token."""
    tokens, _ = family.hidden_shape(cut.model.config, sizes)
    own = family.forward_flops(cut.model.config, sizes, job.task.kind)
    return tuple(flops + 2 * tokens * parameters_added(unit) for flops, unit in zip(own, cut.units, strict=True))


def check_tiles(context: RunContext) -> None:
    """Run the checks of frozen units, and store the results in the context.

    They give the digest of the prefix; whether a sample's bits depend on its place in a tile, or on addresses (which becomes part
    of the probe); and whether results depend on the content of padding, which decides how much of a value is cached.
    """
    if not may_use_cache(context.job):
        return
    context.prefix_digest = probe_prefix(context)
    if moved := find_address_dependence(context):
        log.warning("%s: set MKL_CBWR=AUTO,STRICT; every operand is kept aligned meanwhile", moved)
        context.probe_detail += f"; {moved}"
    context.place_dependence = find_place_dependence(context)
    if context.place_dependence:
        context.sample_tile_cost = measure_sample_tiles(context)
        context.probe_digest = hashlib.sha256(f"{context.probe_digest}|{context.place_dependence}".encode()).hexdigest()
        context.probe_detail += f"; {context.place_dependence}"
        log.warning("%s; one sample at a time costs %.2f x", context.place_dependence, context.sample_tile_cost)
    if (own := own_tokens(context)) is not None:
        context.padding_dependence = find_padding_dependence(context, own)
    if context.padding_dependence:
        log.warning("%s; cached values hold the padding as well", context.padding_dependence)


def choose_device(job: Job) -> torch.device:
    """The worker's device: the first GPU that it sees. A worker that an agent has started sees only one (gpus.py).

    Raises ValueError if the job asks for CUDA and there is no GPU.
    """
    wanted, available = job.training.device, torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise ValueError("training.device is cuda and no CUDA device is visible; use device: cpu or auto")
    if wanted == "cpu" or not available:
        return torch.device("cpu")
    return torch.device("cuda", 0)


def settle_torch(device: torch.device) -> None:
    """Let the calling thread, which will train, run its backward passes itself, and on CUDA set this process to deterministic
    kernels, for exact numerics (docs/protocols.md 1.8)."""
    backward_in_own_thread()
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # with one workspace size, cuBLAS has the same bits on any stream
    torch.use_deterministic_algorithms(True)
    # Otherwise torch would fill each new tensor with NaN first, also receive buffers in every step.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False


def _check_schedules(job: Job) -> None:
    """Raise an error for an unknown schedule now, not when the first pipeline with several stages needs it."""
    wanted = [job.placement.schedule, *(reshape.schedule for reshape in job.reshapes)]
    for name in wanted:
        if name != "auto":
            schedule_named(name)


def _check_head(context: RunContext) -> None:
    training, head = context.job.training, context.cut.units[-1]
    wanted = {
        "loss_chunk_tokens": (training.loss_chunk_tokens, 0),
        "token_cells": (training.token_cells if training.has_cells else 1, 1),
    }
    for name, (value, off) in wanted.items():
        if value != off and not getattr(head, "position_wise", False):
            raise ValueError(
                f"training.{name} is {value} and the head of model.family {context.job.model.family} does not say that it "
                f"computes each token by itself (Unit.position_wise); set it to {off}"
            )


def _check_batch(context: RunContext) -> None:
    if len(context.data.train) < context.job.training.batch_size:
        raise ValueError(
            f"data: {len(context.data.train)} training samples are fewer than training.batch_size "
            f"{context.job.training.batch_size}; lower batch_size or give more data"
        )
