"""Schedules without bubbles against 1F1B on workers of fixed speed, with no block and with half the blocks frozen."""

from frostline_contract.schedules import BUILT_IN
from tests.benchmarks.devices import SHARE, WORKERS
from tests.benchmarks.fixed_speed import AT_ONE_SPEED
from tests.benchmarks.fixed_speed_jobs import fixed_speed_job
from tests.benchmarks.in_turns import Way, in_turns, judged
from tests.benchmarks.measuring import Effort, Report, Row
from tests.benchmarks.subjects import SUBJECTS

STEPS, ROUNDS = 10, 2
"""Steps in each schedule, and rounds through all schedules."""
BLOCKS, UNITS, FROZEN = 8, 10, 5
"""Blocks that four ranks can share evenly; with embedding and head; the embedding and half of the blocks."""
GOAL_PERCENT = 10.0


def schedules(effort: Effort) -> Report:
    """Measure both subjects, with nothing frozen and with the embedding and half the blocks frozen."""
    rows = [row for subject in SUBJECTS for frozen in (0, FROZEN) for row in _walked(effort, subject, frozen)]
    return Report(
        "Schedules without bubbles",
        f"A pipeline of {WORKERS} workers, each with {SHARE:g} of one processor by a control group's quota, and a model of "
        f"{BLOCKS} blocks, with nothing frozen, and with the embedding and half the blocks frozen from step 1. One run each "
        f"reshapes through 1F1B and every zero-bubble schedule that its units allow, {ROUNDS} rounds. Beside each measured step "
        "stands the planner's, from what the run's own workers measured, split backwards included, and beside the planned memory "
        "what the fullest worker's tensors took. What the wait at the vote costs comes from traced steps: their computations in "
        "order, with and without that wait. "
        f"{AT_ONE_SPEED} Some of a worker's work is in no plan: its threads for messages and heartbeats, and what it does "
        "between steps. In steps under 1F1B a rank computed for 127 to 320 ms of its processor time and did other work for 18 to "
        "35 ms, of which a plan counts about 5 (messages, update, vote). All is from one quota, so a plan is some percent too "
        "quick. The language model over token slices is in the benchmark of slices.",
        rows,
    )


def ways(frozen: int) -> list[Way]:
    """Return 1F1B and the zero-bubble schedules; V-shaped ones only if there are units for two stages a rank."""
    splitting = [(name, 2 if one.folded else 1) for name, one in BUILT_IN.items() if one.splits]
    fitting = [(name, stages) for name, stages in splitting if WORKERS * stages <= UNITS - frozen]
    return [Way("1f1b", 1, 1), *(Way(name, stages, 1) for name, stages in fitting)]


def _walked(effort: Effort, subject: str, frozen: int) -> list[Row]:
    steps, rounds = (8, 1) if effort.quick else (STEPS, ROUNDS)
    about = f"{subject}, {'half frozen' if frozen else 'unfrozen'}: "
    job = fixed_speed_job(subject, steps, (WORKERS, 1), frozen, blocks=BLOCKS)
    rows = in_turns(job, ways(frozen), rounds, steps, about)
    return [*rows, *judged(rows, about, GOAL_PERCENT)]
