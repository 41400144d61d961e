"""The choice of a plan's backend for activations and gradients: NCCL where each participant has its own GPU, else gloo. Pure."""

from collections.abc import Sequence
from typing import Literal

from frostline_contract.device import DeviceFacts
from frostline_contract.plan import GLOO, NCCL, Backend


def choose_backend(wanted: Literal["auto", "gloo", "nccl"], devices: Sequence[DeviceFacts | None]) -> tuple[Backend, str]:
    """Return the plan's backend, and the reason in words.

    NCCL refuses two ranks on one device, and ranks with different NCCL versions cannot communicate; both cases fall back to gloo
    without an error.

    Args:
        wanted: the job's `placement.backend`; any value but auto is taken as it is.
        devices: the devices of the plan's participants; None for a participant that has reported none.
    """
    if wanted != "auto":
        return wanted, f"placement.backend is {wanted}"
    known = [device for device in devices if device is not None]
    uuids = [device.uuid for device in known]
    if len(known) < len(devices) or not all(uuids):
        return GLOO, f"{len(devices) - sum(map(bool, uuids))} of {len(devices)} participants have no GPU"
    if len(set(uuids)) < len(uuids):
        shared = min(uuid for uuid in uuids if uuids.count(uuid) > 1)
        return GLOO, f"{uuids.count(shared)} participants share the GPU {shared}"
    if len(versions := sorted({device.nccl for device in known})) > 1:
        return GLOO, f"participants have NCCL {' and '.join(versions)}"
    return NCCL, "each participant has a GPU of its own"
