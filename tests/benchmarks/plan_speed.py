"""How long a plan takes: 200 units on up to 1,024 devices. Prints one JSON object; to keep is the slowest, in CPU seconds."""

import json
import time

from frostline_contract.job.cluster import PlacementSection
from frostline_contract.statistics import LinkProfile
from frostline_controller.planner import PlanInputs, make_plan
from frostline_controller.planner.simulate import analytic_profiles, cluster_members

REPEATS = 3
LINK = LinkProfile(
    latency_seconds=2e-5, bandwidth_bytes_per_second=25e9, reduce_latency_seconds=5e-5, reduce_bandwidth_bytes_per_second=2e10
)


def measure(devices: int, leaves: int, **placement) -> dict:
    """Least CPU seconds of REPEATS plans, and the shape."""
    units = analytic_profiles(198, 2048, 2048, 1, 2e14, 50_000, bytes_per_value=2)
    inputs = PlanInputs(
        units=units,
        micro_batch_size=1,
        num_microbatches=1024,
        reduction_leaves=leaves,
        freeze_point=0,
        members=cluster_members(devices // 8, 8, 80 << 30),
        link=LINK,
        placement=PlacementSection(workers=devices, **placement),
    )
    seconds = []
    for _ in range(REPEATS):
        started = time.process_time()
        planned = make_plan(inputs)
        seconds.append(time.process_time() - started)
    shape = f"pp {planned.placement.pp_degree} x dp {planned.placement.dp_degree}, {planned.placement.schedule}"
    return {"devices": devices, "leaves": leaves, **placement, "seconds": round(min(seconds), 4), "shape": shape}


def main() -> None:
    rows = [measure(devices, leaves) for devices in (16, 128, 1024) for leaves in (64, 1024)]
    rows += [measure(1024, leaves, **extra) for leaves in (64, 1024) for extra in ({"objective": "cost"}, {"virtual_stages": 2})]
    print(
        json.dumps(
            {"name": "plan_speed", "units": 200, "slowest_seconds": max(row["seconds"] for row in rows), "rows": rows}, indent=2
        )
    )


if __name__ == "__main__":
    main()
