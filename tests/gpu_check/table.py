"""The parts of the check, with the time that each may take."""

from dataclasses import dataclass

TOTAL_SECONDS = 40 * 60
"""The limit of the whole check; a test compares it with the sum of the parts' limits."""
REPORT_SECONDS = 60
"""The time kept for ending processes and writing the report."""


@dataclass(frozen=True)
class Part:
    """One process of the check.

    name: on the command line. title: in the report. function: "module:function" below tests.gpu_check; it is given a `Setting`.
    seconds: its limit; then the process and all that it has started are killed, and the next part begins.
    """

    name: str
    title: str
    function: str
    seconds: int


PARTS: tuple[Part, ...] = (
    Part("determinism", "One worker's bits on this device", "determinism:determinism", 480),
    Part("digests", "1, 2 and 4 workers end with one digest", "digests:digests", 240),
    Part("dimensions", "Cells, tiles, groups and shared state on this device", "dimensions:dimensions", 360),
    Part("kills", "A worker dies over this device's transports", "kills:kills", 180),
    Part("nccl", "What the trainer and the simulation assume of NCCL", "nccl_lines:nccl_lines", 270),
    Part("runs", "Whole runs: freeze, reshape, cache, kill", "runs:runs", 180),
    Part("speed", "Step time, frozen and cached epochs", "speed:speed", 240),
    Part("prices", "What the numerics cost, and where a step's time goes", "prices:prices", 240),
    Part("recovery", "From a kill to the next committed step", "recovery:recovery", 120),
)
"""In the order in which they run: what everything else rests on comes first."""


def part_named(name: str) -> Part:
    """Return the part with this name. Raises KeyError where there is none."""
    return {part.name: part for part in PARTS}[name]
