"""The cluster file of `frostline simulate`: devices, links, unit times and prices of a cluster that need not be here."""

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from frostline_contract.job.load import describe_mistakes
from frostline_contract.job.section import SECONDS_MAX, Section
from frostline_contract.job.yaml_text import JobError, read_mapping
from frostline_contract.statistics import LinkProfile, UnitProfile

DEVICES_MAX = 65536
UNIT_MAX = 1e15
"""Upper limit of the numbers of a unit table: a petabyte, or more seconds than any unit takes."""


class ClusterError(ValueError):
    """A mistake in a cluster file; the message names each field, its value and the remedy."""


class LinkSection(Section):
    """A link between two workers. Latencies in seconds, bandwidths in bytes a second."""

    latency_seconds: float = Field(gt=0.0, le=SECONDS_MAX, description="A message of no bytes.")
    bandwidth_bytes_per_second: float = Field(ge=1.0, le=1e18, description="One message, one way.")
    reduce_latency_seconds: float | None = Field(
        None, gt=0.0, le=SECONDS_MAX, description="An all-reduce of no bytes; null: three messages."
    )
    reduce_bandwidth_bytes_per_second: float | None = Field(
        None, ge=1.0, le=1e18, description="An all-reduce of two members, the buffer's bytes over its time; null: as one message."
    )

    def profile(self) -> LinkProfile:
        """Return the link as the record that workers would have measured."""
        return LinkProfile(
            latency_seconds=self.latency_seconds,
            bandwidth_bytes_per_second=self.bandwidth_bytes_per_second,
            reduce_latency_seconds=self.reduce_latency_seconds or 3 * self.latency_seconds,
            reduce_bandwidth_bytes_per_second=self.reduce_bandwidth_bytes_per_second or self.bandwidth_bytes_per_second,
        )


class UnitTable(Section):
    """Unit costs by number, in place of computed ones: the form of a run's profile.json."""

    micro_batch_size: int = Field(ge=1, description="Samples that the times are of.")
    units: tuple[UnitProfile, ...] = Field(
        min_length=3,
        description="A line a unit: forward_seconds, backward_seconds, parameter_bytes, optimizer_bytes, activation_bytes, "
        "output_bytes, and working_bytes.",
    )

    @field_validator("units")
    @classmethod
    def _not_negative(cls, units: tuple[UnitProfile, ...]) -> tuple[UnitProfile, ...]:
        for number, unit in enumerate(units):
            for name, value in unit:
                if not all(0 <= one <= UNIT_MAX for one in (value if isinstance(value, tuple) else (value,))):
                    raise ValueError(f"unit {number} has {name} {value}; it must be 0 to {UNIT_MAX:g}")
            if unit.forward_seconds <= 0 or unit.backward_seconds <= 0:
                raise ValueError(f"unit {number} takes no time; forward_seconds and backward_seconds must be above 0")
        return units


class DeviceSection(Section):
    """One device. Times come from `units`, else from a run's profile, else from FLOPs at `teraflops`."""

    name: str = Field("device", description="For people.")
    kind: Literal["gpu", "cpu"] = Field("gpu", description="What training.precision auto and placement.backend auto stand for.")
    teraflops: float | None = Field(
        None,
        ge=1e-6,
        le=1e9,
        description="10^12 FLOP/s that training sustains, not the peak; needed where nothing says unit times.",
    )
    call_seconds: float = Field(3e-5, ge=0.0, le=SECONDS_MAX, description="What each unit's call costs beyond its FLOPs.")
    optimizer_bytes_per_second: float = Field(
        2e11, ge=1.0, le=1e18, description="Weights that an optimizer step updates in a second, in bytes."
    )
    prefix_cost: float = Field(
        1.0,
        ge=1.0,
        le=1e3,
        description="Of computing frozen units, over their forward: more than 1 where they take one sample at a time.",
    )
    quota_period_seconds: float = Field(
        0.0,
        ge=0.0,
        le=SECONDS_MAX,
        description="Of a control group's quota, where placement.worker_cpus gives workers a share; 0: none.",
    )
    memory_bytes: int = Field(0, ge=0, description="What a worker may use; 0: no limit.")
    units: UnitTable | None = Field(None, description="Unit times by number.")


class NodeGroup(Section):
    """Equal nodes."""

    count: int = Field(ge=1, le=DEVICES_MAX, description="Nodes.")
    devices: int = Field(ge=1, le=DEVICES_MAX, description="Devices a node.")
    speed: float = Field(1.0, ge=1e-3, le=1e3, description="Of its devices, over that of `device`.")
    memory_bytes: int | None = Field(None, ge=0, description="Of its devices; null: device.memory_bytes.")
    price_per_device_hour: float = Field(0.0, ge=0.0, le=1e9, description="Money for an hour of one of its devices.")


class CacheTimes(Section):
    """The cost of the activation cache for a worker."""

    fetch_seconds_per_sample: float = Field(gt=0.0, le=SECONDS_MAX, description="To read one sample's activation.")
    fill_seconds_per_sample: float = Field(gt=0.0, le=SECONDS_MAX, description="To write one.")


class Cluster(Section):
    """A cluster, as `frostline simulate --cluster FILE` reads it."""

    name: str = Field("cluster", description="For people.")
    nodes: tuple[NodeGroup, ...] = Field(description="Groups of equal nodes, at least one.")
    device: DeviceSection = Field(description="What computes.")
    link_between_nodes: LinkSection = Field(description="Between devices of two nodes.")
    link_within_node: LinkSection | None = Field(None, description="Between devices of one node; null: as between nodes.")
    cache: CacheTimes | None = Field(
        None, description="Of the activation cache; null: what the planner assumes before it has measured."
    )
    reshape_seconds: float = Field(1.0, ge=0.0, le=SECONDS_MAX, description="How long a change of shape stops training.")
    devices_at_once: int | None = Field(
        None, ge=1, description="Devices that can compute at the same time, where they share cores; null: all of them."
    )
    currency: str = Field("USD", description="Of the prices.")

    @model_validator(mode="after")
    def _consistent(self) -> "Cluster":
        if not self.nodes:
            raise ValueError("nodes is empty; give at least one group, such as {count: 2, devices: 8}")
        if self.devices > DEVICES_MAX:
            raise ValueError(
                f"nodes hold {self.devices} devices, more than the {DEVICES_MAX} that can be planned for; take fewer"
            )
        return self

    @property
    def devices(self) -> int:
        """Number of devices of all nodes."""
        return sum(group.count * group.devices for group in self.nodes)

    def prices(self) -> list[float]:
        """Return the price of an hour of each device, node by node."""
        return [group.price_per_device_hour for group in self.nodes for _ in range(group.count * group.devices)]


def load_cluster(path: str | Path) -> Cluster:
    """Read a cluster file. Raises ClusterError with one line a mistake."""
    file = Path(path)
    try:
        raw = read_mapping(file, "nodes, device and link_between_nodes", "give a cluster file with --cluster")
    except JobError as error:
        raise ClusterError(str(error)) from error
    try:
        return Cluster.model_validate(raw)
    except ValidationError as error:
        raise ClusterError(describe_mistakes(error, str(file), Cluster)) from None
