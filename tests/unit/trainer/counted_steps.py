"""A lone worker's steps on a device that counts waits and copies (tests/counting_device.py)."""

from frostline_contract.plan import StateTag
from frostline_trainer.generations.groups import lone_groups
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.generation import Generation
from tests.counting_device import DEVICE, CountingDevice
from tests.exact_cases import NUM_UNITS, build_case
from tests.unit.trainer.test_engine_loop import SMALL, Bench, decision, plan

STEPS, EVALUATIONS, TILES, MICRO_BATCHES = 9, 2, 3, 2
"""Of `Bench`: intervals end with steps 4 and 8; the guard split has 9 samples, a micro-batch 4, a step 8."""


class Counted(Bench):
    """A lone worker's loop on a counting device: every unit learns for six steps, then all but two."""

    audit_every_steps = 0

    def __post_init__(self) -> None:
        context = build_case(self.case)
        changes = SMALL | {"audit_every_steps": self.audit_every_steps}
        sections = {"training": context.job.training.model_copy(update=changes)}
        if self.case.family == "bert_question_answering":  # the rows in memory have nothing to score answers by
            sections["evaluation"] = context.job.evaluation.model_copy(update={"every_intervals": 0})
        context.job = context.job.model_copy(update=sections)
        to_the_device(context)
        self.plan, self.device = plan(1), CountingDevice()
        self.generation = Generation(context, self.plan, 0, lone_groups(), 0, self.device.enter)
        context.holdings.settle(range(NUM_UNITS), StateTag(lineage=0, step=0, generation=self.plan.generation))
        self.box.put_decision(decision(2))

    def count(self) -> CountingDevice:
        with self.device.running():
            self.run()
        return self.device


def to_the_device(context: RunContext) -> None:
    for unit in context.cut.units:
        unit.to(DEVICE)
    context.device = DEVICE
