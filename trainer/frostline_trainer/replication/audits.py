"""Who computes what again in an audited step, and whose bits are wrong where they differ (docs/adr/0010-silent-corruption.md).

Functions of the plan and of digests that all members have: every member comes to the same answer.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frostline_contract.job.training import TrainingSection
from frostline_contract.plan import Plan
from frostline_contract.seeds import seed_of
from frostline_contract.shape import leaf_micro_batches
from frostline_trainer.replication.evidence import Digest


@dataclass(frozen=True)
class Audit:
    """One micro-batch of one stage, computed twice. Members by global rank.

    owner: who computes it in the schedule. judges: who else has the stage's weights, the auditor first; the owner itself where
    nobody has.
    """

    stage: int
    replica: int
    micro_batch: int
    owner: int
    judges: tuple[int, ...]

    @property
    def auditor(self) -> int:
        """Global rank of the member that computes it the second time."""
        return self.judges[0]


def audit_is_due(training: TrainingSection, step: int) -> bool:
    """Fast numerics promise no bits that could be compared."""
    every = training.audit_every_steps
    return every > 0 and step % every == 0 and training.numerics == "exact"


def audits_of(plan: Plan, seed: int, step: int, num_microbatches: int, num_leaves: int) -> list[Audit]:
    """What every member computes of one micro-batch of its replica's: all members work for the audit alike.

    The stage's next owner is the auditor, of another replica or of the group that shares its tiles; with one owner its buddy.
    """
    placement, shape, audits = plan.placement, plan.placement.shape, list[Audit]()
    for replica in range(shape.dp_degree):
        leaves = placement.leaves_of(replica)
        numbers = [m for leaf in leaves for m in leaf_micro_batches(leaf, num_microbatches, num_leaves)]
        if not numbers:
            continue
        number = numbers[seed_of("audit", seed, step, replica) % len(numbers)]
        for stage in range(shape.num_stages):
            holders = shape.owners_of(shape.pp_rank_of_stage(stage))
            for place in range(replica * shape.tp_degree, (replica + 1) * shape.tp_degree):
                owners = holders[place:] + holders[:place]  # the audited one first, then those behind it
                judges = owners[1:] or _keepers(plan, stage) or (owners[0],)
                audits.append(Audit(stage, replica, number, owners[0], judges))
    return audits


def _keepers(plan: Plan, stage: int) -> tuple[int, ...]:
    """The stage's buddy, where one member keeps all of its units."""
    units = plan.placement.units_of_stage(stage)
    keepers = {plan.buddies[piece] for piece in plan.pieces.of_units(units)} if plan.buddies else set()
    return (plan.placement.global_ranks[keepers.pop()],) if len(keepers) == 1 and "" not in keepers else ()


@dataclass(frozen=True)
class Verdict:
    """The judgement on members whose digests of one computation differ.

    culprits: global ranks whose bits are wrong. sure: it is these and no others; else all that it can be.
    """

    culprits: frozenset[int]
    sure: bool


def judge(owner: int, auditor: int, first: tuple[Digest, Digest], again: Mapping[int, Digest]) -> Verdict:
    """Two members came to different bits: who is wrong.

    first: the owner's and the auditor's. again: of all who have computed it (once more) since. What more than half of those
    agree on is right; where there is no such thing, who contradicts itself is wrong; else it is one of the two, or both.
    """
    said: dict[int, set[Digest]] = {member: {digest} for member, digest in again.items()}
    said.setdefault(owner, set()).add(first[0])
    said.setdefault(auditor, set()).add(first[1])
    counts = Counter(again.values())
    right, votes = counts.most_common(1)[0] if counts else (b"", 0)
    if 2 * votes > len(again):
        return Verdict(frozenset(member for member, digests in said.items() if digests != {right}), sure=True)
    fickle = frozenset(member for member, digests in said.items() if len(digests) > 1)
    return Verdict(fickle or frozenset((owner, auditor)), sure=bool(fickle))


def all_culprits(verdicts: Sequence[Verdict]) -> frozenset[int]:
    """Of several differences in one step: those that are sure name the culprits; the others only where none is."""
    sure = [verdict.culprits for verdict in verdicts if verdict.sure]
    return frozenset().union(*(sure or [verdict.culprits for verdict in verdicts]))
