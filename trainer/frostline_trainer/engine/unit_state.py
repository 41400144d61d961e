"""A unit's whole state as one flat dict of tensors. What moves, lies in checkpoints and is digested are its pieces
(engine/piece_state.py), of which a unit has one where the job cuts none.

Keys: "weight/<name>" for parameters and persistent buffers, "<moment>/<parameter name>" for optimizer state.
"""

import hashlib
from collections.abc import Mapping

import torch
from safetensors.torch import load, save
from torch import nn

from frostline_trainer.engine.optimizer import Moments

UnitState = dict[str, torch.Tensor]
WEIGHT = "weight/"
STEP = "step"
"""The moment that counts a parameter's updates: one number a parameter."""
HOST = torch.device("cpu")


def export_unit(index: int, unit: nn.Module, moments: Moments) -> UnitState:
    """The state by reference: nothing is copied."""
    state = {WEIGHT + name: tensor.detach() for name, tensor in unit.state_dict(keep_vars=False).items()}
    for name, _ in unit.named_parameters():
        for moment, tensor in moments.get((index, name), {}).items():
            if isinstance(tensor, torch.Tensor):
                state[f"{moment}/{name}"] = tensor
    return state


def import_unit(index: int, unit: nn.Module, moments: Moments, state: Mapping[str, torch.Tensor]) -> None:
    """Put a state in place: weights into the unit, moments as new tensors.

    Raises ValueError where names, shapes or types differ: a weight that is cast on its way has other bits.
    """
    unit.load_state_dict(check_weights(f"unit {index}", unit.state_dict(), state))
    device = next(unit.parameters()).device
    for name, _ in unit.named_parameters():
        moments.pop((index, name), None)
    for key, tensor in state.items():
        moment, _, name = key.partition("/")
        if not key.startswith(WEIGHT):
            moments.setdefault((index, name), {})[moment] = tensor.to(home_of(moment, device), copy=True)


def place_unit(index: int, unit: nn.Module, moments: Moments, device: torch.device) -> None:
    """Weights and moments of a unit to `device`: a unit that is run lies on the run's device, any other in host memory."""
    if all(tensor.device == device for tensor in unit.state_dict().values()):
        return
    unit.to(device)
    for name, _ in unit.named_parameters():
        state = moments.get((index, name), {})
        for moment, tensor in state.items():
            if isinstance(tensor, torch.Tensor):
                state[moment] = tensor.to(home_of(moment, device))


def home_of(moment: str, device: torch.device) -> torch.device:
    """Where a moment lies: the step count stays in host memory, as torch's optimizers keep it."""
    return HOST if moment == STEP else device


def check_weights(whose: str, own: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
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


def pack(state: UnitState) -> bytes:
    """Typed bytes (safetensors): nothing that came over a network is ever unpickled."""
    return save({key: tensor.cpu().contiguous() for key, tensor in state.items()})


def unpack(payload: bytes) -> UnitState:
    return load(payload)


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
