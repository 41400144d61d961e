"""A plain PyTorch training loop over an unsplit Hugging Face model, which every run of the system must equal bit for bit.

It uses no code of the trainer and none of the contracts' arithmetic: micro-batches, summation tree, clipping, seeds and learning
rate are written again here from docs/protocols.md 1. The loop itself is checked against the gradient of the whole batch at once
(`tests.oracle.whole_batch`).
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from tests.oracle.anatomy import IGNORED, Anatomy, anatomy_of
from tests.oracle.cells import CellLoop
from tests.oracle.norms import norm_of
from tests.oracle.ranges import layouts_of, ranges_of
from tests.oracle.tiles import InTiles


@dataclass(frozen=True)
class Recipe:
    """What is computed. freeze_points: first step under it -> index of the first trainable unit. total_steps: of the
    schedule; 0 takes the number of batches. reduction_leaves: a power of two, at most the number of micro-batches.
    untie_on_freeze: the head's matrix starts equal to the embedding's and learns on its own from the first step.
    mixed_bfloat16: forwards under torch's autocast, and each unit's output but the head's rounded to bfloat16. cells: bounds of
    token cells, () for whole sequences. inner_tiles, hidden_tiles: of the blocks' inner widths and hidden width. state_ranges:
    ranges of each unit's state, whose gradients have a norm each.
    """

    micro_batch_size: int
    reduction_leaves: int = 8
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    momentum: float = 0.9
    schedule: str = "cosine"
    warmup_fraction: float = 0.06
    final_fraction: float = 0.0
    clip_norm: float | None = 1.0
    total_steps: int = 0
    seed: int = 0
    freeze_points: dict[int, int] = field(default_factory=dict)
    untie_on_freeze: bool = False
    mixed_bfloat16: bool = False
    cells: tuple[int, ...] = ()
    inner_tiles: int = 1
    vocabulary_tiles: bool = False
    row_tiles: int = 1
    hidden_tiles: int = 1
    state_ranges: int = 1


@dataclass
class Trace:
    """What a run leaves. losses, learning_rates, gradient_norms: one a step; unit_gradient_norms: one tuple a step, L2,
    before clipping, 0.0 where frozen. weights: per unit {parameter name: tensor}. moments: the same, {name: {slot: tensor}},
    empty for parameters that were never trained. Tied matrices appear in unit 0 and, as their copy, in the head.
    """

    losses: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    unit_gradient_norms: list[tuple[float, ...]] = field(default_factory=list)
    weights: list[dict[str, Tensor]] = field(default_factory=list)
    moments: list[dict[str, dict[str, Tensor]]] = field(default_factory=list)


def run_plain_loop(model: PreTrainedModel, batches: Sequence[dict[str, Tensor]], recipe: Recipe) -> Trace:
    """Train the model on the batches in one loop. A parameter that requires no gradient at the start never learns."""
    still = frozenset(id(parameter) for parameter in model.parameters() if not parameter.requires_grad)
    anatomy = anatomy_of(model)
    if recipe.untie_on_freeze:
        anatomy.tied = None
    position = {"step": 0, "micro_batch": 0}
    hooks = seed_dropout(anatomy, recipe.seed, position)
    if recipe.mixed_bfloat16:
        hooks += round_outputs(anatomy)
    tiles = InTiles.of(anatomy, recipe, seed_of)
    optimizer = make_optimizer(anatomy, recipe)
    total_steps = recipe.total_steps or len(batches)
    trace = Trace()
    freeze_point = 0
    try:
        for step, batch in enumerate(batches, 1):
            freeze_point = recipe.freeze_points.get(step, freeze_point)
            freeze(anatomy, freeze_point, still)
            position["step"] = step
            loss = accumulate(anatomy, batch, recipe, position, freeze_point)
            rate = scheduled_rate(recipe, step, total_steps)
            unit_norms, norm = clip(anatomy, recipe.clip_norm, recipe.state_ranges, tiles, still)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            trace.losses.append(loss)
            trace.learning_rates.append(rate)
            trace.gradient_norms.append(norm)
            trace.unit_gradient_norms.append(unit_norms)
    finally:
        for hook in (*hooks, *([tiles] if tiles else [])):
            hook.remove()
    collect(anatomy, optimizer, trace)
    return trace


def seed_of(*name: int | str) -> int:
    """The first 8 bytes of the SHA-256 of the tuple's typed text, without the lowest bit (docs/protocols.md 1.4)."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in name)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_dropout(anatomy: Anatomy, seed: int, position: dict[str, int]) -> list[RemovableHandle]:
    """Before each unit's forward, seed the generator by (seed, step, micro-batch, unit), and the cell where `position` names one.
    Returns the hooks' handles."""

    def hook(unit: int) -> Callable[..., None]:
        def before(*_: object) -> None:
            cell = (position["cell"],) if "cell" in position else ()
            torch.manual_seed(seed_of("dropout", seed, position["step"], position["micro_batch"], unit, *cell))

        return before

    return [modules[0].register_forward_pre_hook(hook(unit)) for unit, modules in enumerate(anatomy.units)]


def round_outputs(anatomy: Anatomy) -> list[RemovableHandle]:
    """After each unit but the head, the last of its modules gives its hidden states in bfloat16. Returns the hooks' handles."""

    def after(module: nn.Module, arguments: object, output: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        if isinstance(output, tuple):
            return (output[0].to(torch.bfloat16), *output[1:])
        return output.to(torch.bfloat16)

    return [modules[-1].register_forward_hook(after) for modules in anatomy.units[:-1]]


def make_optimizer(anatomy: Anatomy, recipe: Recipe) -> torch.optim.Optimizer:
    """One optimizer over all parameters in unit order; a frozen parameter has no gradient, so its moments and its step stay."""
    parameters = [parameter for unit in range(len(anatomy.units)) for parameter in anatomy.parameters(unit)]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.learning_rate, momentum=recipe.momentum, foreach=True)
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=recipe.betas, eps=recipe.epsilon, fused=True)


def freeze(anatomy: Anatomy, freeze_point: int, still: frozenset[int] = frozenset()) -> None:
    """Units below `freeze_point` get no gradient and no dropout; a matrix shared with unit 0 stops in the head too.

    still: ids of parameters that never learn, in no unit.
    """
    for unit, modules in enumerate(anatomy.units):
        for module in modules:
            module.train(unit >= freeze_point)
        for parameter in anatomy.parameters(unit):
            parameter.requires_grad_(unit >= freeze_point and id(parameter) not in still)
    if anatomy.tied and freeze_point > 0:
        anatomy.tied[1].requires_grad_(False)


def accumulate(
    anatomy: Anatomy, batch: dict[str, Tensor], recipe: Recipe, position: dict[str, int], freeze_point: int = 0
) -> float:
    """Leave the step's summed gradient in every trainable parameter's .grad; returns the step's loss.

    Within a leaf gradients are added in order, leaves over the fixed binary tree, each parameter on its own.
    """
    size = recipe.micro_batch_size
    rows = len(next(iter(batch.values())))
    if rows % size:
        raise ValueError(f"{rows} rows are no multiple of micro_batch_size {size}; pad the batch with ignored labels")
    num_microbatches, leaves = rows // size, recipe.reduction_leaves
    if leaves & (leaves - 1) or num_microbatches < leaves:
        raise ValueError(f"reduction_leaves {leaves} must be a power of two, at most the {num_microbatches} micro-batches")
    counts = valid_counts(anatomy, batch)
    trainable = [p for unit in range(len(anatomy.units)) for p in anatomy.parameters(unit) if p.requires_grad]
    sums: list[list[Tensor]] = []
    losses: list[float] = []
    for leaf in range(leaves):
        # Sums start from +0.0, so that a gradient of -0.0 has the same sign on its own and beside a padding micro-batch.
        total = [torch.zeros_like(parameter) for parameter in trainable]
        for micro_batch in range(leaf * num_microbatches // leaves, (leaf + 1) * num_microbatches // leaves):
            position["micro_batch"] = micro_batch
            rows_of_it = {key: value[micro_batch * size : (micro_batch + 1) * size] for key, value in batch.items()}
            if recipe.cells:
                loop = CellLoop(anatomy, rows_of_it, recipe.cells, freeze_point, recipe.mixed_bfloat16, position)
                addends, loss = loop.addends(trainable, counts[0])
            else:
                whole = loss_of(anatomy, rows_of_it, counts, recipe.mixed_bfloat16)
                addends = [list(torch.autograd.grad(whole, trainable, allow_unused=True))]
                loss = whole.detach().double().item()
            for gradients in addends:
                filled = [torch.zeros_like(p) if g is None else g for p, g in zip(trainable, gradients, strict=True)]
                total = [a + b for a, b in zip(total, filled, strict=True)]
            losses.append(loss)
        sums.append(total)
    for index, parameter in enumerate(trainable):
        parameter.grad = tree_sum([leaf[index] for leaf in sums])
    join_tied(anatomy)
    step_loss = 0.0
    for value in losses:
        step_loss += value
    return step_loss


def tree_sum(leaves: list[Tensor]) -> Tensor:
    """((l0 + l1) + (l2 + l3)) + ... over a power of two of leaves."""
    while len(leaves) > 1:
        leaves = [leaves[i] + leaves[i + 1] for i in range(0, len(leaves), 2)]
    return leaves[0]


def join_tied(anatomy: Anatomy) -> None:
    """Each use of a tied matrix has its own tree; then embedding + head, and both copies get the same bits."""
    if anatomy.tied is None or anatomy.tied[0].grad is None or anatomy.tied[1].grad is None:
        return
    embedding, head = anatomy.tied
    embedding.grad = embedding.grad + head.grad
    head.grad = embedding.grad.clone()


def valid_counts(anatomy: Anatomy, batch: dict[str, Tensor]) -> tuple[float, ...]:
    """Valid items of the whole batch, per loss term, from its labels."""
    if anatomy.regression:
        return (float(batch["label_weights"].double().sum()),)
    return tuple(float((batch[key] != IGNORED).sum()) for key in anatomy.loss_keys)


def loss_of(anatomy: Anatomy, rows: dict[str, Tensor], counts: tuple[float, ...], mixed_bfloat16: bool = False) -> Tensor:
    """Sum over valid items / global count, averaged over the terms. Half-precision logits are scored in float32."""
    terms = []
    with torch.autocast(next(iter(rows.values())).device.type, torch.bfloat16, enabled=mixed_bfloat16):
        outputs = anatomy.forward(rows)
    for logits, key, count in zip(outputs, anatomy.loss_keys, counts, strict=True):
        scores = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
        if anatomy.regression:
            weights, labels = rows["label_weights"].to(scores.dtype), rows[key].to(scores.dtype)
            terms.append((weights * (scores.squeeze(-1) - labels).square()).sum() / max(count, 1.0))
        else:
            total = anatomy.score(scores, rows[key].flatten())
            terms.append(total / max(count, 1.0))
    return terms[0] if len(terms) == 1 else sum(term / len(terms) for term in terms)


def clip(
    anatomy: Anatomy,
    clip_norm: float | None,
    state_ranges: int = 1,
    tiles: InTiles | None = None,
    still: frozenset[int] = frozenset(),
) -> tuple[tuple[float, ...], float]:
    """Scale all gradients by min(1, c / (norm + 1e-6)). Returns each unit's L2 norm and the total, both before scaling.

    Each tensor's norm is taken in float64 and squared; squares are added in parameter order, then piece by piece, then in unit
    order. Of a unit in tiles the uncut tensors are one layout, and each tile's part of the others is another; without tiles there
    is one layout. A layout in several ranges is a piece for each range, with the part of each tensor that lies in it. What never
    learns (`still`, ids of parameters) is no state, so that no piece has any of it.
    """
    squares = []
    for unit in range(len(anatomy.units)):
        total = 0.0
        state = [parameter for parameter in anatomy.parameters(unit) if id(parameter) not in still]
        for layout in layouts_of(state, tiles):
            for inside in ranges_of([of(parameter).numel() for parameter, of in layout], state_ranges):
                square = 0.0
                for (parameter, of), (low, high) in zip(layout, inside, strict=True):
                    # A tied matrix counts once, in unit 0.
                    copy_of_tied = anatomy.tied is not None and parameter is anatomy.tied[1]
                    if parameter.grad is not None and not copy_of_tied and low < high:
                        norm = norm_of(of(parameter.grad).flatten()[low:high])
                        square += norm * norm
                total += square
        squares.append(total)
    total = 0.0
    for value in squares:
        total += value
    norm = math.sqrt(total)
    if clip_norm is not None:
        factor = min(1.0, clip_norm / (norm + 1e-6))
        for parameter in anatomy.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
    return tuple(math.sqrt(square) for square in squares), norm


def scheduled_rate(recipe: Recipe, accepted_step: int, total_steps: int) -> float:
    """Linear warm-up to the peak, then constant, linear or cosine decay to final_fraction of it."""
    warm = round(recipe.warmup_fraction * total_steps)
    if accepted_step <= warm:
        return recipe.learning_rate * accepted_step / warm
    if recipe.schedule == "constant":
        return recipe.learning_rate
    done = min(1.0, (accepted_step - warm) / max(1, total_steps - warm))
    left = 1.0 - done if recipe.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return recipe.learning_rate * (recipe.final_fraction + (1.0 - recipe.final_fraction) * left)


def collect(anatomy: Anatomy, optimizer: torch.optim.Optimizer, trace: Trace) -> None:
    """Copy final weights and optimizer state, by unit and Hugging Face name."""
    for unit in range(len(anatomy.units)):
        named: dict[str, nn.Parameter] = {anatomy.name(p): p for p in anatomy.parameters(unit)}
        trace.weights.append({name: p.detach().clone() for name, p in named.items()})
        slots = {name: optimizer.state.get(p, {}) for name, p in named.items()}
        trace.moments.append(
            {name: {slot: v.clone() for slot, v in state.items() if isinstance(v, Tensor)} for name, state in slots.items()}
        )
