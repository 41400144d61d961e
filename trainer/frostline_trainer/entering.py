"""Preparing and entering generations: groups are formed in the background, state moves at the switch."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.plan import Plan
from frostline_contract.statistics import LinkProfile
from frostline_trainer.caching import CacheUse
from frostline_trainer.checkpoints import load_unit, read_manifest
from frostline_trainer.collectives import broadcast_bytes
from frostline_trainer.control_client import ControlClient
from frostline_trainer.engine.context import RunContext
from frostline_trainer.engine.generation import Generation
from frostline_trainer.engine.groups import Groups, form_groups
from frostline_trainer.engine.unit_state import export_unit, import_unit
from frostline_trainer.identity import Identity
from frostline_trainer.link import measure_link
from frostline_trainer.mailbox import Mailbox
from frostline_trainer.model import build_cut_model
from frostline_trainer.moves import give_up, move_units
from frostline_trainer.run_state import RunState

log = logging.getLogger(__name__)
SWITCH_POLL_SECONDS = 0.02


@dataclass
class Entered:
    """A generation that this worker is a member of. index: its global rank."""

    plan: Plan
    index: int
    generation: Generation
    link: LinkProfile | None


class Entrance:
    """Prepares each announced plan in a thread of its own, and enters the one that is due."""

    def __init__(self, context: RunContext, identity: Identity, store: Any, mailbox: Mailbox, client: ControlClient,
                 checkpoint_root: Path) -> None:  # fmt: skip
        self._context, self._identity, self._store = context, identity, store
        self._mailbox, self._client, self._root = mailbox, client, checkpoint_root
        self._groups: dict[int, Groups] = {}
        self._seen: set[int] = set()

    def start(self) -> None:
        threading.Thread(target=self._watch_plans, name="prepare", daemon=True).start()

    # ---- preparing, in the background

    def _watch_plans(self) -> None:
        while True:
            self._mailbox.wait(0.5)
            for counter, plan in list(self._mailbox.plans.items()):
                if counter not in self._seen:
                    self._seen.add(counter)
                    threading.Thread(target=self._prepare, args=(plan,), name=f"prepare-{counter}", daemon=True).start()
            for plan in self._mailbox.take_repeated():
                self._client.ready_in_background(plan.generation, 0.0)
            for plan in self._mailbox.take_withdrawn():
                self._give_up(plan, "withdrawn by the controller")

    def _give_up(self, plan: Plan, reason: str) -> None:
        """Readiness is taken back, for later votes only; what was prepared is dropped."""
        groups = self._groups.pop(plan.generation.counter, None)
        if groups is not None:
            groups.close()
        self._client.not_ready_in_background(plan.generation, reason)

    def _prepare(self, plan: Plan) -> None:
        counter, started = plan.generation.counter, time.perf_counter()
        backend = "nccl" if self._context.device.type == "cuda" and torch.cuda.device_count() > 1 else "gloo"
        timeout = timedelta(seconds=self._context.job.controller.reshape_deadline_seconds)
        try:
            groups = form_groups(plan, self._identity.worker_id, self._store, backend, timeout, self._identity.host)
        except RuntimeError as error:
            log.warning("plan %s not prepared: %s", plan.generation, error)
            self._mailbox.withdraw(counter)
            self._client.not_ready_in_background(plan.generation, f"{type(error).__name__}: {error}"[:500])
            return
        if counter in self._mailbox.withdrawn:
            groups.close()
            return
        self._groups[counter] = groups
        self._mailbox.mark_prepared(counter)
        self._client.ready_in_background(plan.generation, time.perf_counter() - started)

    # ---- which plan is next

    def next_plan(self, current: Plan | None, switched_to: Plan | None) -> Plan | None:
        """The plan to enter now; None where this worker is told to end.

        switched_to: the plan that the last vote named. Without one this worker is a joiner, a spare or a survivor: it takes a
        start from fresh or from a checkpoint at once, and a continuing plan when its base members have switched.
        """
        if switched_to is not None:
            return switched_to
        while not (self._mailbox.end or self._mailbox.lost):
            for counter in sorted(self._mailbox.plans, reverse=True):
                plan = self._mailbox.plans[counter]
                if counter in self._mailbox.withdrawn or counter not in self._mailbox.prepared:
                    continue
                if current is not None and not current.generation < plan.generation:
                    continue
                if plan.start != "continue" or self._has_switched(plan):
                    return plan
            self._mailbox.wait(SWITCH_POLL_SECONDS)
        return None

    def _has_switched(self, plan: Plan) -> bool:
        store = self._groups[plan.generation.counter].store
        return store is not None and store.check([_switch_key(plan)])

    # ---- entering

    def enter(self, plan: Plan, in_base: bool, state: RunState, calendar: DecisionCalendar,
              phase: Callable[[str], None], caching: CacheUse) -> Entered | None:  # fmt: skip
        """Bring state and stages in place. None for a leaver. Raises RuntimeError where a participant is lost on the way.

        in_base: whether this worker was a member of the plan's base until now.
        """
        groups = self._groups.pop(plan.generation.counter)
        if plan.start == "continue":
            if in_base and groups.store is not None:
                groups.store.set(_switch_key(plan), str(state.step))
            self._share_state(plan, state, groups)
            move_units(self._context, plan, self._identity.worker_id, groups.moving, state.tag)
            give_up(self._context, plan, self._identity.worker_id)
        else:
            self._restart(plan, state, calendar)
            state.vote_generation = plan.generation
            self._context.holdings.drop(range(self._context.num_units))
            self._context.holdings.settle(plan.needs(self._identity.worker_id), state.tag)
        self._mailbox.forget_plans_until(plan.generation.counter)
        if groups.world is None:
            groups.close()
            return None
        index = plan.placement.workers.index(self._identity.worker_id)
        round_trip = caching.round_trip
        self.extend_chain(state, state.freeze_point)
        generation = Generation(
            self._context,
            plan,
            index,
            groups,
            state.freeze_point,
            phase,
            tuple(state.codec_chain),
            round_trip,
            state.data_origin,
        )
        caching.connect(generation, state)
        link = measure_link(groups) if plan.start != "continue" else None
        return Entered(plan, index, generation, link)

    def extend_chain(self, state: RunState, freeze_point: int) -> None:
        """A boundary that values cross through the codec joins the chain (PROTOCOLS 1, "A lossy codec")."""
        state.codec_chain = [point for point in state.codec_chain if point < freeze_point]
        if freeze_point > 0:
            state.codec_chain.append(freeze_point)

    def _share_state(self, plan: Plan, state: RunState, groups: Groups) -> None:
        """Everybody takes the run state of one member of the base."""
        root = plan.participants.index(plan.state_source)
        mine = RunState.model_validate(state.dump()).model_dump_json().encode() if groups.moving.index == root else b""
        received = broadcast_bytes(groups.moving, mine, root)
        if groups.moving.index != root:
            state.take(RunState.model_validate_json(received), keep_unacknowledged=False)

    def _restart(self, plan: Plan, state: RunState, calendar: DecisionCalendar) -> None:
        """Fresh weights, or every own unit from the plan's checkpoint."""
        self._context.moments.clear()
        if plan.start == "fresh":
            if state.step > 0:
                # Weights have moved on and there is no checkpoint: the model is drawn from the seed again.
                drawn = build_cut_model(self._context.job, self._context.data.sizes)
                for index, unit in enumerate(self._context.cut.units):
                    import_unit(index, unit, {}, export_unit(index, drawn.units[index], {}))
            state.take(RunState(lineage=plan.lineage, freeze_point=plan.freeze_point), keep_unacknowledged=False)
            return
        folder = self._root / plan.checkpoint_path
        manifest = read_manifest(folder)
        for unit in plan.needs(self._identity.worker_id):
            import_unit(unit, self._context.cut.units[unit], self._context.moments, load_unit(folder, manifest, unit))
        restored = RunState.model_validate(manifest["state"])
        restored.enter_lineage(plan.lineage)
        if plan.decision_number > restored.decision_number:
            # The plan names the decision in force at its first step: a rollback taken back to this very step, for one.
            restored.adopt_by_plan(plan)
        state.take(restored, keep_unacknowledged=False)
        self._mailbox.refile(plan, calendar)


def _switch_key(plan: Plan) -> str:
    return f"g{plan.generation}/switched"
