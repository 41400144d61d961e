"""The paper's cluster, jobs and freeze histories as our simulator's inputs: blocks are cut in halves, as in the paper."""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from frostline_contract.job import Job, load_job
from frostline_contract.job.freezing import ElasticSection
from frostline_controller.planner.analytic import analytic_profiles
from frostline_controller.planner.model_size import model_size
from frostline_controller.simulation.cluster_file import Cluster, UnitTable, load_cluster
from frostline_controller.simulation.history import NOTHING_FREEZES, History, by_epoch
from frostline_controller.simulation.replay import Length, Replay, replay
from frostline_controller.simulation.simulate import length_of
from frostline_controller.simulation.world import World, build_world

EXAMPLES = Path(__file__).parents[2] / "examples"
THEIR_CLUSTER = EXAMPLES / "clusters/two_rtx5000_nodes.yaml"
MODERN_CLUSTER = EXAMPLES / "clusters/eight_h100_nodes.yaml"

BASELINE_CHUNKS = 32
"""Micro-batches a step of the baseline. The paper does not state them; its figure shows the baseline at about 350 images a
second, and eight stages at 340 with four micro-batches a stage."""
THEIR_CHUNKS = 16
"""Micro-batches of PipeTransformer at every K: the table in its released code."""
NEVER = 1e9
"""A hysteresis that exceeds every reshape's gain: stages stay as they were cut at the start."""


@dataclass(frozen=True)
class Task:
    """A row of the paper's first table. layers: number of transformer blocks. samples: number in the training split."""

    name: str
    file: str
    samples: int
    layers: int
    epochs: int
    title: str

    def job(self, chunks: int = THEIR_CHUNKS, *more: str) -> Job:
        """Return the example's job as the paper ran it: float32, GPipe, its planner, a batch that grows with the replicas."""
        batch = load_job(EXAMPLES / self.file).training.batch_size
        size = max(1, round(batch / chunks))
        return load_job(
            EXAMPLES / self.file,
            ["training.precision=float32", "training.numerics=fast", f"training.micro_batch_size={size}",
             f"training.batch_size={size * chunks}", f"training.reduction_leaves={min(16, chunks)}",
             "placement.planner=paper_greedy", "placement.schedule=gpipe", "placement.reshape_every_freeze=true",
             "cache.use=always", "cache.memory_bytes=4398046511104", "data.augmentation.mode=off", *more],
        )  # fmt: skip

    def history(self, alpha: float) -> History:
        """The released code's closed form by epoch: ceil(L (1 - (1 - alpha)^e)) layers, two halves each, and the embedding."""
        layers = {epoch: math.ceil(self.layers * (1 - (1 - alpha) ** epoch) - 1e-9) for epoch in range(1, self.epochs)}
        return by_epoch({float(epoch): 1 + 2 * frozen for epoch, frozen in layers.items()})

    @cached_property
    def length(self) -> Length:
        return length_of(self.job(), self.samples)


TASKS = {
    task.name: task
    for task in (
        Task("imagenet", "image_classification/imagenet_vit_b16.yaml", 1_281_167, 12, 10, "ImageNet, ViT-B/16"),
        Task("cifar100", "image_classification/cifar100_vit_b16.yaml", 50_000, 12, 10, "CIFAR-100, ViT-B/16"),
        Task("squad", "question_answering/squad_bert_large.yaml", 88_524, 24, 3, "SQuAD 1.1, BERT-large"),
    )
}
ALPHA = 1 / 3
ALL = ("freeze", "pipeline", "replicas", "cache")


def their_world(job: Job, samples: int, with_memory: bool = True) -> World:
    """Return the paper's cluster with half-blocks as units, at the job's micro-batch size. with_memory: limit devices' memory."""
    cluster = load_cluster(THEIR_CLUSTER)
    size, device = model_size(job), cluster.device
    assert device.teraflops is not None
    units = analytic_profiles(
        num_blocks=size.num_blocks,
        hidden=size.hidden,
        sequence=size.sequence,
        micro_batch=job.training.micro_batch_size,
        flops_per_second=device.teraflops * 1e12,
        vocabulary=size.outputs,
        head_positions=size.head_positions,
        embedding_parameters=size.embedding_parameters,
        moments=2 if job.training.optimizer.name == "adamw" else 1,
        fixed_seconds=device.call_seconds,
        halves=True,
    )
    table = UnitTable(micro_batch_size=job.training.micro_batch_size, units=units)
    changes = {"units": table, "memory_bytes": device.memory_bytes if with_memory else 0}
    halved: Cluster = cluster.model_copy(update={"device": device.model_copy(update=changes)})
    return build_world(halved, job, size=None, train_samples=samples)


def their_run(task: Task, parts: tuple[str, ...], alpha: float = ALPHA, recut: bool = True) -> Replay:
    """Simulate PipeTransformer's run with some of its parts on. recut: whether stages may change at a freeze."""
    job = with_parts(task.job(), parts)
    if not recut:
        job = with_placement(job, reshape_every_freeze=False, hysteresis=NEVER)
    return replay(job, their_world(job, task.samples), task.history(alpha), task.length)


def baseline(task: Task) -> Replay:
    """Simulate PyTorch's pipeline with data parallelism: nothing freezes, the shape stays 8 x 2."""
    job = with_parts(task.job(BASELINE_CHUNKS), ())
    return replay(job, their_world(job, task.samples), NOTHING_FREEZES, length_of(job, task.samples))


def our_run(task: Task, *more: str, cache: str = "auto") -> Replay:
    """Simulate the task under our planner: cuts by time and memory, 1F1B, reshapes that pay. cache: the job's cache.use."""
    job = with_placement(
        task.job(THEIR_CHUNKS, *more), planner="optimal", schedule="auto", reshape_every_freeze=False, initial_pp_degree=None
    )
    job = job.model_copy(update={"cache": job.cache.model_copy(update={"use": cache})})
    return replay(job, their_world(job, task.samples), task.history(ALPHA), length_of(job, task.samples))


def with_parts(job: Job, parts: tuple[str, ...]) -> Job:
    return job.model_copy(update={"elastic": ElasticSection(**{part: part in parts for part in ALL})})


def with_placement(job: Job, **changes: object) -> Job:
    return job.model_copy(update={"placement": job.placement.model_copy(update=changes)})
