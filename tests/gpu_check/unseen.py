"""The limits of a check: aspects that it cannot observe on a machine, with the reasons."""

from tests.gpu_check.machine import Machine

ALWAYS = {
    "several nodes": "one machine was checked: InfiniBand, RoCE, RDMA registration, sums over machines and the failure of a "
    "network's peer need more",
    "GPUs that fail or hang": "ECC errors, GPUs off the bus and broken NVLinks cannot be ordered; planned faults stand for them",
    "too little memory": "nothing here fills a GPU: what follows an allocation that fails is seen with torch's own error on CPUs",
    "clouds and device plugins": "no pod ran here: capabilities, /dev/shm, claims and the device plugin are the chart's",
    "long runs": "a part takes minutes: leaks and rare races need days",
}


def unseen(device: str, machine: Machine) -> dict[str, str]:
    """Return {aspect: reason} for a check on `device` ("cuda" or "cpu")."""
    found = dict(ALWAYS)
    if device != "cuda":
        return {"every GPU, CUDA and NCCL": "this was a rehearsal on a CPU", **found}
    names = {gpu["name"] for gpu in machine.gpus}
    if len(machine.gpus) < 2:
        found["NVLink, PCIe peers and GPUs of their own"] = "one GPU: several ranks shared it, over the loopback network"
        found["stragglers and times of several GPUs"] = "processes that share a GPU take turns on it: times are upper bounds"
    if len(names) < 2:
        found["mixed pools"] = f"only {', '.join(sorted(names))}: whether the probe tells other models apart was not asked"
    if not any("MIG" in gpu["name"] or str(gpu["uuid"]).startswith("MIG-") for gpu in machine.gpus):
        found["MIG instances"] = "no GPU here is cut into instances"
    return found
