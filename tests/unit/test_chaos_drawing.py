"""What chaos draws: always the same for a seed, and over many seeds all that can befall a run."""

from dataclasses import replace
from itertools import product

import pytest

from frostline_contract.job.cluster import Fault
from frostline_contract.job.load import parse_job
from frostline_contract.schedules import BUILT_IN
from tests.chaos.acts import (
    BESIDE_FILES,
    COMMANDS,
    DEATHS,
    FILES,
    HOLDS,
    OTHER_DATA,
    OTHER_WEIGHTS,
    SCALE,
    SECOND_OWNER,
    STOPS,
    WRITES,
)
from tests.chaos.cases import OTHER_ROOT
from tests.chaos.drawing import draw_case
from tests.chaos.fixed import SUBSET, fixed_cases
from tests.chaos.fixed_speed import at_share
from tests.chaos.jobs import ADAPTED_IN_TILES, IN_A_GRID, IN_CELLS, TILED, TILED_AND_SHARED, VARIANTS


def test_cases_follow_from_their_seeds_and_draw_all_that_can_befall_a_run() -> None:
    cases = [draw_case(seed) for seed in range(1, 401)]
    assert cases == [draw_case(seed) for seed in range(1, 401)]
    assert sum(case.aim == "lost" for case in cases) >= 80
    assert {fault.kind for case in cases for fault in case.faults} == set(Fault.model_fields["kind"].annotation.__args__)
    assert {act.kind for case in cases for act in case.acts} == {
        *COMMANDS,
        *STOPS,
        *HOLDS,
        *WRITES,
        *DEATHS,
        OTHER_DATA,
        OTHER_WEIGHTS,
        SECOND_OWNER,
        SCALE,
    }
    writes = {(act.at, act.file) for case in cases for act in case.acts if act.file}
    assert writes == {(at, file) for files_at in (FILES, BESIDE_FILES) for at, files in files_at.items() for file in files}
    assert max(len(case.faults) for case in cases) == 5
    assert {case.variant for case in cases} == set(VARIANTS)
    drawn = {(case.shard, to) for case in cases if (case.shape[1] or 0) > 1 for to in case.reshapes_shard}
    assert drawn == set(product(("none", "step", "use"), repeat=2))
    in_groups = [case for case in cases if case.tp > 1]
    assert {case.shard for case in in_groups} == {"none", "step", "use"} and {1, 2} <= {
        tp for one in in_groups for tp in one.reshapes_tp
    }
    assert all(case.tp == 1 for case in cases if case.variant not in (TILED, ADAPTED_IN_TILES, TILED_AND_SHARED, IN_A_GRID))
    grids = [case for case in cases if case.variant == IN_A_GRID]
    assert {(2, 1), (1, 2)} <= {(case.tp, case.depth) for case in grids} and 2 in {d for one in grids for d in one.reshapes_depth}
    assert all(case.depth == 1 for case in cases if case.variant != IN_A_GRID)
    assert any(case.tp > 1 for case in cases if case.variant == ADAPTED_IN_TILES)
    assert {case.schedule for case in cases} == {"auto", *BUILT_IN}
    assert {"cost"} <= {case.objective for case in cases}
    assert max(case.workers_per_pod for case in cases) == 2
    flips = [case for case in cases if case.aim == "flip"]
    assert {case.faults[0].what for case in flips} == {"cached_value", "weight", "moment", "activation", "gradient"}
    assert {"kill_controller", "kill_worker"} <= {fault.kind for case in flips for fault in case.faults[1:]}
    assert any(fault.phase == "audit" for case in cases for fault in case.faults)
    assert {act.kind for case in cases if case.aim == "ending" for act in case.acts} == set(WRITES)
    assert max(case.min_workers for case in cases) > 2
    for case in cases:
        parse_job({**case.job(), "data": {"source": "digits"}})
    names = [case.name for case in fixed_cases()]
    assert len(names) == len(set(names))
    assert set(SUBSET) <= set(names)


def test_cells_and_their_slices_are_drawn_for_language_models_that_do_not_gather() -> None:
    cases = [draw_case(seed) for seed in range(1, 401)]
    in_cells = [case for case in cases if case.variant in IN_CELLS.values()]
    assert {case.aim for case in in_cells} == {case.aim for case in cases}
    assert {case.slices for case in in_cells} == {None, 1, 2, 3, 4}
    assert any(case.slices not in (None, to) for case in in_cells for to in case.reshapes_slices), "a reshape changes them"
    assert {"none", "step"} == {shard for case in in_cells for shard in (case.shard, *case.reshapes_shard)}
    assert all(case.slices is None and not case.reshapes_slices for case in cases if case not in in_cells)


def test_what_is_added_to_a_case_is_drawn_where_it_means_something() -> None:
    cases = [draw_case(seed) for seed in range(1, 401)]
    assert {case.checkpoint_uri for case in cases} == {None, OTHER_ROOT}
    assert {case.cache_shards for case in cases} == {1, 2}
    assert all(case.cache for case in cases if case.cache_shards > 1)
    acts = [(case, act) for case in cases for act in case.acts]
    assert {act.worker for _, act in acts if act.kind == "kill_shard"} == {0, 1}
    assert any(case.cache_shards == 2 for case, act in acts if act.kind == "hold_redis")
    assert all(1 <= act.shape[0] * act.shape[1] <= case.workers for case, act in acts if act.kind == "reshape")
    pods = [(act.value, case.workers // case.workers_per_pod) for case, act in acts if act.kind == SCALE]
    assert pods and all(1 <= asked <= there for asked, there in pods)
    owned_twice = [case for case, act in acts if act.kind == SECOND_OWNER]
    assert not any(act.kind in (*STOPS, *WRITES) for case in owned_twice for act in case.acts)
    broken = [case for case in cases if any(fault.lasting for fault in case.faults)]
    assert broken
    assert all(case.shape[1] >= 3 for case in broken), "so many that one can be named"


def test_a_reshapes_shape_runs_out_of_memory_only_where_another_needs_less() -> None:
    """Every plan of a pinned schedule may need more than a reshape's, which runs 1F1B: then the run ends, as it should."""
    cases = [draw_case(seed) for seed in (*range(1, 401), 1126001)]
    reshaped = [case for case in cases if case.reshapes and any(fault.kind == "oom" for fault in case.faults)]
    assert reshaped and not {case.schedule for case in reshaped} & {"gpipe", "interleaved_1f1b"}


def test_a_fixed_speed_is_laid_over_a_case_and_changes_nothing_else_of_it() -> None:
    for seed in range(1, 41):
        drawn = draw_case(seed)
        slow = at_share(drawn, 0.25, processors=2)
        assert slow.worker_cpus == 0.25
        assert replace(slow, worker_cpus=None) == drawn
        placement = parse_job({**slow.job(), "data": {"source": "digits"}}).placement
        assert placement.worker_cpus == 0.25


def test_a_fixed_speed_is_no_more_than_there_is_for_all_workers() -> None:
    case = replace(draw_case(1), workers=6, shape=(6, 1))
    assert at_share(case, 0.25, processors=1).worker_cpus == 0.16
    with pytest.raises(ValueError, match=r"has 12 workers, and 1 processors are less than 0\.1 for each"):
        at_share(replace(case, workers=12), 0.25, processors=1)
