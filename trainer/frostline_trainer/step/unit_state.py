"""The state of a unit and of its pieces, each as one flat dict of tensors: what moves, lies in checkpoints and is digested.

Keys: "weight/<name>" for parameters and persistent buffers, "<moment>/<parameter name>" for optimizer state. Weights that never
learn, those below adapters, are no state: every worker has read them where the model comes from, and has shown by the digest of
the initial weights that they are the run's.

A piece has the parts of the unit's weights that `step.parts` says, and of each the moments; a parameter's step count goes with
every piece that has a part of the parameter. With one piece a unit a piece's state is the unit's, in the same shapes; else each
tensor is flat.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from frostline_contract.pieces import Pieces
from frostline_trainer.families.base import still_names
from frostline_trainer.step.parts import Moments, moments_of, parts_of, weights_of

UnitState = dict[str, torch.Tensor]
WEIGHT = "weight/"
STEP = "step"
"""The moment that counts a parameter's updates: one number a parameter."""
HOST = torch.device("cpu")


def still_weights_of(unit: nn.Module) -> UnitState:
    """The weights that never learn, as parts of a state have their names."""
    still = still_names(unit)
    return {WEIGHT + name: tensor.detach() for name, tensor in unit.state_dict().items() if name in still}


def export_unit(index: int, unit: nn.Module, moments: Moments) -> UnitState:
    """The state of a unit that is one piece, by reference: nothing is copied."""
    state = {WEIGHT + name: tensor for name, tensor in weights_of(unit).items()}
    for name, _ in unit.named_parameters():
        for moment, tensor in moments.get((index, name), {}).items():
            if isinstance(tensor, torch.Tensor):
                state[f"{moment}/{name}"] = tensor
    return state


def import_unit(index: int, unit: nn.Module, moments: Moments, state: Mapping[str, torch.Tensor]) -> None:
    """Put the state of a unit that is one piece in place: weights into the unit, moments as new tensors.

    Raises ValueError where names, shapes or types differ: a weight that is cast on its way has other bits.
    """
    _take_memory(unit)
    unit.load_state_dict(_check_weights(f"unit {index}", weights_of(unit), state), strict=False)
    device = next(unit.parameters()).device
    for name, _ in unit.named_parameters():
        moments.pop((index, name), None)
    for key, tensor in state.items():
        moment, _, name = key.partition("/")
        if not key.startswith(WEIGHT):
            moments.setdefault((index, name), {})[moment] = tensor.to(_home_of(moment, device), copy=True)


def reset_unit(unit: nn.Module, fresh: nn.Module) -> None:
    """All weights of a unit as they are in a fresh one of the same model, those that never learn too. Moments are not touched."""
    _take_memory(unit)
    unit.load_state_dict(fresh.state_dict())


def place_unit(pieces: Iterable[int], unit: nn.Module, moments: Moments, device: torch.device) -> None:
    """Weights and moments of a unit to `device`: a unit that is run lies on the run's device, any other in host memory.

    pieces: the unit's.
    """
    if all(tensor.device == device for tensor in unit.state_dict().values()):
        return
    unit.to(device)
    for state in moments_of(moments, pieces):
        for moment, tensor in state.items():
            if isinstance(tensor, torch.Tensor):
                state[moment] = tensor.to(_home_of(moment, device))


def release_unit(unit: nn.Module) -> None:
    """Give the memory of a unit's weights back. Names, shapes and types stay; the next state put in place brings values.

    Weights that never learn are no state, so nobody would bring them: they stay.
    """
    for tensor in _brought_by_state(unit):
        tensor.grad = None
        tensor.data = torch.empty((), dtype=tensor.dtype).expand(tensor.shape)


def _take_memory(unit: nn.Module) -> None:
    """Of a released unit: host memory with any content."""
    for tensor in _brought_by_state(unit):
        if tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size():
            tensor.data = torch.empty(tensor.shape, dtype=tensor.dtype)


def _brought_by_state(unit: nn.Module) -> list[torch.Tensor]:
    """The unit's own tensors that a state holds."""
    still = still_names(unit)
    return [tensor for name, tensor in unit.state_dict(keep_vars=True).items() if name not in still]


@contextmanager
def lent_to(device: torch.device, pieces: Iterable[int], unit: nn.Module, moments: Moments) -> Iterator[None]:
    """A unit is on `device` inside, and afterwards where it was. pieces: the unit's."""
    home = next(unit.parameters()).device
    place_unit(pieces, unit, moments, device)
    try:
        yield
    finally:
        place_unit(pieces, unit, moments, home)


def _home_of(moment: str, device: torch.device) -> torch.device:
    """Where a moment lies: the step count stays in host memory, as torch's optimizers keep it."""
    return HOST if moment == STEP else device


def _check_weights(whose: str, own: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights in a state, by name. Raises ValueError where names, shapes or types are not those of `own`."""
    given = {key.removeprefix(WEIGHT): tensor for key, tensor in state.items() if key.startswith(WEIGHT)}
    if difference := _difference(own, given):
        raise ValueError(f"{whose}: state does not fit the model: {difference}")
    return given


def _difference(own: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> str:
    """In what names, shapes or types of two sets of weights differ; empty where they do not."""
    missing, unknown = sorted(own.keys() - given.keys()), sorted(given.keys() - own.keys())
    if missing or unknown:
        return f"{len(missing)} missing {missing[:3]}, {len(unknown)} unknown {unknown[:3]}"
    for name, tensor in own.items():
        found = given[name]
        if (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
            return f"{name} is {tuple(tensor.shape)} {tensor.dtype}; the state has {tuple(found.shape)} {found.dtype}"
    return ""


def unit_digest(state: UnitState, skip: frozenset[str] = frozenset()) -> bytes:
    """SHA-256 over name and bytes of weights and moments, by name. `skip`: names that count elsewhere (a tied matrix)."""
    digest = hashlib.sha256()
    for key in sorted(state):
        if key.partition("/")[2] in skip:
            continue
        tensor = state[key].detach().cpu().contiguous()
        digest.update(f"{key}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy())
    return digest.digest()


def run_digest(unit_digests: list[bytes]) -> str:
    """The run's digest: SHA-256 of the units' SHA-256s, in unit order (docs/protocols.md 1.10)."""
    return hashlib.sha256(b"".join(unit_digests)).hexdigest()


# ---- pieces


def export_piece(table: Pieces, piece: int, unit: nn.Module, moments: Moments) -> UnitState:
    """The piece's state by reference: of contiguous tensors nothing is copied."""
    index = table.unit_of(piece)
    if table.per_unit == 1:
        return export_unit(index, unit, moments)
    weights, state = weights_of(unit), UnitState()
    for part in parts_of(table, piece, unit):
        state[WEIGHT + part.name] = weights[part.name].reshape(-1)[part.low : part.high]
        state |= {f"{moment}/{part.name}": tensor for moment, tensor in moments.get((piece, part.name), {}).items()}
    return state


@torch.no_grad()
def import_piece(table: Pieces, piece: int, unit: nn.Module, moments: Moments, state: Mapping[str, torch.Tensor]) -> None:
    """Put a piece's state in place; what the unit's other pieces have stays as it is.

    Raises ValueError where names, shapes or types differ: a weight that is cast on its way has other bits.
    """
    index = table.unit_of(piece)
    if table.per_unit == 1:
        import_unit(index, unit, moments, state)
        return
    _take_memory(unit)
    parts, weights = parts_of(table, piece, unit), weights_of(unit)
    own = {part.name: weights[part.name].view(-1)[part.low : part.high] for part in parts}
    given = _check_weights(f"piece {piece} of unit {index}", own, state)
    for name, tensor in given.items():
        own[name].copy_(tensor)
    device = next(unit.parameters()).device
    for part in parts:
        moments.pop((piece, part.name), None)
    for key, tensor in state.items():
        moment, _, name = key.partition("/")
        if not key.startswith(WEIGHT):
            moments.setdefault((piece, name), {})[moment] = tensor.to(_home_of(moment, device), copy=True)


def digest_of_pieces(table: Pieces, digests: Sequence[bytes]) -> str:
    """The run's digest (docs/protocols.md 1.10). digests: SHA-256 of every piece, in order.

    A unit's digest is that of its piece, or over those of its pieces where it has several.
    """
    units = [[digests[piece] for piece in table.of_unit(unit)] for unit in range(table.num_units)]
    return run_digest([one[0] if len(one) == 1 else hashlib.sha256(b"".join(one)).digest() for one in units])
