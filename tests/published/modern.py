"""The same jobs and freeze histories on a present-day cluster: bfloat16, the last batch size of the paper's runs, our planner."""

from functools import cache

from frostline_contract.job import load_job
from frostline_controller.simulation.cluster_file import load_cluster
from frostline_controller.simulation.question import Question, answer
from frostline_controller.simulation.simulate import Simulation
from tests.published.setting import ALPHA, EXAMPLES, MODERN_CLUSTER, Task

ARMS = ("static", "freezing", "job")


@cache
def modern(task: Task) -> Simulation:
    """Simulate the arms of a task on eight nodes of eight H100."""
    cluster = load_cluster(MODERN_CLUSTER)
    batch = 16 * load_job(EXAMPLES / task.file).training.batch_size
    job = load_job(
        EXAMPLES / task.file,
        [f"training.batch_size={batch}", "training.batch=global", f"training.reduction_leaves={cluster.devices}",
         "placement.initial_pp_degree=null", "cache.memory_bytes=4398046511104", "data.augmentation.mode=off"],
    )  # fmt: skip
    # n layers are freeze point 2 n + 1 in halves and n + 1 in whole blocks.
    points = {change.epoch: change.freeze_point // 2 + 1 for change in task.history(ALPHA).changes if change.epoch is not None}
    question = Question(job=job, cluster=cluster, points=points, train_samples=task.samples, arms=ARMS, all_devices=True)
    return answer(question).simulation
