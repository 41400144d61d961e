"""Values that cannot be are refused at `helm template`, with a text that names field and value and says what to do.

`model`: whether the job model refuses it by itself too, which it must wherever the mistake is the job's own.
"""

import json
from pathlib import Path

import pytest

from frostline_contract.job import JobError, apply_overrides, parse_job
from frostline_contract.job.load import read_yaml
from tests.chart.rendering import DIGITS, HELMS, Refused, render

CASES = [
    # Unknown keys and wrong types: the schema.
    ("unknown section", ["trainig={}"], ["trainig"], True),
    ("unknown key", ["training.batchsize=3"], ["/training", "batchsize"], True),
    ("unknown key of the cluster", ["kubernetes.trainer.replicas=3"], ["/kubernetes/trainer", "replicas"], True),
    ("wrong type", ['training.batch_size="many"'], ["/training/batch_size", "string", "integer"], True),
    ("a fraction where a count belongs", ["placement.workers=2.5"], ["/placement/workers", "integer"], True),
    ("out of range", ["training.optimizer.learning_rate=0"], ["/training/optimizer/learning_rate", "0"], True),
    ("no such task", ['task.kind="dancing"'], ["/task/kind", "image_classification"], True),
    ("null where a value must be", ["placement.workers=null"], ["/placement", "workers"], True),
    ("a section taken away", ["kubernetes=null"], ["kubernetes"], True),
    ("no such pull policy", ['kubernetes.trainer.image.pull_policy="Often"'], ["pull_policy", "Always"], True),
    ("no quantity", ['kubernetes.trainer.requests.memory="4 GB"'], ["/kubernetes/trainer/requests/memory"], True),
    ("a negative quantity", ["kubernetes.trainer.requests.cpu=-1"], ["/kubernetes/trainer/requests/cpu"], True),
    ("no size", ['kubernetes.storage.size="big"'], ["/kubernetes/storage/size"], True),
    ("no access mode", ['kubernetes.storage.access_mode="ReadOnlyMany"'], ["access_mode", "ReadWriteMany"], True),
    ("no such taint effect", ['kubernetes.trainer.tolerations=[{"effect":"Never"}]'], ["/kubernetes/trainer/tolerations/0/effect"], True),
    ("hardly any grace", ["kubernetes.trainer.grace_seconds=1"], ["/kubernetes/trainer/grace_seconds", "5"], True),
    ("too many controllers", ["kubernetes.controller_replicas=9"], ["/kubernetes/controller_replicas", "5"], True),
    ("a token that expires at once", ["kubernetes.auth.token_seconds=10"], ["/kubernetes/auth/token_seconds", "600"], True),
    ("no shards", ["cache.shards=0"], ["/cache/shards", "1"], True),
    ("a secret's name", ['kubernetes.auth.tls_secret="My Secret"'], ["/kubernetes/auth/tls_secret"], True),
    ("a volume without a source", ['kubernetes.volumes=[{"name":"a","mount_path":"/a"}]'], ["/kubernetes/volumes/0", "source"], True),
    ("a relative mount path", ['kubernetes.volumes=[{"name":"a","mount_path":"a","source":{}}]'], ["/kubernetes/volumes/0/mount_path"], True),
    ("a seed that Helm would round", [f"seed={2**53 + 2}"], ["/seed"], False),
    # Shapes that cannot be: the chart's own checks.
    ("neither epochs nor steps", ["training.epochs=null"], ["training.epochs is unset and training.steps is unset: give exactly one"], True),
    ("epochs and steps", ["training.steps=5"], ["training.epochs is 30 and training.steps is 5: give exactly one"], True),
    ("leaves no power of two", ["training.reduction_leaves=6"], ["training.reduction_leaves is 6: it must be a power of two"], True),
    ("many leaves, no power of two", ["training.reduction_leaves=1000"], ["is 1000: it must be a power of two; 1024"], True),
    ("batch smaller than a micro-batch", ["training.batch_size=4"], ["training.batch_size is 4", "lower micro_batch_size"], True),
    ("fewer micro-batches than leaves", ["training.batch_size=24"], ["training.reduction_leaves is 8", "are 3 micro-batches"], True),
    ("mixed precision on a CPU", ['training.precision="mixed_bfloat16"', 'training.device="cpu"'], ["training.precision is mixed_bfloat16"], True),
    ("path and hub", ['model.path="/a"', 'model.hub="b"'], ['model.path is "/a" and model.hub is "b": give one of them'], True),
    ("more wanted than there may be", ["placement.min_workers=9"], ["placement.min_workers is 9 and placement.workers is 4"], True),
    ("a shape too large", ["placement.pp_degree=3", "placement.dp_degree=2"], ["is 6 and placement.workers is 4"], True),
    ("more replicas than leaves", ["placement.dp_degree=9", "placement.workers=9"], ["placement.dp_degree is 9", "raise reduction_leaves"], True),
    ("a fault's pod", ['faults=[{"kind":"stop","step":1,"worker":4}]'], ["faults.0.worker is 4: the job's pods are 0 to 3"], True),
    ("a fault of a node", ['faults=[{"kind":"kill_node","step":1}]'], ["faults.0.kind is kill_node", "remove it"], False),
    ("GPUs that nobody uses", ["kubernetes.trainer.gpus=4"], ["kubernetes.trainer.gpus is 4 and placement.workers_per_pod is 1"], False),
    ("GPUs and a CPU", ["kubernetes.trainer.gpus=1", 'training.device="cpu"'], ["gpus is 1 and training.device is cpu"], False),
    ("CUDA without GPUs", ['training.device="cuda"'], ["training.device is cuda and kubernetes.trainer.gpus is 0"], False),
    ("GPUs said twice", ['kubernetes.trainer.limits={"nvidia.com/gpu":2}'], ["limits holds nvidia.com/gpu 2: say it as"], True),
    ("a variable of ours", ['kubernetes.trainer.env={"FROSTLINE_HOST":"x"}'], ["kubernetes.trainer.env.FROSTLINE_HOST"], True),
    ("times of the lease", ["kubernetes.lease.renew_seconds=20"], ["renew_seconds 20 and duration_seconds 15 must rise"], True),
    ("one volume, many nodes", ['kubernetes.storage.access_mode="ReadWriteOnce"'], ["access_mode is ReadWriteOnce", "kubernetes.storage.node"], True),
    ("a domain that nobody reads", ['placement.failure_domain_label="rack"'], ["placement.failure_domain_label is rack"], False),
    ("shards of nothing", ["cache.shards=256", "cache.memory_bytes=1048576"], ["4096 bytes for each of 256 shards"], False),
    ("an address without a port", ['cache.addresses=["redis"]'], ['cache.addresses holds "redis": write host:port'], False),
    ("a checkpoint that dies with its pod", ['checkpoint.uri="/tmp/x"'], ['checkpoint.uri is "/tmp/x"', "leave it out"], False),
    ("an object store", ['checkpoint.uri="s3://bucket/x"'], ['checkpoint.uri is "s3://bucket/x"'], False),
    ("data beside the job file", ['data.path="train"'], ['data.path is "train"', "mount a volume"], False),
    ("a model beside the job file", ['model.path="../bert"'], ['model.path is "../bert"', "mount a volume"], False),
    ("a volume's name twice", ['kubernetes.volumes=[{"name":"a","mount_path":"/a","source":{"emptyDir":{}}},{"name":"a","mount_path":"/b","source":{"emptyDir":{}}}]'], ["name a is there"], True),
    ("a volume's place twice", ['kubernetes.volumes=[{"name":"a","mount_path":"/a","source":{"emptyDir":{}}},{"name":"b","mount_path":"/a","source":{"emptyDir":{}}}]'], ["mount_path /a is there"], True),
    ("two sources", ['kubernetes.volumes=[{"name":"a","mount_path":"/a","source":{"emptyDir":{},"nfs":{}}}]'], ["source has 2 keys"], True),
    ("a place that is taken", ['kubernetes.volumes=[{"name":"a","mount_path":"/frostline/storage/a","source":{"emptyDir":{}}}]'], ["it lies in /frostline"], True),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "words"), [case[1:3] for case in CASES], ids=[case[0] for case in CASES])
def test_refused_with_field_value_and_remedy(settings: list[str], words: list[str]) -> None:
    with pytest.raises(Refused) as caught:
        render(*settings)
    text = str(caught.value)
    assert "nil pointer" not in text
    for part in words:
        assert part in text, text


@pytest.mark.parametrize(
    ("settings", "refused"), [(case[1], case[3]) for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_model_and_the_chart_agree(settings: list[str], refused: bool) -> None:
    raw = apply_overrides(read_yaml(DIGITS.read_text()), [])
    for setting in settings:
        path, _, value = setting.partition("=")
        place = raw
        *parents, last = path.split(".")
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = json.loads(value)
    if not refused:
        assert parse_job(raw).training.batch_size == 64
        return
    with pytest.raises(JobError):
        parse_job(raw)


@pytest.mark.parametrize("name", HELMS)
def test_all_mistakes_come_at_once_in_both_helms(name: str) -> None:
    with pytest.raises(Refused) as caught:
        render("training.steps=5", "training.reduction_leaves=6", 'checkpoint.uri="/tmp/x"', "kubernetes.trainer.gpus=3", name=name)
    text = str(caught.value)
    assert "4 mistake(s) in the values of release digits" in text
    assert all(part in text for part in ("training.epochs is 30", "reduction_leaves is 6", "checkpoint.uri", "trainer.gpus is 3"))


@pytest.mark.parametrize("release", ["1st", "a" * 41, "my.run"])
def test_names_of_releases(release: str) -> None:
    with pytest.raises(Refused, match="the release's name is"):
        render(release=release)


@pytest.mark.parametrize("name", HELMS)
def test_without_a_job_helm_says_what_is_missing(name: str) -> None:
    with pytest.raises(Refused) as caught:
        render(values=(), name=name)
    assert all(part in str(caught.value) for part in ("family", "kind", "source"))


def test_a_job_file_beside_its_data_says_what_to_do() -> None:
    file = Path(DIGITS).parents[1] / "text_classification" / "reviews.yaml"
    with pytest.raises(Refused, match=r"3 mistake\(s\)"):
        render(values=(file,))
