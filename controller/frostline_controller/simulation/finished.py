"""A finished run as the input of a simulation: its job, its unit times, its decisions, and its machine."""

import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pydantic import ValidationError

from frostline_contract.job import Job, parse_job
from frostline_contract.run_directory import RunDirectory
from frostline_contract.statistics import LinkProfile
from frostline_controller.planner.inputs import PlanInputs, parallel_slots
from frostline_controller.planner.profile_file import MeasuredProfile
from frostline_controller.report.data import RunData, read_run
from frostline_controller.simulation.cluster_file import CacheTimes, Cluster, DeviceSection, LinkSection, NodeGroup
from frostline_controller.simulation.history import History, of_records
from frostline_controller.simulation.simulate import known_train_samples


@dataclass(frozen=True)
class FinishedRun:
    """The contents of the directory of a run that has ended, or has trained for a part of its steps."""

    data: RunData
    job: Job
    profile: MeasuredProfile

    @property
    def steps(self) -> int:
        """The last surviving step."""
        return self.data.records[-1].step

    @property
    def history(self) -> History:
        """The run's freeze history."""
        return of_records(self.data.records, self.data.decisions, self.data.run_dir.name)

    @property
    def train_samples(self) -> int:
        """Samples of the training split: exact where the data set is known, else up to a batch too many; 0: unknown."""
        known = known_train_samples(self.job)
        statistics = self.data.statistics
        if known or self.job.freeze.interval_steps is not None or not statistics:
            return known
        return statistics[0].last_step * self.job.training.batch_size

    def own_cluster(self, job: Job) -> Cluster:
        """Return this machine as a cluster of the job's workers and spare workers, a node for each pod, with the links that the
        run's workers measured."""
        profile = self.profile
        seconds = [event.seconds for event in self.data.events if event.kind == "reshape" and event.seconds > 0]
        slots = parallel_slots(job, len(os.sched_getaffinity(0))) if profile.device == "cpu" else None
        link, price = profile.link or LinkProfile(), job.cluster.price_per_worker_hour or 0.0
        cache = profile.cache
        times = cache.model_dump(include=set(CacheTimes.model_fields)) if cache is not None else {}
        return Cluster(
            name="this machine",
            nodes=_nodes(job.placement.workers + job.placement.spare_workers, job.placement.workers_per_pod, price),
            device=DeviceSection(
                name=profile.device,
                kind="cpu" if profile.device == "cpu" else "gpu",
                prefix_cost=profile.prefix_cost,
                quota_period_seconds=profile.quota_period_seconds,
                optimizer_bytes_per_second=1 / (profile.optimizer_seconds_per_byte or PlanInputs.optimizer_seconds_per_byte),
            ),
            link_between_nodes=LinkSection(**link.model_dump()),
            cache=CacheTimes(**times) if all(times.values()) and times else None,
            reshape_seconds=median(seconds) if seconds else 1.0,
            devices_at_once=slots,
        )


def _nodes(workers: int, each: int, price: float) -> tuple[NodeGroup, ...]:
    """Return nodes of `each` workers, and one of the workers that remain."""
    full, rest = divmod(workers, each)
    groups = ((full, each), (1, rest))
    return tuple(
        NodeGroup(count=count, devices=devices, price_per_device_hour=price) for count, devices in groups if count * devices
    )


def read_finished(folder: str | Path) -> FinishedRun:
    """Read a run directory.

    Raises:
        ValueError: the folder is no run directory, it has no step or no profile, or a file in it is broken.
    """
    data = read_run(folder)
    places = RunDirectory(folder)
    if not data.records:
        raise ValueError(f"{places.path} has no committed step yet; give a run that has trained")
    try:
        profile = MeasuredProfile.model_validate_json(places.profile.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{places.profile}: cannot be read ({error.strerror}); give a run that has measured its units") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{places.profile}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return FinishedRun(data, parse_job(data.job, str(places.job)), profile)
