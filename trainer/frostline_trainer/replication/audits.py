"""The rules of audits: who recomputes what, and whose bits are wrong if they differ (docs/adr/0010-silent-corruption.md).

All are functions of the plan and of digests that all members have, so every member gets the same answer.
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
    """One micro-batch of one stage that is computed twice. Members are given by global rank.

    owner: the member that computes it in the schedule. judges: the other members with the stage's weights, the auditor first; the
    owner itself if there is none.
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
    """Whether a step is audited; never with fast numerics, whose bits may differ between members."""
    every = training.audit_every_steps
    return every > 0 and step % every == 0 and training.numerics == "exact"


def audits_of(plan: Plan, seed: int, step: int, num_microbatches: int, num_leaves: int) -> list[Audit]:
    """The audits of a step: of each replica one micro-batch, in all stages, so that all members have equal extra work.

    The auditor is the stage's next owner, in another replica; with one owner, its buddy. In tensor-parallel groups it is the
    member of the next replica in the same place, so that a group audits another one together; with one replica a group audits
    itself, each member computing in the place of the next column at its level, or with one column in that of the next level: so
    members that sum with each other do the work of members that do.
    """
    placement, shape, audits = plan.placement, plan.placement.shape, list[Audit]()
    next_place = shape.tp_depth if shape.tp_columns > 1 else 1
    for replica in range(shape.dp_degree):
        leaves = placement.leaves_of(replica)
        numbers = [m for leaf in leaves for m in leaf_micro_batches(leaf, num_microbatches, num_leaves)]
        if not numbers:
            continue
        number = numbers[seed_of("audit", seed, step, replica) % len(numbers)]
        for stage in range(shape.num_stages):
            holders = shape.owners_of(shape.pp_rank_of_stage(stage))
            for place in shape.places_of_owners(replica):
                if placement.divides_tiles:
                    same = shape.mesh.line(holders[place], "dp")  # one of each replica, in this place
                    judges = (*same[replica + 1 :], *same[:replica]) or (holders[place - next_place],)
                else:
                    successors = holders[place + 1 :] + holders[:place]
                    judges = successors or _stage_buddy(plan, stage) or (holders[place],)
                audits.append(Audit(stage, replica, number, holders[place], judges))
    return audits


def _stage_buddy(plan: Plan, stage: int) -> tuple[int, ...]:
    """The stage's buddy, if one member keeps all of its units."""
    units = plan.placement.units_of_stage(stage)
    buddies = {plan.buddies[piece] for piece in plan.pieces.of_units(units)} if plan.buddies else set()
    return (plan.placement.global_ranks[buddies.pop()],) if len(buddies) == 1 and "" not in buddies else ()


@dataclass(frozen=True)
class Verdict:
    """The verdict on members whose digests of one computation differ.

    culprits: global ranks whose bits are wrong. sure: whether exactly these are wrong; otherwise they are all candidates.
    """

    culprits: frozenset[int]
    sure: bool


def judge(owner: int, auditor: int, first: tuple[Digest, Digest], again: Mapping[int, Digest]) -> Verdict:
    """Judge whose bits are wrong, of two members with different digests.

    A digest on which more than half of the members in `again` agree is right. Without such a majority, a member whose second
    digest differs from its first is wrong. Otherwise one of the two is, or both.

    Args:
        owner, auditor: The two members, by global rank.
        first: The owner's and the auditor's digest.
        again: Digests of all members that have recomputed the work since.
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
    """All culprits of several differences in one step: of the sure verdicts, or of all verdicts if none is sure."""
    sure = [verdict.culprits for verdict in verdicts if verdict.sure]
    return frozenset().union(*(sure or [verdict.culprits for verdict in verdicts]))
