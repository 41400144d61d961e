"""Forms the groups of announced plans in the background while training goes on, and keeps account of all groups there are."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from frostline_contract.job import Job, job_revision, parse_job, read_yaml
from frostline_contract.plan import CONTINUE, GenerationId, Plan
from frostline_trainer.control.client import ControlClient
from frostline_trainer.control.line import Refused
from frostline_trainer.control.mailbox import Mailbox
from frostline_trainer.engine.context import RunContext
from frostline_trainer.engine.groups import Formation, Groups
from frostline_trainer.identity import Identity
from frostline_trainer.life.sick_device import end_if_sick
from frostline_trainer.life.watchdog import Watchdog

log = logging.getLogger(__name__)
SWITCH_POLL_SECONDS = 0.02


class NotFormed(RuntimeError):
    """The groups of a plan that could not wait were not formed. until: the plan's generation."""

    def __init__(self, until: GenerationId, reason: str) -> None:
        super().__init__(reason)
        self.until = until


class Preparation:
    """Every plan that names this worker is prepared at once, each in a thread of its own.

    running(): the generation that this worker is a member of now, or None. step(): its last committed step. The training thread
    never waits in here for others.
    """

    def __init__(self, context: RunContext, identity: Identity, mailbox: Mailbox, client: ControlClient,
                 running: Callable[[], GenerationId | None], step: Callable[[], int]) -> None:  # fmt: skip
        self._context, self._identity, self._mailbox, self._client = context, identity, mailbox, client
        self._running, self._step = running, step
        self._watchdog = Watchdog()
        self._lock = threading.Lock()
        self._formations: dict[GenerationId, Formation] = {}
        self._groups: dict[GenerationId, Groups] = {}
        self._switched: set[GenerationId] = set()
        self._failures: dict[GenerationId, str] = {}
        self._dead_stores: set[tuple[str, int]] = set()
        self._jobs: dict[str, Job] = {job_revision(context.job): context.job}
        self._stopping = False

    def start(self) -> None:
        threading.Thread(target=self._watch_plans, name="prepare", daemon=True).start()

    # ---- which plan is next

    def next_plan(self, switched_to: Plan | None, check: Callable[[], None]) -> Plan | None:
        """The plan to enter now; None where this worker is told to end. check(): raises where a report is due.

        switched_to: the plan that the last vote named. Without one this worker is a joiner, a spare or a survivor: it takes any
        start but a continuing one at once, and that when its base's members have switched. Raises NotFormed where the groups of
        a plan that cannot wait were not formed.
        """
        if switched_to is not None:
            return switched_to
        while not (self._mailbox.end or self._mailbox.lost):
            check()
            for counter in sorted(self._mailbox.plans, reverse=True):
                plan = self._mailbox.plans.get(counter)
                if plan is not None and plan.generation in self._failures:
                    raise NotFormed(plan.generation, self._failures.pop(plan.generation))
                if plan is not None and counter in self._mailbox.prepared and self._is_due(plan):
                    return plan
            self._mailbox.wait(SWITCH_POLL_SECONDS)
        return None

    def _is_due(self, plan: Plan) -> bool:
        return plan.generation in self._switched if plan.start == CONTINUE else True

    # ---- the groups

    def groups_of(self, plan: Plan) -> Groups:
        """Raises RuntimeError where they have been dropped meanwhile."""
        with self._lock:
            groups = self._groups.get(plan.generation)
        if groups is None:
            raise RuntimeError(f"the groups of {plan.generation} are gone")
        return groups

    def job_of(self, plan: Plan) -> Job:
        """The job that the plan's members follow; known once the plan is prepared."""
        return self._jobs.get(plan.job_revision, self._context.job)

    def close(self, generation: GenerationId) -> None:
        """The generation is over, or will never be: its sockets close."""
        with self._lock:
            formation, groups = self._formations.pop(generation, None), self._groups.pop(generation, None)
        self._watchdog.release(generation)
        if formation is not None:
            formation.interrupt()
            formation.release()
        if groups is not None:
            groups.close()

    def close_before(self, generation: GenerationId) -> None:
        """Close what is older: `generation` runs, and has voted."""
        for older in self._until(generation):
            if older != generation:
                self.close(older)

    def drop(self, until: GenerationId) -> None:
        """Close all groups of generations up to this one, whether they run, are ending, or are being formed."""
        for generation in self._until(until):
            self.close(generation)
        for generation in [one for one in list(self._failures) if one <= until]:
            self._failures.pop(generation, None)

    def interrupt(self, until: GenerationId) -> None:
        """Whatever blocks in a generation up to this one ends with an error, soon. Returns at once; callable from any thread."""
        generations = self._until(until)
        if generations:
            self._watchdog.interrupt(*generations)

    def give_up_meeting(self, host: str, port: int) -> None:
        """The store there is dead: plans whose participants were to meet in it are not prepared, now or later, and made anew."""
        with self._lock:
            self._dead_stores.add((host, port))
            waiting = [
                formation
                for generation, formation in self._formations.items()
                if generation not in self._groups and (formation.plan.store_host, formation.plan.store_port) == (host, port)
            ]
        for formation in waiting:
            formation.interrupt()

    def stop(self) -> None:
        self._stopping = True
        for generation in list(self._formations):
            self.close(generation)
        self._mailbox.wake()
        self._watchdog.stop()

    def _until(self, generation: GenerationId) -> list[GenerationId]:
        with self._lock:
            return [one for one in self._formations if one <= generation]

    # ---- telling joiners of the switch

    def tell_switched(self, plan: Plan, step: int) -> None:
        """A vote has switched to `plan`: joiners, who held no vote, find it in the plan's store."""
        store = self.groups_of(plan).store
        if store is not None:
            self._in_background(lambda: store.set(_switch_key(plan), str(step)))

    def forget_switch(self, plan: Plan) -> None:
        """All have entered: nobody looks for it any more."""
        with self._lock:
            groups = self._groups.get(plan.generation)
            self._switched.discard(plan.generation)
        if groups is not None and groups.store is not None and groups.moving.index == 0 and plan.start == CONTINUE:
            store = groups.store
            self._in_background(lambda: store.delete_key(_switch_key(plan)))

    def _in_background(self, call: Callable[[], object]) -> None:
        threading.Thread(target=self._quietly, args=(call,), daemon=True).start()

    def _quietly(self, call: Callable[[], object]) -> None:
        try:
            call()
        except RuntimeError as error:
            log.warning("the generation's store is gone: %s", error)

    # ---- in the background

    def _watch_plans(self) -> None:
        seen: set[GenerationId] = set()
        while not self._stopping:
            self._mailbox.wait(0.5)
            for plan in list(self._mailbox.plans.values()):
                if plan.generation not in seen:
                    seen.add(plan.generation)
                    name = f"prepare-{plan.generation.counter}"
                    threading.Thread(target=self._prepare, args=(plan,), name=name, daemon=True).start()
            for plan in self._mailbox.take_repeated():
                self._client.ready_in_background(plan.generation, 0.0)
            for plan in self._mailbox.take_withdrawn():
                self._client.not_ready_in_background(plan.generation, "withdrawn by the controller", self._step())
            for generation in self._mailbox.take_buried():
                self.close(generation)

    def _prepare(self, plan: Plan) -> None:
        started = time.perf_counter()
        timeout = timedelta(seconds=self._context.job.controller.reshape_deadline_seconds)
        formation = Formation(plan, self._identity.worker_id, plan.backend, timeout, self._identity.host)
        with self._lock:
            if plan.generation <= self._mailbox.promised:
                return
            self._formations[plan.generation] = formation
            dead = (plan.store_host, plan.store_port) in self._dead_stores
        if dead:
            self._give_up(plan, f"the store at {plan.store_host}:{plan.store_port} is dead")
            return
        self._watchdog.guard(plan.generation, (formation,))
        try:
            self._fetch_job(plan)
            groups = formation.form()
        except (RuntimeError, Refused, TimeoutError, ValueError) as error:
            end_if_sick(error)
            self._give_up(plan, f"{type(error).__name__}: {error}"[:500])
            return
        with self._lock:
            wanted = self._formations.get(plan.generation) is formation and not plan.generation <= self._mailbox.promised
            if wanted:
                self._groups[plan.generation] = groups
        if not wanted:
            groups.interrupt()
            groups.close()
            self.close(plan.generation)
            return
        self._mailbox.mark_prepared(plan.generation.counter)
        self._client.ready_in_background(plan.generation, time.perf_counter() - started)
        if plan.start == CONTINUE and self._running() != plan.base and groups.store is not None:
            self._await_switch(plan, groups.store)

    def _fetch_job(self, plan: Plan) -> None:
        """Raises RuntimeError where the controller follows another one by now: then another plan is on its way."""
        if not plan.job_revision or plan.job_revision in self._jobs:
            return
        job = parse_job(read_yaml(self._client.describe_job()), "the controller's job")
        if job_revision(job) != plan.job_revision:
            raise RuntimeError(f"the plan follows job {plan.job_revision}, the controller has {job_revision(job)} by now")
        self._jobs[plan.job_revision] = job

    def _give_up(self, plan: Plan, reason: str) -> None:
        """The groups were not formed. What a running generation continues with is just not ready; a start must be reported."""
        self.close(plan.generation)
        if plan.generation <= self._mailbox.promised:
            return
        log.warning("plan %s not prepared: %s", plan.generation, reason)
        self._client.not_ready_in_background(plan.generation, reason, self._step())
        if plan.start == CONTINUE:
            self._mailbox.withdraw(plan.generation.counter)
        else:
            self._failures[plan.generation] = reason

    def _await_switch(self, plan: Plan, store: object) -> None:
        """A joiner learns from the plan's store that the base's members have switched."""
        try:
            while plan.generation in self._groups and not store.check([_switch_key(plan)]):  # type: ignore[attr-defined]
                time.sleep(SWITCH_POLL_SECONDS)
        except RuntimeError as error:
            log.warning("the store of %s is gone: %s", plan.generation, error)
            return
        self._switched.add(plan.generation)
        self._mailbox.wake()


def _switch_key(plan: Plan) -> str:
    return f"g{plan.generation}/switched"
