"""A group deals the frozen prefix's micro-batches out, and every member has all of their boundary activations."""

from collections.abc import Sequence

import pytest
import torch

from frostline_trainer.prefix.dealing import DealtPrefix, all_have
from frostline_trainer.transport.collectives import Group
from tests.unit.trainer.group_threads import in_group

SIZE = 3


class Reader:
    """Gives each sample a row of its own, and records the requested samples."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.audited: list[int] = []

    def rows(self, samples: Sequence[int], variants: Sequence[int]) -> torch.Tensor:
        self.asked += samples
        values = [[100.0 * sample + variant] * 4 for sample, variant in zip(samples, variants, strict=True)]
        return torch.tensor(values, dtype=torch.bfloat16).view(-1, 2, 2)

    def audit(self, samples: Sequence[int], variants: Sequence[int], rows: torch.Tensor, step: int) -> None:
        assert torch.equal(rows, self.rows(samples, variants))
        self.audited += samples

    def prefetch(self, samples: Sequence[int], variants: Sequence[int]) -> None:
        self.asked += samples


@pytest.mark.parametrize(("members", "count"), [(2, 2), (2, 5), (4, 7)])
def test_each_micro_batch_is_read_once_and_all_have_all(members: int, count: int) -> None:
    samples, variants = list(range(count * SIZE)), [sample % 2 for sample in range(count * SIZE)]
    samples[-1] = -1

    def member(group: Group) -> Reader:
        own = Reader()
        dealt = DealtPrefix(own, group, SIZE)  # type: ignore[arg-type]
        rows = dealt.rows(samples, variants)
        assert torch.equal(rows, Reader().rows(samples, variants))
        read = list(own.asked)
        dealt.audit(samples, variants, rows, 1)
        dealt.prefetch(samples, variants)
        assert own.audited == read and own.asked == 3 * read, "audits and prefetches are of what is read here"
        return own

    found = in_group(members, member)
    assert [sample for one in found for sample in one.audited] == samples
    assert all(one.audited for one in found)


def test_nothing_is_dealt_where_a_member_reads_no_cache() -> None:
    cpu = torch.device("cpu")
    assert in_group(2, lambda group: all_have(group, Reader() if group.index else None, cpu)) == [False, False]
    assert in_group(2, lambda group: all_have(group, Reader(), cpu)) == [True, True]
