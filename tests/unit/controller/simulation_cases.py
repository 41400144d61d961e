"""Small jobs and clusters to simulate."""

from pathlib import Path

from frostline_contract.job import Job, parse_job
from frostline_controller.simulation.cluster_file import Cluster
from frostline_controller.simulation.question import Answer, Question, answer
from frostline_controller.simulation.replay import Replay
from tests.unit.controller.synthetic_run import job_values

EXAMPLES = Path(__file__).parents[3] / "examples"
CLUSTERS = sorted((EXAMPLES / "clusters").glob("*.yaml"))
DIGITS = EXAMPLES / "image_classification" / "digits.yaml"
SQUAD = EXAMPLES / "question_answering" / "squad_bert_large.yaml"
SAMPLES = 1280
ALL_RAILS = "warmup, cooldown, min_active, rearm, patience, absolute, cap_interval, cap_total, last_blocks, baseline, guard"


def job(**changes) -> Job:
    """Digits in 20 epochs of 20 steps, by the optimal planner."""
    values = {"training": {"epochs": 20, "batch_size": 64, "micro_batch_size": 8}, "freeze": {}, "placement": {"workers": 4}}
    return parse_job(job_values(**(values | changes)))


def cluster(**changes) -> Cluster:
    values = {
        "nodes": [{"count": 2, "devices": 2, "price_per_device_hour": 2.0}],
        "device": {"kind": "cpu", "teraflops": 0.02, "call_seconds": 2e-4, "optimizer_bytes_per_second": 2e9},
        "link_between_nodes": {"latency_seconds": 1e-4, "bandwidth_bytes_per_second": 1e9},
    }
    return Cluster.model_validate(values | changes)


def simulated(**question) -> Answer:
    return answer(Question(**({"job": job(), "cluster": cluster(), "train_samples": SAMPLES} | question)))


def the_job(found: Answer) -> Replay:
    return found.simulation.arms["job"]
