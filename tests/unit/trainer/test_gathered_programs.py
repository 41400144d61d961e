"""Programs of replicas that gather weights at each use: all gather in one order, whatever micro-batches each has, and all end."""

from dataclasses import replace
from itertools import product

import pytest

from frostline_contract.operations import COMPUTING, Kind
from frostline_contract.schedules import BUILT_IN
from frostline_trainer.step.program_check import check_gathers, checked_gathers, checked_programs
from frostline_trainer.step.programs import Message, Program, StepShape, computation, enters, leaves, stays, with_fewer
from tests.split_backwards import takes

LEAF_SIZES = [((1,) * 4, (1,) * 5), ((2, 1), (1, 1)), ((1,), (1,) * 6, (1,) * 2), ((3,),)]


def all_end(replicas: list[list[Program]], shape: StepShape) -> bool:
    """Run all programs, where a computation waits for its input and, like a GATHER, for the others of its line."""
    places = {(replica, pp_rank): 0 for replica in range(len(replicas)) for pp_rank in range(shape.pp_degree)}
    landed: list[set[Message]] = [set() for _ in replicas]
    posted: list[set[Message]] = [set() for _ in replicas]
    moved = True

    def at_gather(replica: int, pp_rank: int) -> bool:
        """Go on to the next computation or GATHER; return whether there is one, with its input."""
        nonlocal moved
        program = replicas[replica][pp_rank].compute
        while places[replica, pp_rank] < len(program):
            one = program[places[replica, pp_rank]]
            if one.kind in COMPUTING or one.kind is Kind.GATHER:
                operation = computation(one)
                return operation is None or landed[replica].issuperset(enters(operation, shape))
            both = posted if one.kind is Kind.RECEIVE else landed
            both[replica].add(one.message)
            places[replica, pp_rank] += 1
            moved = True
        return False

    while moved:
        moved = False
        for pp_rank in range(shape.pp_degree):
            ready = [at_gather(replica, pp_rank) for replica in range(len(replicas))]
            if all(ready):
                moved = True
                for replica, programs in enumerate(replicas):
                    operation = computation(programs[pp_rank].compute[places[replica, pp_rank]])
                    if operation is not None:
                        landed[replica].update(one for one in leaves(operation, shape) if stays(one, shape))
                    places[replica, pp_rank] += 1
    return all(place == len(replicas[replica][pp_rank].compute) for (replica, pp_rank), place in places.items())


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("leaf_sizes", LEAF_SIZES, ids=lambda sizes: "-".join(str(sum(one)) for one in sizes))
def test_replicas_with_unequal_micro_batches_gather_in_one_order_and_end(
    name: str, leaf_sizes: tuple[tuple[int, ...], ...]
) -> None:
    for pp_degree, virtual in [(pp, v) for pp, v in product(range(1, 5), (1, 2)) if takes(name, pp, v)]:
        for first_learning in range(pp_degree if virtual == 1 else 1):
            shape = StepShape(pp_degree, virtual, 0, first_learning, folded=BUILT_IN[name].folded)
            replicas = checked_gathers(BUILT_IN[name], shape, leaf_sizes)
            assert all_end(replicas, shape), (pp_degree, virtual, first_learning)
            for programs, sizes in zip(replicas, leaf_sizes, strict=True):
                own = checked_programs(BUILT_IN[name], replace(shape, num_microbatches=sum(sizes)), sizes)
                computed = [[one for one in program.compute if one.kind in COMPUTING] for program in programs]
                assert [sorted(line) for line in computed] == [
                    sorted(one for one in program.compute if one.kind in COMPUTING) for program in own
                ], "it computes what it would without gathers"
                assert [program.exchange for program in programs] == [program.exchange for program in own]


def test_a_replica_that_leaves_out_or_swaps_gathers_is_found() -> None:
    (program,) = checked_programs(BUILT_IN["1f1b"], StepShape(1, 1, 4), (1,) * 4)
    fewer = with_fewer(program, 3)
    check_gathers([program, fewer], 0)
    assert [one.of for one in fewer.compute if one.kind is Kind.GATHER] == [Kind.FORWARD, Kind.BACKWARD]
    without = Program(tuple(one for one in fewer.compute if one.kind is not Kind.GATHER))
    with pytest.raises(ValueError, match="replica 1 on pp_rank 2 gathers in another order than replica 0, from computation 6 on"):
        check_gathers([program, without], 2)
    swapped = Program((fewer.compute[1], fewer.compute[0], *fewer.compute[2:]))
    with pytest.raises(ValueError, match="from computation 0 on"):
        check_gathers([program, swapped], 0)
