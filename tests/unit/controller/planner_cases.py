"""Inputs for the planner's tests: profiles with round numbers, and the plainest possible search to compare with."""

from itertools import combinations
from random import Random

from frostline_contract.statistics import LinkProfile, UnitProfile
from frostline_controller.planner.inputs import MemberInfo, PlanInputs


def unit(forward: float = 0.01, parameters: int = 4_000_000, activation: int = 1_000_000, output: int = 100_000) -> UnitProfile:
    return UnitProfile(
        forward_seconds=forward,
        backward_seconds=2 * forward,
        parameter_bytes=parameters,
        optimizer_bytes=2 * parameters,
        activation_bytes=activation,
        output_bytes=output,
    )


def random_units(source: Random, most: int) -> list[UnitProfile]:
    """Return three to `most` units of different seconds and bytes."""
    count = source.randrange(3, most + 1)
    return [
        unit(source.uniform(1e-3, 3e-2), source.randrange(10**5, 2 * 10**7), source.randrange(10**6, 10**7)) for _ in range(count)
    ]


def members(count: int, per_node: int = 2, **fields) -> tuple[MemberInfo, ...]:
    return tuple(MemberInfo(f"w{i}", f"node-{i // per_node}", **fields) for i in range(count))


def inputs(units=8, workers=4, **fields) -> PlanInputs:
    """Return the planner's inputs. units, workers: a number, or the tuples themselves."""
    wanted = {
        "units": (unit(),) * units if isinstance(units, int) else tuple(units),
        "members": members(workers) if isinstance(workers, int) else tuple(workers),
        "micro_batch_size": 4,
        "num_microbatches": 8,
        "reduction_leaves": 8,
        "freeze_point": 0,
        "link": LinkProfile(),
    }
    return PlanInputs(**(wanted | fields))


def all_bounds(num_units: int, freeze_point: int, stages: int):
    """Return every cut that has the frozen prefix in stage 0 and a trainable unit in each stage."""
    for cuts in combinations(range(freeze_point + 1, num_units), stages - 1):
        yield (0, *cuts, num_units)


def cluster_members(nodes: int, workers_per_node: int, memory_bytes: int = 0) -> tuple[MemberInfo, ...]:
    """Equal workers on equal nodes; a node is a failure domain."""
    return tuple(
        MemberInfo(f"worker-{node}-{place}", f"node-{node}", memory_bytes)
        for node in range(nodes)
        for place in range(workers_per_node)
    )
