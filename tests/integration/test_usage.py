"""Measured traffic and memory of replicas, whole and sharded, equal their formulas to the byte."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from frostline_contract.shape import ParallelShape
from frostline_contract.usage import Held, Way
from frostline_controller.planner.tensor.traffic import Axes, traffic
from frostline_trainer.step.alignment import ALIGNMENT_BYTES
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.gradients import UNIT_ALIGNMENT, GradientBuffers
from frostline_trainer.step.parts import parts_of, weights_of
from frostline_trainer.step.share import Shares, pieces_of_member, pieces_of_replica
from frostline_trainer.step.tile_state import keep_tiles
from frostline_trainer.tensor.state import is_cut
from frostline_trainer.tensor.tiles import Tiles
from tests.engine_member import Run
from tests.exact_cases import BLOCKS, MICRO_BATCH, NUM_MICROBATCHES, Case, build_case
from tests.hand_made_plans import Layout, Segment, grouped, run_series
from tests.warm_workers import WarmWorkers

STEPS, RANGES, FLOAT = 3, 4, 4
CASE = Case("gpt2_untied", freezing=(), steps=STEPS, state_ranges=RANGES)


def padded(number: int, multiple: int) -> int:
    return number + -number % multiple


def flat_bytes(context: RunContext, replicas: int) -> int:
    """Return the bytes of a flat gradient: parameters aligned to 64 bytes, units to 128 elements, a chunk for each replica."""
    length = 0
    for unit in context.cut.units:
        length += padded(sum(padded(p.numel(), ALIGNMENT_BYTES // FLOAT) for p in unit.parameters()), UNIT_ALIGNMENT)
    return FLOAT * padded(length, replicas * UNIT_ALIGNMENT)


def room_bytes(context: RunContext, shape: ParallelShape, tp_rank: int = 0) -> list[int]:
    """Return the bytes that each replica adds to the gather of each unit: those of the replica that owns most. In groups each
    line of members has such gathers."""
    table, found = context.pieces, list[int]()
    for index, unit in enumerate(context.cut.units):
        owned = []
        for replica in range(shape.dp_degree):
            pieces = pieces_of_member(table, index, shape, replica, tp_rank)
            ends = 0
            for part in [part for piece in pieces for part in parts_of(table, piece, unit)]:
                ends = padded(ends, ALIGNMENT_BYTES) + FLOAT * (part.high - part.low)
            owned.append(ends)
        found.append(max(owned))
    return found


def share_lengths(context: RunContext, shape: ParallelShape, tp_rank: int = 0) -> list[int]:
    """Return the number of elements of each replica's packed share of the gradient; in groups of a line of members."""
    groups = [(index, list(unit.parameters())) for index, unit in enumerate(context.cut.units)]
    buffers = GradientBuffers(groups, num_microbatches=1, num_leaves=1)
    return [share.length for share in Shares(context, buffers, 0, shape, tp_rank).all]


def total(runs: Sequence[Run], way: Way) -> int:
    sent, received = (sum(figures.get(way, 0) for figures in one) for one in ([r.sent for r in runs], [r.received for r in runs]))
    assert sent == received, f"{way}: {sent} bytes are sent and {received} received"
    return sent


def moments_of_replica(context: RunContext, shape: ParallelShape, replica: int) -> int:
    """Return the bytes of a replica's moments: two numbers for each element, a step count for each piece and parameter."""
    table, found = context.pieces, 0
    for index, unit in enumerate(context.cut.units):
        for piece in pieces_of_replica(table, index, replica, shape):
            found += sum(2 * FLOAT * (part.high - part.low) + FLOAT for part in parts_of(table, piece, unit))
    return found


@pytest.mark.parametrize("replicas", [2, 4])
def test_replicas_carry_and_hold_what_the_formulas_say(replicas: int, warm_workers: WarmWorkers) -> None:
    context, shape = build_case(CASE), ParallelShape(1, replicas)
    numbers = sum(p.numel() for unit in context.cut.units for p in unit.parameters())
    whole = run_series(warm_workers, CASE, [Segment(Layout(1, replicas), STEPS)], score=False)
    for run in whole:
        assert (
            run.sent[Way.DP_GRADIENTS] == run.received[Way.DP_GRADIENTS] == all_reduced(flat_bytes(context, replicas), replicas)
        )
        assert Way.DP_WEIGHTS not in run.sent and Way.PP not in run.sent
        assert run.resident[Held.WEIGHTS] == FLOAT * sum(t.numel() for u in context.cut.units for t in weights_of(u).values())
    sharded = run_series(warm_workers, CASE, [Segment(Layout(1, replicas, shard="step"), STEPS)], score=False)
    lengths, rooms = share_lengths(context, shape), sum(room_bytes(context, shape))
    for replica, run in enumerate(sharded):
        others = [length for other, length in enumerate(lengths) if other != replica]
        assert run.sent[Way.DP_GRADIENTS] == STEPS * FLOAT * sum(others), "to each other one its share of this one's node"
        assert run.received[Way.DP_GRADIENTS] == STEPS * FLOAT * (replicas - 1) * lengths[replica]
        assert run.sent[Way.DP_WEIGHTS] == run.received[Way.DP_WEIGHTS] == STEPS * (replicas - 1) * rooms
        assert run.resident[Held.MOMENTS] == moments_of_replica(context, shape, replica)
    moments = [run.resident[Held.MOMENTS] for run in sharded]
    assert {run.resident[Held.MOMENTS] for run in whole} == {sum(moments)}, "together they hold what each whole replica holds"
    assert all(abs(replicas * one - sum(moments)) < 0.05 * sum(moments) for one in moments), "a range is cut at 64 elements"
    assert sum(moments) >= 2 * FLOAT * numbers


@pytest.mark.parametrize("replicas", [2, 4])
def test_weights_gathered_at_each_use_travel_as_the_formula_says_and_take_a_replicas_part(
    replicas: int, warm_workers: WarmWorkers
) -> None:
    """A micro-batch goes forward and backward through all units. Uses of the head follow each other, and uses of the embedding
    but for the first and the last; so they share a gather. An audit is one micro-batch more, after the schedule."""
    context, shape = build_case(CASE), ParallelShape(1, replicas)
    runs = run_series(warm_workers, CASE, [Segment(Layout(1, replicas, shard="use"), STEPS)], score=False)
    most = -(-NUM_MICROBATCHES // replicas)
    embedding, *blocks, head = room_bytes(context, shape)
    gathered = sum((2 * sum(blocks) * count + head * count + embedding * (count + 1)) for count in (most, 1))
    lengths = share_lengths(context, shape)
    for replica, run in enumerate(runs):
        assert run.sent[Way.DP_WEIGHTS] == run.received[Way.DP_WEIGHTS] == STEPS * (replicas - 1) * gathered
        assert run.received[Way.DP_GRADIENTS] == STEPS * FLOAT * (replicas - 1) * lengths[replica]
        assert run.resident[Held.WEIGHTS] == weights_of_replica(context, shape, replica)
        assert run.resident[Held.MOMENTS] == moments_of_replica(context, shape, replica)
        assert run.module_bytes == 0, "between steps no module holds weights"
    numbers = sum(p.numel() for unit in context.cut.units for p in unit.parameters())
    assert sum(run.resident[Held.WEIGHTS] for run in runs) == FLOAT * numbers, "together they hold the model once"


def weights_of_replica(context: RunContext, shape: ParallelShape, replica: int) -> int:
    """Return the bytes of the weights that a replica owns."""
    table, found = context.pieces, 0
    for index, unit in enumerate(context.cut.units):
        for piece in pieces_of_replica(table, index, replica, shape):
            found += sum(FLOAT * (part.high - part.low) for part in parts_of(table, piece, unit))
    return found


def all_reduced(size: int, replicas: int) -> int:
    return STEPS * 2 * size * (replicas - 1) // replicas


def test_stages_and_buddies_carry_what_the_formulas_say(warm_workers: WarmWorkers) -> None:
    """Each micro-batch's boundary activation travels once, and its gradient back; each piece's gradient once to its buddy."""
    context = build_case(CASE)
    runs = run_series(warm_workers, CASE, [Segment(Layout(2, 1), STEPS, domains=(0, 1))], score=False)
    tokens, width = context.hidden_shape
    assert total(runs, Way.PP) == STEPS * 2 * NUM_MICROBATCHES * MICRO_BATCH * tokens * width * FLOAT
    lengths = [padded_unit(unit) for unit in context.cut.units]
    assert total(runs, Way.BUDDIES) >= STEPS * FLOAT * sum(p.numel() for unit in context.cut.units for p in unit.parameters())
    assert total(runs, Way.BUDDIES) <= STEPS * FLOAT * sum(lengths)
    assert [list(held(run)) for run in runs] == [[Held.WEIGHTS, Held.GRADIENTS, Held.MOMENTS, Held.BUDDIES]] * 2


def block_sums(case: Case, columns: int, replicas: int = 1) -> int:
    """Return the bytes that all members send in the products of all blocks, by the planner's closed form."""
    tokens, width = build_case(case).hidden_shape
    axes, rows = Axes(columns=columns, replicas=replicas), STEPS * NUM_MICROBATCHES * MICRO_BATCH * tokens
    return round(BLOCKS * axes.size * traffic(axes, rows, width).columns) * FLOAT


@pytest.mark.parametrize("columns", [2, 4])
def test_a_group_sends_in_its_blocks_what_the_planners_formula_says(columns: int, warm_workers: WarmWorkers) -> None:
    """Nothing else crosses a group: there is one stage, no audit, and each tile's state is where the tile is computed."""
    case = replace(CASE, state_ranges=1, inner_tiles=4, audit_every=0)
    runs = run_series(warm_workers, case, [Segment(grouped(1, 1, columns), STEPS)], score=False)
    assert {run.sent[Way.TP] for run in runs} == {run.received[Way.TP] for run in runs} == {block_sums(case, columns) // columns}
    assert all(Way.PP not in run.sent and Way.DP_GRADIENTS not in run.sent and Way.DP_WEIGHTS not in run.sent for run in runs)


@pytest.mark.parametrize(("columns", "levels"), [(2, 2), (1, 2)])
def test_a_group_with_levels_carries_and_holds_what_the_formulas_say(
    columns: int, levels: int, warm_workers: WarmWorkers
) -> None:
    """Each layer's sum crosses the axis of the width that it sums over, in the part that a member has of the other width; what
    has the hidden width is gathered over the levels then. Column biases are whole, and their gradient is collected over the
    columns. With two members of an axis a sum brings and takes each its own size once."""
    case = replace(CASE, state_ranges=1, inner_tiles=2, hidden_tiles=2, audit_every=0)
    runs = run_series(warm_workers, case, [Segment(grouped(1, 1, columns, depth=levels), STEPS)], score=False)
    context = build_case(case)
    tokens, width = context.hidden_shape
    hidden, wide = MICRO_BATCH * tokens * width * FLOAT, context.cut.model.config.n_inner // width
    inner = (3 + wide) * hidden // columns  # of column layers: query, key and value; the feed-forward
    entries = (1 + wide) * hidden // columns  # of row layers: the attention's output; the feed-forward's
    over_levels = ring(inner, levels) + ring(entries, levels)
    gathered = 4 * hidden * (levels - 1) // levels  # outputs of row layers, and gradients of column layers' inputs
    over_columns = 4 * ring(hidden // levels, columns) + sum(ring(part * width * FLOAT, columns) for part in (3, wide))
    expected = STEPS * NUM_MICROBATCHES * BLOCKS * (over_levels + gathered + over_columns)
    assert {run.sent[Way.TP] for run in runs} == {run.received[Way.TP] for run in runs} == {expected}
    assert all(Way.PP not in run.sent and Way.DP_GRADIENTS not in run.sent and Way.DP_WEIGHTS not in run.sent for run in runs)
    uncut = {name for name, _ in context.cut.units[1].named_parameters() if not is_cut(context.cut.units[1], name)}
    assert {name for name in uncut if name.endswith("weight")} == {"layer.ln_1.weight", "layer.ln_2.weight"}
    parameters = [(name in uncut, p.numel()) for unit in context.cut.units[1:-1] for name, p in unit.named_parameters()]
    others = sum(p.numel() for unit in (context.cut.units[0], context.cut.units[-1]) for p in unit.parameters())
    numbers = others + sum(count if is_whole else count // (columns * levels) for is_whole, count in parameters)
    assert {run.resident[Held.WEIGHTS] for run in runs} == {FLOAT * numbers}


def ring(size: int, members: int) -> int:
    """Return the bytes that a member of a ring sends, and receives, for a sum of `size` bytes."""
    return 2 * size * (members - 1) // members


@pytest.mark.parametrize("shard", ["step", "use"])
def test_groups_whose_replicas_share_state_out_send_what_the_formulas_say(shard: str, warm_workers: WarmWorkers) -> None:
    """Each member exchanges shares of its own tiles, and of what no tile cuts, along its own line, and gathers weights there; a
    group sends what its blocks do, and nothing of gradients or weights."""
    case, columns, replicas = replace(CASE, inner_tiles=2, audit_every=0), 2, 2
    layout = grouped(1, replicas, columns, shard=shard)
    runs, shape = run_series(warm_workers, case, [Segment(layout, STEPS)], score=False), layout.shape
    for global_rank, run in enumerate(runs):
        context, replica, place = build_case(case), shape.dp_rank(global_rank), shape.tp_rank(global_rank)
        for index, unit in enumerate(context.cut.units):
            keep_tiles(unit, context.pieces, index, Tiles(columns, place, 1, lambda node: node), ())
        lengths, rooms = share_lengths(context, shape, place), room_bytes(context, shape, place)
        assert run.sent[Way.DP_GRADIENTS] == STEPS * FLOAT * lengths[1 - replica]
        assert run.received[Way.DP_GRADIENTS] == STEPS * FLOAT * lengths[replica]
        most = -(-NUM_MICROBATCHES // replicas)
        embedding, *blocks, head = rooms
        at_use = 2 * sum(blocks) * most + head * most + embedding * (most + 1)
        gathered = sum(rooms) if shard == "step" else at_use
        assert run.sent[Way.DP_WEIGHTS] == run.received[Way.DP_WEIGHTS] == STEPS * gathered
    assert total(runs, Way.TP) == block_sums(case, columns, replicas)


def test_a_group_receives_a_message_once_and_gathers_it(warm_workers: WarmWorkers) -> None:
    """Between stages as many bytes go to a group as to one worker; within it each member gets the others' shares."""
    case, columns = replace(CASE, state_ranges=1, inner_tiles=2), 2
    found = {}
    for stages in (1, 2):
        layout = Layout(stages, 1, tp_columns=columns)
        found[stages] = run_series(warm_workers, case, [Segment(layout, STEPS)], score=False)
    tokens, width = build_case(case).hidden_shape
    crossing = STEPS * 2 * NUM_MICROBATCHES * MICRO_BATCH * tokens * width * FLOAT
    assert total(found[1], Way.PP) == 0 and total(found[2], Way.PP) == crossing
    assert {run.sent[Way.PP] for run in found[2]} == {crossing // 4}, "each member sends half of the activations, or gradients"
    gathered = total(found[2], Way.TP) - total(found[1], Way.TP)
    assert gathered == (columns - 1) * crossing, "sums over tiles and gathers of gradients are those of one stage"


def test_a_group_that_divides_samples_sends_no_byte_more_between_its_blocks(warm_workers: WarmWorkers) -> None:
    """Beside what a group with whole samples sends: the gradients of norms and biases, summed over the group, a gather before the
    head, and one of the embedding's gradient. A message between stages is what a member has of a tensor, and is not gathered."""
    case, columns = replace(CASE, state_ranges=1, inner_tiles=2, row_tiles=2, audit_every=0), 2
    found = {}
    for stages, rows in ((1, "whole"), (1, "split"), (2, "split")):
        layout = Layout(stages, 1, tp_columns=columns, tensor_rows=rows)
        found[stages, rows] = run_series(warm_workers, case, [Segment(layout, STEPS)], score=False)
    context = build_case(case)
    tokens, width = context.hidden_shape
    hidden, micro_batches = MICRO_BATCH * tokens * width * FLOAT, STEPS * NUM_MICROBATCHES
    uncut = [p for unit in context.cut.units[1:-1] for name, p in unit.named_parameters() if not is_cut(unit, name)]
    sums = columns * micro_batches * FLOAT * sum(p.numel() for p in uncut)
    more = {key: total(runs, Way.TP) - total(found[1, "whole"], Way.TP) for key, runs in found.items()}
    assert more[1, "split"] == more[2, "split"] == (columns - 1) * 2 * micro_batches * hidden + sums
    assert total(found[2, "split"], Way.PP) == 2 * micro_batches * hidden


def padded_unit(unit: object) -> int:
    parameters = unit.parameters()  # type: ignore[attr-defined]
    return padded(sum(padded(p.numel(), ALIGNMENT_BYTES // FLOAT) for p in parameters), UNIT_ALIGNMENT)


def held(run: Run) -> Mapping[str, int]:
    return {kind: count for kind, count in run.resident.items() if count}
