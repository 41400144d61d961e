"""The digest of a model's initial weights: the same in every worker of a job, another for any other weight."""

import torch

from frostline_trainer.step.digests import weights_digest
from tests.exact_cases import Case, build_case


def test_initial_weights_have_one_digest_in_every_worker_and_no_other_weight_has_it() -> None:
    one, another = (build_case(Case("gpt2_tied")) for _ in range(2))
    digest = weights_digest(one)
    assert weights_digest(another) == digest
    another.moments[(0, "weight")] = {"exp_avg": torch.ones(1)}
    assert weights_digest(another) == digest, "moments are none of it"
    last = next(another.cut.units[-1].parameters())
    with torch.no_grad():
        last.view(-1)[0] = torch.nextafter(last.view(-1)[0], torch.tensor(9.0, dtype=last.dtype))
    assert weights_digest(another) != digest, "one bit of one weight"
