"""The functions that warm workers run: one member's part of a series of hand-made plans, by the engine's own code."""

import hashlib
import math
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from frostline_contract.learning_rate import learning_rate
from frostline_contract.plan import Plan, StateTag
from frostline_trainer.checkpoints.reading import read_manifest
from frostline_trainer.checkpoints.restoring import restore_pieces
from frostline_trainer.checkpoints.saving import Saving
from frostline_trainer.generations.entering import Entered
from frostline_trainer.generations.groups import Groups
from frostline_trainer.generations.moves import move_pieces, release_unneeded
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.digests import world_digest
from frostline_trainer.step.evaluation import evaluate
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.local_shards import weight_tensors
from frostline_trainer.step.run_state import RunState
from frostline_trainer.step.unit_state import export_piece, still_weights_of, unit_digest
from frostline_trainer.step.usage import resident_bytes
from frostline_trainer.step.vote import Ballot, hold_vote
from frostline_trainer.tensor.state import layer_of
from frostline_trainer.transport.collectives import open_store
from tests.exact_cases import Case, build_case
from tests.forming import form_groups
from tests.joined_state import own_states

GROUP_SECONDS = timedelta(seconds=240)
_stores: list[Any] = []


@dataclass
class Run:
    """A member's report, as plain data. Tensors are given by the SHA-256 of their bytes; names are Hugging Face's.

    Attributes:
        losses, gradient_norms, unit_norms: by step, for the steps in which it was a member.
        units: unit -> {tensor: digest}.
        copies: where a plan has buddies, "after STEP" and "entered at STEP" -> {piece: SHA-256 of its state}, of all owned and
            kept.
        prepared: step -> {unit: SHA-256 of its gradient when the vote has passed}, where replicas own whole units.
        tags: piece -> its state in the end.
        covered: the vote's bits by step.
        digest: of the whole world.
        digests: of the whole world by step, where they were asked for.
        guard: digest of the guard split's rows.
        moved_bytes: received in reshapes.
        moment_bytes: of the optimizer's state that is held at the end.
        sent, received, resident: as the product counts them, before the report is made.
        module_bytes: storages of the modules whose weights are gathered at each use, between steps.
    """

    losses: dict[int, float] = field(default_factory=dict)
    gradient_norms: dict[int, float] = field(default_factory=dict)
    unit_norms: dict[int, tuple[float, ...]] = field(default_factory=dict)
    units: dict[int, dict[str, str]] = field(default_factory=dict)
    digest: str = ""
    digests: dict[int, str] = field(default_factory=dict)
    guard: str = ""
    moved_bytes: int = 0
    moment_bytes: int = 0
    sent: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    resident: dict[str, int] = field(default_factory=dict)
    module_bytes: int = 0
    checkpoint: str = ""
    copies: dict[str, dict[int, str]] = field(default_factory=dict)
    prepared: dict[int, dict[int, str]] = field(default_factory=dict)
    tags: dict[int, str] = field(default_factory=dict)
    covered: dict[int, tuple[bool, ...]] = field(default_factory=dict)


class EventList:
    """A list in place of the controller, for events."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def add_event(self, event: Any) -> None:
        self.events.append(event)


def store_port() -> int:
    """Return the port of this worker's store, which serves every generation whose global rank 0 the worker is."""
    if not _stores:
        _stores.append(open_store())
    return _stores[0][1]


def run_member(case: Case, worker_id: str, segments: list[tuple[dict[str, Any], int]], checkpoint_root: str = "",
               checkpoint_step: int = 0, score: bool = True, refused: tuple[int, ...] = (),
               digest_steps: bool = False) -> Run:  # fmt: skip
    """Run the segments of a plan one after the other; a segment (plan, last) ends with step `last`."""
    torch.set_num_threads(1)
    store_port()
    context, run = build_case(case), Run()
    saving = Saving(context, Path(checkpoint_root), EventList()) if checkpoint_root else None  # type: ignore[arg-type]
    generation: Generation | None = None
    step = 0
    for plan_fields, last in segments:
        plan = Plan.model_validate(plan_fields)
        old, generation = generation, None
        if worker_id in plan.participants:
            step = plan.start_step if plan.start == "checkpoint" else step
            continued = old.groups if old is not None else None
            generation = enter(context, case, plan, worker_id, step, run, checkpoint_root, continued)
            if generation is not None:
                note_copies(generation, run, f"entered at {step}")
        while generation is not None and step < last:
            step += 1
            train_step(generation, case, step, run, spoiled=step in refused)
            note_copies(generation, run, f"after {step}")
            if digest_steps:
                run.digests[step] = world_digest(generation)
            if old is not None:
                old.close()
                old = None
            if saving is not None:
                saving.stable()
                if step == checkpoint_step:
                    run.checkpoint = take_checkpoint(saving, generation, plan, case, step)
        if old is not None:
            old.close()
        step = last
    if generation is not None:
        run.tags = {piece: str(state) for piece, state in context.holdings.all().items()}
        describe(generation, run, score)
        generation.close()
    if saving is not None:
        saving.stable()
        saving.close()
    return run


def enter(context: RunContext, case: Case, plan: Plan, worker_id: str, step: int, run: Run, checkpoint_root: str,
          continued: Groups | None = None) -> Generation | None:  # fmt: skip
    """Bring groups, state and stages in place as a worker does at a switch. None for a leaver."""
    groups = form_groups(plan, worker_id, plan.backend, GROUP_SECONDS, traffic=context.traffic)
    groups.connect(continued)
    if plan.start == "continue":
        assert plan.base is not None
        tag = StateTag(lineage=plan.lineage, step=step, generation=plan.base)
        run.moved_bytes += move_pieces(context, plan, worker_id, groups.moving, tag)
        release_unneeded(context, plan, worker_id)
    elif plan.start == "checkpoint":
        folder = Path(checkpoint_root) / plan.checkpoint_path
        manifest = read_manifest(folder)
        restore_pieces(context, context.moments, folder, manifest, plan.needs(worker_id))
    if plan.start != "continue":
        tag = StateTag(lineage=plan.lineage, step=step, generation=plan.generation)
        context.holdings.settle(plan.needs(worker_id), tag)
    if groups.world is None:
        groups.close()
        return None
    index = plan.placement.workers.index(worker_id)
    freeze_point = case.freeze_point_at(step) if step else 0
    return Generation(context, plan, index, groups, freeze_point, lambda name: None)


def train_step(generation: Generation, case: Case, step: int, run: Run, spoiled: bool = False) -> None:
    """Freeze where the case says so, compute, vote, commit; refuse where the loss is `spoiled`."""
    context = generation.context
    if generation.freeze_point != case.freeze_point_at(step):
        generation.freeze_to(case.freeze_point_at(step))
    gradients = generation.compute(step)
    losses = dict.fromkeys(gradients.losses, math.nan) if spoiled else gradients.losses
    ballot = Ballot(gradients.piece_squares, losses, kept=generation.kept)
    result = hold_vote(generation.world, ballot, context.pieces, generation.num_microbatches)
    training = context.job.training
    rate = learning_rate(training.optimizer, training.schedule, step, case.steps)
    tag = StateTag(lineage=generation.plan.lineage, step=step, generation=generation.plan.generation)
    run.covered[step] = result.covered
    if generation.plan.buddies and not generation.placement.divides:
        run.prepared[step] = {unit: digest_of_gradient(generation, unit) for unit in units_needed(generation)}
    if result.finite:
        generation.commit(gradients, rate, result.gradient_norm, tag)
    else:
        generation.refuse(gradients, tag)
    run.losses[step], run.gradient_norms[step] = result.loss, result.gradient_norm
    run.unit_norms[step] = tuple(math.sqrt(square) for square in result.unit_squares)


def note_copies(generation: Generation, run: Run, moment: str) -> None:
    """Add digests of the pieces that this member owns and keeps to `run`, where the plan has buddies."""
    context, plan = generation.context, generation.plan
    table, units = context.pieces, context.cut.units
    if plan.buddies:
        run.copies[moment] = {
            piece: unit_digest(export_piece(table, piece, units[table.unit_of(piece)], context.moments)).hex()
            for piece in plan.needs(generation.worker_id)
        }


def units_needed(generation: Generation) -> list[int]:
    """Return the units that this member owns or keeps."""
    return generation.plan.pieces.units_of(generation.plan.needs(generation.worker_id))


def digest_of_gradient(generation: Generation, unit: int) -> str:
    """Return the digests of the gradients of a unit's parameters, "" for parameters without one."""
    parameters = generation.context.cut.units[unit].parameters()
    return "".join(digest_of(parameter.grad) if parameter.grad is not None else "" for parameter in parameters)


def take_checkpoint(saving: Saving, generation: Generation, plan: Plan, case: Case, step: int) -> str:
    """Write this member's share, by the worker's own code. Returns the folder, relative to the root."""
    index = plan.placement.global_ranks[generation.worker_id]
    state = RunState(step=step, accepted_steps=step, freeze_point=case.freeze_point_at(step))
    folder = saving.checkpoint(Entered(plan, index, generation, None), state, before_freeze=False)
    return str(folder.relative_to(saving.root))


def describe(generation: Generation, run: Run, score: bool) -> None:
    """Add digests of everything that this member holds to `run`."""
    context = generation.context
    (run.sent, run.received), run.resident = context.traffic.so_far(), dict(resident_bytes(generation))
    names = {id(tensor): name for name, tensor in context.cut.model.named_parameters(remove_duplicate=False)}
    generation.complete_weights()
    gathers, by_tile = generation.placement.gathers_at_use, generation.placement.divides_tiles
    for unit, state in own_states(generation).items():
        held = run.units[unit] = dict[str, str]()
        state = still_weights_of(context.cut.units[unit]) | state
        if gathers and unit >= generation.freeze_point:
            note_storages(context.cut.units[unit], run)
            generation.pipeline.gathering.use(unit)
        for name, parameter in context.cut.units[unit].named_parameters():
            weight = state.get(f"weight/{name}", parameter)
            if by_tile and weight.shape != parameter.shape:
                assert unit >= generation.freeze_point, f"{name} is computed whole"
                check_tiles(generation, unit, name, weight)
            else:
                assert torch.equal(weight.cpu(), parameter.cpu()), f"{name} is computed with as it is owned"
            held[names[id(parameter)]] = digest_of(weight.detach().clone())  # memory that numpy has seen cannot be freed
            for key in [key for key in state if key.endswith(f"/{name}") and not key.startswith("weight/")]:
                held[f"{names[id(parameter)]}|{key.partition('/')[0]}"] = digest_of(state[key])
    if gathers:
        generation.pipeline.gathering.free()
    run.moment_bytes = sum(tensor.nbytes for state in context.moments.values() for tensor in state.values())
    run.digest = world_digest(generation)
    if score and "start_positions" not in context.data.guard.collate([0], [0]):
        rows, _ = evaluate(generation, context.data.guard, 0)
        run.guard = digest_of(rows)


def check_tiles(generation: Generation, unit: int, name: str, weight: torch.Tensor) -> None:
    """Assert that this member computes with its tiles of a weight, and has no others in its module."""
    module, group = generation.context.cut.units[unit], generation.groups.tensor
    parameter, layer = module.get_parameter(name), layer_of(module, name)
    assert group is not None and layer is not None
    own, whole = layer.kept.box, layer.kept.grid.all
    assert len(own.numbers) * group.size == len(whole.numbers)
    assert parameter.shape == layer.cut.shape_with(weight, whole, own)
    found = layer.cut.put_together(weight, whole, own, {tile: layer.cut.view(weight, whole, tile) for tile in own.numbers})
    assert torch.equal(found.cpu(), parameter.cpu()), f"{name} is computed with as it is owned"


def note_storages(unit: torch.nn.Module, run: Run) -> None:
    """Add up the bytes that the module of a unit holds which is gathered at each use."""
    run.module_bytes += sum(tensor.untyped_storage().nbytes() for tensor in weight_tensors(unit).values())


def digest_of(tensor: torch.Tensor) -> str:
    """Return the SHA-256 of type, shape and bytes."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode() + flat.numpy().tobytes()).hexdigest()
