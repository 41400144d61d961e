"""Which small matrices learn in the place of a model's own weights: the job file's `model.adapters` section."""

import math
import re
from typing import Literal

from pydantic import model_validator

from frostline_contract.job.section import Section, fixed

SHARES = {"half": 2, "third": 3, "quarter": 4}
"""Words for a share of the blocks, and the number that divides them."""
FORMS = f"all, last N, last {', last '.join(SHARES)}, FIRST-LAST, or a list of blocks, which count from 0"


class AdaptersSection(Section):
    """LoRA, by the library `peft`: in chosen blocks each target gets a product of two narrow matrices beside its own weights.
    These and the head learn, the model's own weights never do. Not with training.token_cells, nor with
    rows or hidden of training.tensor_tiles."""

    kind: Literal["lora"] = fixed("lora", doc="The only kind.")
    rank: int = fixed(8, ge=1, le=4096, doc="Width between the two matrices.")
    alpha: float = fixed(16.0, gt=0.0, doc="What the product counts: alpha / rank.")
    dropout: float = fixed(
        0.0,
        ge=0.0,
        lt=1.0,
        doc="Of what enters the two matrices; drawn as all dropout is, from seed, step, micro-batch and unit.",
    )
    targets: tuple[str, ...] = fixed(
        (), doc="Names of linear layers within a block, or how they end, e.g. [query, value]; empty: every linear layer."
    )
    blocks: str | tuple[int, ...] = fixed("all", doc=f"Which blocks: {FORMS}. The units before the first one never learn.")

    @model_validator(mode="after")
    def _blocks_are_said(self) -> "AdaptersSection":
        if isinstance(self.blocks, str):
            if not re.fullmatch(rf"all|last ([1-9]\d{{0,5}}|{'|'.join(SHARES)})|\d{{1,6}}-\d{{1,6}}", self.blocks):
                raise ValueError(f"blocks is {self.blocks!r}; write {FORMS}")
        elif not self.blocks or len(set(self.blocks)) < len(self.blocks):
            raise ValueError(f"blocks is {list(self.blocks)}; name at least one block, and each once")
        if any(not target.strip() for target in self.targets):
            raise ValueError("targets holds an empty name; leave targets empty for every linear layer")
        return self


def blocks_with_adapters(section: AdaptersSection, num_blocks: int) -> tuple[int, ...]:
    """The blocks that get adapters, ascending, from 0. A share is rounded up.

    Raises ValueError for blocks that the model does not have, with field, value and remedy.
    """
    said = section.blocks
    if not isinstance(said, str):
        chosen = tuple(sorted(said))
    elif said == "all":
        chosen = tuple(range(num_blocks))
    elif said.startswith("last "):
        word = said.removeprefix("last ")
        count = math.ceil(num_blocks / SHARES[word]) if word in SHARES else int(word)
        chosen = tuple(range(num_blocks - count, num_blocks))
    else:
        first, last = map(int, said.split("-"))
        chosen = tuple(range(first, last + 1))
    if not chosen or chosen[0] < 0 or chosen[-1] >= num_blocks:
        named = repr(said) if isinstance(said, str) else str(list(said))
        raise ValueError(f"model.adapters.blocks is {named} and the model has the blocks 0 to {num_blocks - 1}; write {FORMS}")
    return chosen
