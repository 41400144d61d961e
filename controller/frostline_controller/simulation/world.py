"""A described cluster in the planner's terms: workers with profiles, links and places, and the situation at a step."""

from collections.abc import Mapping
from dataclasses import dataclass

from frostline_contract.device import DeviceFacts
from frostline_contract.job import Job
from frostline_contract.plan import Placement
from frostline_contract.statistics import CacheProfile, UnitProfile, WorkerProfile
from frostline_controller.members.membership import Worker
from frostline_controller.planner.adapter import Situation
from frostline_controller.planner.advice import units_at
from frostline_controller.planner.assumed import Hardware, unit_profiles
from frostline_controller.planner.kept_profile import KeptProfile
from frostline_controller.planner.model_size import ModelSize
from frostline_controller.planner.profile_file import MeasuredProfile
from frostline_controller.simulation.cluster_file import Cluster, NodeGroup


@dataclass(frozen=True)
class World:
    """The facts that stay the same while a run is replayed.

    Attributes:
        cluster: as its file describes it.
        workers: those that the job may have, one a device.
        prices: of an hour of each device that the run may hold: the workers' own, then those of spare workers.
        units: costs of the model's units on the reference device, at the job's micro-batch size.
        unit_source: the origin of `units`, in words.
        boundary_bytes: one sample's activation at the boundary.
        train_samples: of the training split; 0: unknown.
        tied: the head uses unit 0's matrix.
    """

    cluster: Cluster
    workers: tuple[Worker, ...]
    prices: tuple[float, ...]
    units: tuple[UnitProfile, ...]
    unit_source: str
    boundary_bytes: int
    train_samples: int
    tied: bool

    @property
    def num_units(self) -> int:
        """Units of the model: blocks, embedding and head."""
        return len(self.units)

    def situation(
        self, job: Job, freeze_point: int, current: Placement | None, start: Mapping[str, int], steps_left: int, held: int
    ) -> Situation:
        """Return the planner's situation as the controller would give it.

        Args:
            job: the job that is simulated.
            freeze_point: units before it are frozen.
            current: the placement in force; None before the first plan.
            start: degrees that the run began with; empty before the first plan.
            steps_left: steps until the end of the run.
            held: number of workers that the run holds: the first of `workers`.
        """
        uncacheable = "data.augmentation.mode is recompute" if job.data.augmentation.mode == "recompute" else ""
        return Situation(
            num_units=self.num_units,
            freeze_point=freeze_point,
            workers=self.workers[:held],
            current=current,
            start=start,
            pinned=None,
            steps_left=steps_left,
            reshape_seconds=self.cluster.reshape_seconds,
            boundary_bytes_per_sample=self.boundary_bytes,
            uncacheable=uncacheable,
            cache_reachable=True,
            train_samples=self.train_samples,
            parallel_slots=self.cluster.devices_at_once,
            tied=self.tied,
            prefix_cost=self.cluster.device.prefix_cost,
            optimizer_seconds_per_byte=1 / self.cluster.device.optimizer_bytes_per_second,
            cache_coverage=coverage(job, self.boundary_bytes, self.train_samples),
        )


def hardware_of(cluster: Cluster) -> Hardware:
    """Return the device as hardware for analytic unit costs. Raises ValueError where the file has no speed."""
    device = cluster.device
    if device.teraflops is None:
        raise ValueError(
            "device.teraflops is null, and neither device.units nor a finished run says unit times; give 10^12 FLOP/s that a "
            "device sustains"
        )
    link = cluster.link_within_node or cluster.link_between_nodes
    return Hardware(
        device.kind, device.teraflops, link.profile(), device.call_seconds, 1 / device.optimizer_bytes_per_second,
        max(group.devices for group in cluster.nodes),
    )  # fmt: skip


def build_world(
    cluster: Cluster, job: Job, *, size: ModelSize | None, measured: MeasuredProfile | None = None, train_samples: int = 0
) -> World:
    """Return the world of a job.

    Args:
        cluster: the described cluster.
        job: the job to be simulated.
        size: the model's size; None: unit times are given, and suffice.
        measured: a finished run's profile.
        train_samples: of the training split; 0: unknown.

    Raises:
        ValueError: there is no source of unit times, the table is of another model, or the run would wait for workers.
    """
    if cluster.devices < job.placement.min_workers:
        raise ValueError(
            f"placement.min_workers is {job.placement.min_workers} and the cluster has {cluster.devices} device(s), so that a "
            "run would wait for workers; lower it, or describe a larger cluster"
        )
    units, source = _units(cluster, job, size, measured)
    if size is not None and len(units) != size.num_units:
        raise ValueError(f"{source} has {len(units)} units and the job's model has {size.num_units}; give one of the same model")
    limit = min(cluster.devices, job.placement.workers)
    boundary = units[1].output_bytes // job.training.micro_batch_size
    cache = _cache_profile(cluster)
    workers: list[Worker] = []
    node = 0
    for number, group in enumerate(cluster.nodes):
        kept = _profile(cluster, group, number, job, units)
        for _ in range(group.count):
            for place in range(group.devices):
                if len(workers) < limit:
                    workers.append(
                        _worker(cluster, kept, len(workers), job.placement.workers_per_pod, f"node-{node}", place, cache)
                    )
            node += 1
    held = job.placement.workers + job.placement.spare_workers
    return World(
        cluster, tuple(workers), tuple(cluster.prices()[:held]), units, source, boundary, train_samples,
        size.tied if size is not None else False,
    )  # fmt: skip


def _units(
    cluster: Cluster, job: Job, size: ModelSize | None, measured: MeasuredProfile | None
) -> tuple[tuple[UnitProfile, ...], str]:
    """Return the unit costs at the job's micro-batch size, and their source: the file's table, else a profile, else FLOPs."""
    wanted = job.training.micro_batch_size
    table = cluster.device.units
    if table is not None:
        return units_at({table.micro_batch_size: table.units}, wanted), "the cluster file's table"
    if measured is not None:
        return units_at({measured.micro_batch_size: measured.units}, wanted), f"a profile measured on {measured.device}"
    hardware = hardware_of(cluster)
    assert size is not None, "without a table and a profile the model's size is needed"
    return unit_profiles(job, size, hardware, wanted), f"FLOPs at {hardware.teraflops:g} TFLOP/s a device"


def _cache_profile(cluster: Cluster) -> CacheProfile | None:
    """Return the measurements that workers would have made of the cache; None: the planner uses its own prediction."""
    times = cluster.cache
    if times is None:
        return None
    return CacheProfile(
        fetch_seconds_per_sample=times.fetch_seconds_per_sample, fill_seconds_per_sample=times.fill_seconds_per_sample,
        hit_fraction=0.0,
    )  # fmt: skip


def variants_of(job: Job) -> int:
    """Return the number of values that each sample may have in the cache."""
    augmentation = job.data.augmentation
    return augmentation.variants if augmentation.mode == "k-variants" else 1


def coverage(job: Job, boundary_bytes: int, train_samples: int) -> float:
    """Return the share of a run's boundary activations that fits into the cache's memory; 1 where that is not known."""
    wanted = train_samples * variants_of(job) * boundary_bytes
    return min(1.0, job.cache.memory_bytes / wanted) if wanted else 1.0


def _profile(cluster: Cluster, group: NodeGroup, number: int, job: Job, units: tuple[UnitProfile, ...]) -> KeptProfile:
    """Return the profile of a group's workers.

    A group of another speed is another kind of device, so that the planner sees the difference of speeds.

    Args:
        cluster: the described cluster.
        group: the group of nodes.
        number: the group's number, for the device's name.
        job: the job that is simulated.
        units: measurements of the units at speed 1.
    """
    device = cluster.device
    memory = device.memory_bytes if group.memory_bytes is None else group.memory_bytes
    if group.speed != 1.0:
        units = tuple(
            unit.model_copy(
                update={
                    "forward_seconds": unit.forward_seconds / group.speed,
                    "backward_seconds": unit.backward_seconds / group.speed,
                }
            )
            for unit in units
        )
    name = device.name if group.speed == 1.0 else f"{device.name} of group {number}"
    return KeptProfile.of(
        WorkerProfile(
            micro_batch_size=job.training.micro_batch_size, units=units, device=name, memory_bytes=memory,
            quota_period_seconds=device.quota_period_seconds,
        )
    )  # fmt: skip


def _worker(
    cluster: Cluster, profile: KeptProfile, number: int, per_pod: int, node: str, place: int, cache: CacheProfile | None
) -> Worker:
    """Return a worker of the described cluster, as if it had registered.

    Args:
        cluster: the described cluster.
        profile: the worker's measurements.
        number: the worker's number in the cluster.
        per_pod: workers of a pod.
        node: name of the node.
        place: the device's number on the node.
        cache: the measured cache; None: there is none.
    """
    device, near = cluster.device, cluster.link_within_node
    gpu = device.kind == "gpu"
    return Worker(
        worker_id=f"device-{number}", pod_name=f"trainer-{number // per_pod}", failure_domain=node, process_id=0, store_host="",
        store_port=0, profile=profile, registered_at=0.0, last_received=0.0,
        link=cluster.link_between_nodes.profile(), near_link=near.profile() if near else None, cache=cache,
        device=DeviceFacts(host=node, name=device.name, uuid=f"{node}/{place}" if gpu else "", memory_bytes=profile.memory_bytes),
    )  # fmt: skip
