"""The arguments of `frostline reshape`."""

import argparse
from collections.abc import Callable
from typing import get_args

from frostline_contract.job.cluster import ScheduledReshape
from frostline_contract.schedules import BUILT_IN

RESHAPE = "Give the run another shape: degrees, and how the pipeline, the replicas and the groups of that shape work."
RESHAPE_EXAMPLES = (
    "reshape runs/digits --pp 2 --dp 2\n"
    "  frostline reshape runs/digits --pp 3 --dp 1 --schedule zb_h1\n"
    "  frostline reshape runs/digits --pp 2 --dp 2 --schedule interleaved_1f1b --virtual-stages 2\n"
    "  frostline reshape runs/gpt2 --pp 4 --dp 1 --slices 3            # needs training.token_cells of 3 or more\n"
    "  frostline reshape runs/gpt2 --pp 1 --dp 4 --shard step          # needs training.state_ranges of 4 or more\n"
    "  frostline reshape runs/gpt2 --pp 1 --dp 1 --tp 2 --tensor-rows split    # needs training.tensor_tiles\n"
    "  frostline reshape runs/gpt2 --pp 1 --dp 1 --tp 2 --tp-depth 2    # needs training.tensor_tiles.hidden of 2 or more\n"
    "The options are the fields of the job's `reshapes` (`frostline job --explain reshapes`); what is left out is as the\n"
    "defaults above say, whatever the run's present shape has. A shape that this run cannot have is refused at once, with the\n"
    "field, its value and a remedy. Training goes on until the shape is prepared; with exact numerics no bit of any result\n"
    "changes. The shape holds until something freezes; an event says when it is in force, or why it is not."
)


def reshape_arguments(parser: argparse.ArgumentParser, positive: Callable[[str], int]) -> None:
    """Add the arguments to the subcommand's parser. positive: reads a count."""
    parser.add_argument("--pp", type=positive, required=True, metavar="N", help="pipeline depth")
    parser.add_argument("--dp", type=positive, required=True, metavar="N", help="replicas")
    parser.add_argument("--tp", type=positive, default=1, metavar="N", help="workers that share each stage's tiles (default: 1)")
    parser.add_argument(
        "--tp-depth", type=positive, default=1, metavar="N",
        help="workers over which the hidden width of each tile is cut as well (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--schedule", metavar="NAME",
        help=f"order of a pipeline's work: {', '.join(BUILT_IN)}, an own one, or auto, the planner's choice (default: 1f1b)",
    )  # fmt: skip
    parser.add_argument(
        "--virtual-stages", type=positive, metavar="N",
        help="stages a rank with interleaved_1f1b, at least 2; zb_v, v_half and v_min have two by themselves",
    )  # fmt: skip
    parser.add_argument(
        "--slices", type=positive, metavar="N",
        help="token slices of a micro-batch, at most the cells of training.token_cells (default: placement.slices)",
    )  # fmt: skip
    parser.add_argument(
        "--shard", choices=choices("shard"),
        help="what of a stage's state one replica alone has: none; step, moments and sums of gradients; use, weights too "
        "(default: placement.shard)",
    )  # fmt: skip
    parser.add_argument(
        "--tensor-rows", choices=choices("tensor_rows"),
        help="whether each worker of a group has all samples between tiled layers or its part (default: placement.tensor_rows)",
    )  # fmt: skip


def choices(field: str) -> list[str]:
    """The words that a field of a reshape takes."""
    either = get_args(ScheduledReshape.model_fields[field].annotation)
    return [word for part in either for word in get_args(part)]
