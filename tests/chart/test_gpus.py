"""How trainer pods come to their GPUs, and to the network between them."""

import json

from tests.chart.rendering import environment, render
from tests.chart.test_toggles import CONTROLLER, TRAINER, changed


def test_gpus() -> None:
    settings = ("placement.workers_per_pod=8", "kubernetes.trainer.gpus=8", "placement.workers=16")
    found = render(*settings)
    assert found.container(*TRAINER)["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert environment(found.container(*TRAINER))["FROSTLINE_WORKERS_PER_POD"] == "8"
    keys = [one["key"] for one in found.pod(*TRAINER)["tolerations"]]
    assert "nvidia.com/gpu" in keys
    assert "nvidia.com/gpu" not in json.dumps([render().pod(*TRAINER), found.pod(*CONTROLLER)])


def test_gpus_by_a_claim_for_each_pod() -> None:
    settings = (
        "placement.workers_per_pod=8",
        "kubernetes.trainer.gpus=8",
        'kubernetes.trainer.gpu_device_class="gpu.nvidia.com"',
    )
    found = render(*settings)
    (request,) = found.get("ResourceClaimTemplate", "digits-trainer")["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 8}
    (claim,) = found.pod(*TRAINER)["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == "digits-trainer"
    assert found.container(*TRAINER)["resources"]["claims"] == [{"name": claim["name"]}]
    assert "limits" not in found.container(*TRAINER)["resources"]
    assert changed(*settings)[0] == {"ResourceClaimTemplate digits-trainer"}
    assert "resourceClaims" not in render(*settings[:2]).pod(*TRAINER), "without a class the device plugin gives them"


def test_capabilities_for_rdma() -> None:
    found = render('kubernetes.trainer.capabilities.add=["IPC_LOCK"]')
    assert found.container(*TRAINER)["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert render().container(*TRAINER)["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "IPC_LOCK" not in json.dumps([found.pod(*CONTROLLER), found.pod("StatefulSet", "digits-redis")])


def test_nccl_is_told_of_the_network() -> None:
    given = {"socket_interface": "^docker0,lo", "hca": "mlx5_0:1", "gid_index": 0, "debug": "WARN"}
    reported = environment(render(f"kubernetes.trainer.nccl={json.dumps(given)}").container(*TRAINER))
    wanted = {"NCCL_SOCKET_IFNAME": "^docker0,lo", "NCCL_IB_HCA": "mlx5_0:1", "NCCL_IB_GID_INDEX": "0", "NCCL_DEBUG": "WARN"}
    assert {name: reported[name] for name in wanted} == wanted
    assert not [name for name in environment(render().container(*TRAINER)) if name.startswith("NCCL")]


def test_shared_memory_has_its_size() -> None:
    volumes = {one["name"]: one for one in render('kubernetes.trainer.shared_memory="16Gi"').pod(*TRAINER)["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    mounts = {one["name"]: one["mountPath"] for one in render().container(*TRAINER)["volumeMounts"]}
    assert mounts["shm"] == "/dev/shm"
