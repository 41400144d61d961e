"""Contract records and protobuf messages say the same: field by field, and through the one converter."""

import math
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from frostline_contract import device, plan, statistics, usage
from frostline_contract.job import JobError, job_from_json, job_to_json, parse_job
from frostline_proto.v1 import control_pb2, plan_pb2
from frostline_rpc.auth import ALLOWED
from frostline_rpc.channel import IDEMPOTENT, SERVICES
from frostline_rpc.convert import to_message, to_record
from frostline_rpc.errors import InvalidRequest
from tests.e2e.runs import TINY_DIGITS, merged

PAIRS: list[tuple[type[BaseModel], type[Message]]] = [
    (plan.GenerationId, plan_pb2.GenerationId),
    (plan.Decision, plan_pb2.Decision),
    (plan.Placement, plan_pb2.Placement),
    (plan.Plan, plan_pb2.Plan),
    (plan.StateTag, plan_pb2.StateTag),
    (plan.SeenVote, plan_pb2.SeenVote),
    (plan.PieceHolders, plan_pb2.PieceHolders),
    (statistics.UnitProfile, plan_pb2.UnitProfile),
    (statistics.WorkerProfile, plan_pb2.WorkerProfile),
    (statistics.SizeProfiles, plan_pb2.SizeProfiles),
    (device.DeviceFacts, plan_pb2.DeviceFacts),
    (statistics.LinkProfile, plan_pb2.LinkProfile),
    (statistics.CacheProfile, plan_pb2.CacheProfile),
    (statistics.GuardReading, plan_pb2.GuardReading),
    (statistics.IntervalStatistics, plan_pb2.IntervalStatistics),
    (statistics.StepRecord, plan_pb2.StepRecord),
    (statistics.OperationTime, plan_pb2.OperationTime),
    (statistics.StepTrace, plan_pb2.StepTrace),
    (usage.WorkerUsage, plan_pb2.WorkerUsage),
]
KINDS = {
    int: {FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64},
    float: {FieldDescriptor.CPPTYPE_DOUBLE},
    str: {FieldDescriptor.CPPTYPE_STRING},
    bool: {FieldDescriptor.CPPTYPE_BOOL},
}


@pytest.mark.parametrize(("record", "message"), PAIRS, ids=[pair[0].__name__ for pair in PAIRS])
def test_fields_agree_in_name_and_kind(record: type[BaseModel], message: type[Message]) -> None:
    descriptors = message.DESCRIPTOR.fields_by_name
    older = {name for name, field in descriptors.items() if field.GetOptions().deprecated}
    assert set(record.model_fields) == set(descriptors) - older
    assert {name for name in older if not hasattr(record, name)} == set(), "what an older reader looks for is filled from here"
    wrong = [name for name, field in record.model_fields.items() if not _agrees(field.annotation, descriptors[name])]
    assert wrong == []


def _agrees(annotation: Any, descriptor: FieldDescriptor) -> bool:
    """Whether a record's type and a message's field can hold the same values."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return descriptor.has_presence and _agrees(parts[0], descriptor)
    if origin is typing.Literal:
        return descriptor.cpp_type in KINDS[str]
    if origin is tuple:
        return descriptor.is_repeated and _agrees_one(parts[0], descriptor)
    if origin is dict:
        return descriptor.is_repeated and descriptor.message_type.GetOptions().map_entry
    return not descriptor.is_repeated and _agrees_one(annotation, descriptor)


def _agrees_one(kind: type, descriptor: FieldDescriptor) -> bool:
    if issubclass(kind, BaseModel):
        return descriptor.message_type is not None and descriptor.message_type.name == kind.__name__
    return descriptor.cpp_type in KINDS[kind]


def test_every_message_of_the_plan_file_has_its_record() -> None:
    assert set(plan_pb2.DESCRIPTOR.message_types_by_name) == {record.__name__ for record, _ in PAIRS}


def test_every_method_has_roles_and_its_own_request_and_response() -> None:
    from frostline_proto.v1 import cache_pb2

    methods = [m for file in (control_pb2, cache_pb2) for s in file.DESCRIPTOR.services_by_name.values() for m in s.methods]
    assert {m.name for m in methods} <= set(ALLOWED)
    assert {m.containing_service.full_name for m in methods} == set(SERVICES)
    assert set(IDEMPOTENT) <= {m.name for m in methods}
    carried = [t.full_name for m in methods for t in (m.input_type, m.output_type)]
    assert len(carried) == len(set(carried))


def a_plan(**changes: Any) -> plan.Plan:
    placed = plan.Placement(
        pp_degree=2, dp_degree=1, stage_bounds=(0, 2, 4), leaf_bounds=(0, 8), workers=("a/1", "b/2"), use_cache=True
    )
    decided = plan.Decision(
        number=1, interval=1, effective_step=13, freeze_point=2, kind="freeze", reason="argmin 2", policy="eq1"
    )
    fields = {
        "generation": plan.GenerationId(incarnation=3, counter=2**40), "lineage": 1, "start": "continue", "freeze_point": 2,
        "decisions": (decided,), "placement": placed, "sources": ("a/1", "a/1", "b/2", "b/2"), "store_port": 29500,
    }  # fmt: skip
    return plan.Plan(**(fields | changes))


@pytest.mark.parametrize("base", [None, plan.GenerationId(incarnation=0, counter=0)], ids=["first", "zero"])
def test_a_plan_survives_the_wire(base: plan.GenerationId | None) -> None:
    sent = a_plan(base=base)
    wire = to_message(sent, plan_pb2.Plan).SerializeToString()
    assert to_record(plan_pb2.Plan.FromString(wire), plan.Plan) == sent


def test_defaults_that_are_not_zero_survive_as_zero() -> None:
    sent = a_plan(start_step=0)
    received = to_record(to_message(sent, plan_pb2.Plan), plan.Plan)
    assert (received.start_step, received.decisions[0].rollback_to_step) == (0, -1)


@given(st.lists(st.floats(width=64), max_size=6), st.floats(width=64), st.integers(-(2**62), 2**62))
def test_every_float_and_integer_survives_to_the_last_bit(losses: list[float], loss: float, step: int) -> None:
    sent = statistics.StepRecord(
        lineage=0, step=step, loss=loss, learning_rate=0.1, gradient_norm=1.0, unit_gradient_norms=tuple(losses), freeze_point=0,
        pp_degree=1, dp_degree=1, generation="1.1", step_seconds=0.5, step_parts={"vote": 0.25}, evaluation={"loss": loss},
    )  # fmt: skip
    wire = to_message(sent, plan_pb2.StepRecord).SerializeToString()
    got = to_record(plan_pb2.StepRecord.FromString(wire), statistics.StepRecord)
    assert list(_bits(got)) == list(_bits(sent))
    assert got.step == step


def _bits(record: statistics.StepRecord) -> Iterator[str]:
    for value in (record.loss, *record.unit_gradient_norms, record.evaluation["loss"]):
        # NaN has many patterns and one meaning; every other number has its bits.
        yield "nan" if math.isnan(value) else value.hex()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"start": "sideways"}, "Plan.start is 'sideways'"),
        ({"decisions": [plan_pb2.Decision(kind="melt")]}, "Plan.decisions.0.kind is 'melt'"),
    ],
)
def test_a_message_that_says_nonsense_is_named(change: dict[str, Any], words: str) -> None:
    message = to_message(a_plan(decisions=()), plan_pb2.Plan)
    message.MergeFrom(plan_pb2.Plan(**change))
    with pytest.raises(InvalidRequest, match=words.replace(".", r"\.")):
        to_record(message, plan.Plan)


def test_workers_get_the_job_that_the_controller_has() -> None:
    job = parse_job(merged(TINY_DIGITS, {"reshapes": [{"step": 4, "pp_degree": 2, "dp_degree": 2}]}))
    assert job_from_json(job_to_json(job), "the controller's job") == job
    with pytest.raises(JobError, match="the controller's job: no JSON"):
        job_from_json("model: {}", "the controller's job")
