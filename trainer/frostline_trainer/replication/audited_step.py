"""A member's part in an audited step: members recompute a micro-batch of each other's work, and compare digests.

The audit takes place between the schedule and the exchange, with the same weights as the schedule, so nothing is copied, and a
step whose audit differs is never voted on. Members send each other a stage's input and its output's gradient, of one micro-batch.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from frostline_contract.plan import Plan
from frostline_trainer.replication.audits import Audit, Verdict, all_culprits, judge
from frostline_trainer.replication.evidence import ABSENT, DIGEST_BYTES, Digest, Evidence
from frostline_trainer.replication.wrong_bits import WrongBits
from frostline_trainer.step.context import RunContext
from frostline_trainer.transport.collectives import Group, Message, wait_all

AUDIT_TAG = 1 << 25
"""First tag of evidence: above the tags of gradients for buddies (`replication.buddies`), which use the same group."""

Pair = tuple[Digest, Digest]


class ComputationDiffers(WrongBits):
    """Members computed the same micro-batch and got different bits. workers: those whose bits are, or may be, wrong."""


class Auditing:
    """One member's part in the audits of a step.

    Args:
        index: Own global rank.
        again: (audit, evidence) -> digest of the recomputation on this member; ABSENT if it lacks a piece of the stage.
    """

    def __init__(
        self, context: RunContext, plan: Plan, index: int, world: Group, again: Callable[[Audit, Evidence], Digest]
    ) -> None:
        self._context, self._plan, self._index, self._world, self._again = context, plan, index, world, again

    def check(self, step: int, audits: Sequence[Audit], kept: Mapping[int, Evidence]) -> None:
        """Carry out the audits. Collective. kept: own evidence, by stage. Raises ComputationDiffers, on all members alike."""
        seen = self._bring(audits, kept, {audit: (audit.auditor,) for audit in audits})
        own = {audit: kept[audit.stage].digest for audit in audits if audit.owner == self._index}
        again = {audit: self._again(audit, evidence) for audit, evidence in seen.items()}
        said = self._exchange([{0: own.get(audit), 1: again.get(audit)} for audit in audits], columns=2)
        pairs = {audit: (one, other) for audit, (one, other) in zip(audits, said, strict=True)}
        disputed = {audit: pair for audit, pair in pairs.items() if ABSENT not in pair and pair[0] != pair[1]}
        if disputed:
            raise self._differ(step, disputed, self._recomputed_with(disputed, audits), kept, seen)

    def _recomputed_with(self, disputed: Collection[Audit], audits: Sequence[Audit]) -> list[Audit]:
        """The audits whose work is recomputed once more: the disputed ones, and those of the other members of their groups,
        which recompute together: their own work first, then that of others, so that all of a group compute in one order."""
        if not self._plan.placement.divides_tiles:
            return list(disputed)
        groups = {(audit.stage, audit.replica) for audit in disputed}
        again = [audit for audit in audits if (audit.stage, audit.replica) in groups]
        return sorted(again, key=lambda audit: audit.owner != self._index)

    def _differ(
        self, step: int, disputed: Mapping[Audit, Pair], again_all: Sequence[Audit], kept: Mapping[int, Evidence],
        seen: dict[Audit, Evidence],
    ) -> ComputationDiffers:  # fmt: skip
        """Let all members that can do so recompute the disputed work, to find out whose bits are wrong.

        again_all: from `_recomputed_with`.
        """
        seen |= self._bring(again_all, kept, {audit: audit.judges[1:] for audit in again_all})
        seen |= {audit: kept[audit.stage] for audit in again_all if audit.owner == self._index}
        again = {audit: self._again(audit, seen[audit]) for audit in again_all if audit in seen}
        size = self._world.size
        said = self._exchange([{self._index: again.get(audit)} for audit in disputed], columns=size)
        verdicts, stories = list[Verdict](), list[str]()
        for (audit, pair), row in zip(disputed.items(), said, strict=True):
            later = {member: digest for member, digest in enumerate(row) if digest != ABSENT}
            verdicts.append(judge(audit.owner, audit.auditor, pair, later))
            stories.append(self._story(audit, pair, later))
        names = self._plan.placement.workers
        culprits = tuple(names[member] for member in sorted(all_culprits(verdicts)))
        number = next((place for place, verdict in enumerate(verdicts) if verdict.sure), 0)
        text = f"in step {step} a micro-batch computed twice came out with different bits: {stories[number]}"
        return ComputationDiffers(text, step, culprits, self._detail(step, list(disputed)[number], verdicts[number]))

    def _story(self, audit: Audit, pair: Pair, later: Mapping[int, Digest]) -> str:
        units, names = self._plan.placement.units_of_stage(audit.stage), self._plan.placement.workers
        said = [(audit.owner, pair[0]), (audit.auditor, pair[1]), *later.items()]
        digests = ", ".join(f"{names[member]} {digest.hex()[:8]}" for member, digest in said)
        return f"micro-batch {audit.micro_batch} in units {units.start} to {units.stop - 1}: {digests}"

    def _detail(self, step: int, audit: Audit, verdict: Verdict) -> dict[str, str]:
        units = self._plan.placement.units_of_stage(audit.stage)
        return {
            "audited_step": str(step),
            "micro_batch": str(audit.micro_batch),
            "units": f"{units.start}-{units.stop - 1}",
            "certain": "yes" if verdict.sure else "no: each repeats its own bits",
        }

    # ---- what travels

    def _bring(
        self, audits: Sequence[Audit], kept: Mapping[int, Evidence], receivers: Mapping[Audit, Sequence[int]]
    ) -> dict[Audit, Evidence]:
        """Send the owners' evidence to the members that recompute it. Returns the evidence that this member has received."""
        sent, here = list[Message](), dict[Audit, Evidence]()
        for audit in audits:
            if audit.owner == self._index:
                for receiver in receivers[audit]:
                    if receiver == self._index:
                        here[audit] = kept[audit.stage]
                    else:
                        sent += self._send(audit, kept[audit.stage], receiver)
        for audit in audits:
            if self._index in receivers[audit] and audit.owner != self._index:
                here[audit] = self._receive(audit)
        wait_all(sent)
        return here

    def _send(self, audit: Audit, evidence: Evidence, to: int) -> list[Message]:
        tag = self._tag(audit)
        parts = [evidence.entry, evidence.gradient]
        header = torch.tensor([0 if part is None else part.shape[0] for part in parts])
        messages = [self._world.send(header, to, tag)]
        messages += [self._world.send(part.detach(), to, tag + 1 + place) for place, part in enumerate(parts) if part is not None]
        return messages

    def _receive(self, audit: Audit) -> Evidence:
        tag, header = self._tag(audit), torch.zeros(2, dtype=torch.int64)
        self._world.receive(header, audit.owner, tag)
        parts = list[torch.Tensor | None]()
        for place, samples in enumerate(header.tolist()):
            part = torch.empty_like(self._context.hidden_like()[:samples]) if samples else None
            if part is not None:
                self._world.receive(part, audit.owner, tag + 1 + place)
            parts.append(part)
        return Evidence(parts[0], parts[1], ABSENT)

    def _tag(self, audit: Audit) -> int:
        return AUDIT_TAG + 3 * audit.stage

    def _exchange(self, rows: Sequence[Mapping[int, Digest | None]], columns: int) -> list[list[Digest]]:
        """Exchange digests: an all-reduce of a table in which each entry has one contributor."""
        table = torch.zeros(len(rows), columns, DIGEST_BYTES, dtype=torch.int32)
        for place, row in enumerate(rows):
            for column, digest in row.items():
                if digest is not None:
                    table[place, column] = torch.tensor(list(digest), dtype=torch.int32)
        self._world.all_reduce_sum(table)
        return [[bytes(digest) for digest in row] for row in table.tolist()]
