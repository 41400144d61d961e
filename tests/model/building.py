"""Plans of the model, built by production. The planner's choice of the workers of each stage is a plain rule here."""

from frostline_contract.plan import Placement, Plan
from frostline_contract.shape import deal_leaves
from frostline_contract.statistics import WorkerProfile
from frostline_controller.members.membership import Worker
from frostline_controller.planner.draft import PlanDraft
from frostline_controller.planner.plans import entry_plan, survivors_plan, switching_plan
from frostline_controller.recovery.facts import Answer, GoOn
from tests.even_bounds import even_bounds
from tests.model.configurations import Configuration, Shape
from tests.model.world import Order, generation_id, worker_name

LEAVES = 4
REASON = "model"


def first_plan(configuration: Configuration) -> Plan:
    """Return generation 1.1, from the initial weights."""
    draft = _draft(configuration, (1, 1), 0, _placement(configuration, configuration.first))
    return entry_plan(draft, base=None, checkpoint=None, run_epoch=0)


def switch(configuration: Configuration, order: Order, base: Plan) -> Plan:
    """Return the planned reshape of the configuration."""
    assert configuration.switch is not None
    draft = _draft(configuration, order, base.lineage, _placement(configuration, configuration.switch))
    return switching_plan(draft, base=base, window=configuration.window)


def answering_plan(
    configuration: Configuration, base: Plan, order: Order, found: Answer, usable: tuple[int, ...], lineage: int, epoch: int
) -> Plan:
    """Return the plan that answers a failure: from the survivors' pieces, or from the checkpoint of step 0.

    Holders come first, as the controller orders them.
    """
    if isinstance(found, GoOn):
        holding = {worker for workers in found.holders for worker in workers}
        ordered = sorted(usable, key=lambda index: worker_name(index) not in holding)
        draft = _draft(configuration, order, lineage, _placement(configuration, _shape(configuration, ordered)))
        return survivors_plan(draft, base=base, found=found)
    draft = _draft(configuration, order, lineage, _placement(configuration, _shape(configuration, list(usable))))
    return entry_plan(draft, base=base.generation, checkpoint=("0/1.1/0", 0), run_epoch=epoch)


def _draft(configuration: Configuration, order: Order, lineage: int, placement: Placement) -> PlanDraft:
    return PlanDraft(
        generation=generation_id(order), lineage=lineage, placement=placement, first_worker=_store(placement),
        domains=_domains(configuration), reason=REASON, state_ranges=configuration.state_ranges,
    )  # fmt: skip


def _shape(configuration: Configuration, usable: list[int]) -> Shape:
    """Return a shape of as many workers as the first one has, or as there are; all of them stages, or all of them replicas."""
    count = min(len(configuration.first.workers), len(usable))
    pp_degree = count if configuration.prefers == "stages" else 1
    return Shape(tuple(usable[:count]), pp_degree, configuration.first.shard)


def _placement(configuration: Configuration, shape: Shape) -> Placement:
    dealt = deal_leaves(LEAVES, shape.dp_degree)
    return Placement(
        pp_degree=shape.pp_degree,
        dp_degree=shape.dp_degree,
        stage_bounds=even_bounds(configuration.num_units, 0, shape.pp_degree),
        leaf_bounds=(dealt[0][0], *(last for _, last in dealt)),
        workers=tuple(worker_name(index) for index in shape.workers),
        shard=shape.shard,
    )


def _domains(configuration: Configuration) -> dict[str, str]:
    return {worker_name(index): f"node-{index}" for index in range(configuration.num_workers)}


def _store(placement: Placement) -> Worker:
    return Worker(placement.workers[0], "", "", 0, "127.0.0.1", 1, WorkerProfile(micro_batch_size=1, units=()), 0.0, 0.0)
