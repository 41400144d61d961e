"""Forms the process groups of announced plans in background threads while training goes on, and owns all groups."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from frostline_contract.job import Job, job_from_json, job_revision
from frostline_contract.plan import CONTINUE, GenerationId, Plan
from frostline_trainer.control.client import ControlClient
from frostline_trainer.control.connection import Refused
from frostline_trainer.control.mailbox import Mailbox
from frostline_trainer.generations.formation import Formation
from frostline_trainer.generations.groups import Groups
from frostline_trainer.generations.plan_states import FORMED, PlanState
from frostline_trainer.generations.watchdog import Watchdog
from frostline_trainer.process.device_facts import host_identity
from frostline_trainer.process.identity import Identity
from frostline_trainer.process.sick_device import end_if_sick
from frostline_trainer.step.context import RunContext

log = logging.getLogger(__name__)
SWITCH_POLL_SECONDS = 0.02


class NotFormed(RuntimeError):
    """The groups of a plan that does not continue a running generation were not formed. `until` is the plan's generation."""

    def __init__(self, until: GenerationId, reason: str) -> None:
        super().__init__(reason)
        self.until = until


class Preparation:
    """Prepares every plan that names this worker, each in a thread of its own, as soon as it is announced.

    The state of a plan is in the mailbox's plan table; this class has its groups. The training thread never waits in it for other
    members during a step.

    Args:
        context: the run's model, on this worker.
        identity: this worker's ids and addresses.
        mailbox: has the announced plans.
        client: reports to the controller that a plan is ready, or why it is not.
        step: Called for the worker's last committed step.

    Attributes:
        on_stand_by: Called while the newest plan does not name this worker.
    """

    def __init__(
        self, context: RunContext, identity: Identity, mailbox: Mailbox, client: ControlClient, step: Callable[[], int]
    ) -> None:
        self._context, self._identity, self._mailbox, self._client = context, identity, mailbox, client
        self._plans, self._step = mailbox.plans, step
        self.on_stand_by: Callable[[], None] = lambda: None
        self._watchdog = Watchdog()
        self._lock = threading.Lock()
        self._formations: dict[GenerationId, Formation] = {}
        self._groups: dict[GenerationId, Groups] = {}
        self._dead_stores: set[tuple[str, int]] = set()
        self._jobs: dict[str, Job] = {job_revision(context.job): context.job}
        self._stopping = False

    def start(self) -> None:
        """Watch for announced plans from a thread of its own, until `stop`."""
        threading.Thread(target=self._watch_plans, name="prepare", daemon=True).start()

    # ---- which plan is next

    def next_plan(self) -> Plan | None:
        """The plan to enter now; None if the controller has asked this worker to end.

        A member calls this when a vote has switched. Any other worker (a joiner, a spare or a survivor) waits here for a plan.

        Raises:
            Fenced: A recovery report is due.
            NotFormed: The groups of a plan that does not continue a running generation were not formed.
        """
        is_member = self._plans.running is not None
        while is_member or not (self._mailbox.end or self._mailbox.lost):
            if not is_member:
                self._mailbox.check()
            row = self._plans.due()
            if row is not None and row.state is PlanState.FAILED:
                raise NotFormed(row.plan.generation, row.reason)
            if row is not None:
                return row.plan
            assert not is_member, "a member leaves its loop for a plan that is due"
            if self._plans.state(self._plans.newest) is PlanState.OTHERS:
                self.on_stand_by()
            self._mailbox.wait(SWITCH_POLL_SECONDS)
        return None

    # ---- the groups

    def groups_of(self, plan: Plan) -> Groups:
        """The groups of a prepared plan. Raises RuntimeError if they have been closed meanwhile."""
        with self._lock:
            groups = self._groups.get(plan.generation)
        if groups is None:
            raise RuntimeError(f"the groups of {plan.generation} are gone")
        return groups

    def job_of(self, plan: Plan) -> Job:
        """The job of the plan; known once the plan is prepared."""
        return self._jobs.get(plan.job_revision, self._context.job)

    def close(self, generation: GenerationId) -> None:
        """Close the groups of a generation that is over or will never run."""
        with self._lock:
            formation, groups = self._formations.pop(generation, None), self._groups.pop(generation, None)
        self._watchdog.release(generation)
        if formation is not None:
            formation.interrupt()
            formation.release()
        if groups is not None:
            groups.close()

    def close_before(self, generation: GenerationId) -> None:
        """Close the groups of generations before `generation`, which has held its first vote."""
        for older in self._generations_until(generation):
            if older != generation:
                self.close(older)

    def drop(self, until: GenerationId) -> None:
        """Close all groups of generations up to this one, whether they run, are ending, or are being formed."""
        for generation in self._generations_until(until):
            self.close(generation)

    def interrupt(self, until: GenerationId) -> None:
        """Interrupt all groups of generations up to this one: calls that block in them end with an error, soon.

        Returns at once; callable from any thread.
        """
        generations = self._generations_until(until)
        if generations:
            self._watchdog.interrupt(*generations)

    def abandon_store(self, host: str, port: int) -> None:
        """Give up, now and later, all plans whose participants would meet in the dead store at this address.

        The controller makes such plans anew, with the address of the store that replaces it.
        """
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
        """Close the groups of all generations and end the threads; the worker ends."""
        self._stopping = True
        for generation in list(self._formations):
            self.close(generation)
        self._mailbox.wake()
        self._watchdog.stop()

    def _generations_until(self, generation: GenerationId) -> list[GenerationId]:
        with self._lock:
            return [one for one in self._formations if one <= generation]

    # ---- telling joiners of the switch

    def announce_switch(self, plan: Plan, step: int) -> None:
        """Write into the plan's store that a vote has switched to it: joiners, who hold no vote, read it there."""
        store = self.groups_of(plan).store
        if store is not None:
            self._in_background(lambda: store.set(_switch_key(plan), str(step)))

    def forget_switch(self, plan: Plan) -> None:
        """Delete the switch from the plan's store, after all participants have entered."""
        with self._lock:
            groups = self._groups.get(plan.generation)
        if groups is not None and groups.store is not None and groups.moving.index == 0 and plan.start == CONTINUE:
            store = groups.store
            self._in_background(lambda: store.delete_key(_switch_key(plan)))

    def _in_background(self, call: Callable[[], object]) -> None:
        threading.Thread(target=self._log_failure, args=(call,), daemon=True).start()

    def _log_failure(self, call: Callable[[], object]) -> None:
        try:
            call()
        except RuntimeError as error:
            log.warning("the generation's store is gone: %s", error)

    # ---- in the background

    def _watch_plans(self) -> None:
        while not self._stopping:
            self._mailbox.wait(0.5)
            for plan in self._plans.start_forming():
                name = f"prepare-{plan.generation.counter}"
                threading.Thread(target=self._prepare, args=(plan,), name=name, daemon=True).start()
            for row in self._plans.take_unanswered():
                if row.state in FORMED:
                    self._client.ready_in_background(row.plan.generation, 0.0)
                else:
                    self._client.not_ready_in_background(row.plan.generation, row.reason, self._step())
            with self._lock:
                expired = self._formations.keys() & self._plans.expired
            for generation in expired:
                self.close(generation)

    def _prepare(self, plan: Plan) -> None:
        started = time.perf_counter()
        timeout = timedelta(seconds=self._context.job.controller.reshape_deadline_seconds)
        machine = host_identity() if self._context.exact else ""  # two-level sums are for exact numerics only
        identity, traffic = self._identity, self._context.traffic
        formation = Formation(plan, identity.worker_id, plan.backend, timeout, identity.host, machine, traffic)
        with self._lock:
            if self._plans.state(plan.generation) is not PlanState.FORMING:
                return
            self._formations[plan.generation] = formation
            dead = (plan.store_host, plan.store_port) in self._dead_stores
        if dead:
            self._report_not_formed(plan, f"the store at {plan.store_host}:{plan.store_port} is dead")
            return
        self._watchdog.guard(plan.generation, (formation,))
        try:
            self._fetch_job(plan)
            groups = formation.form()
        except (RuntimeError, Refused, OSError, ValueError) as error:  # TimeoutError is an OSError
            end_if_sick(error)
            self._report_not_formed(plan, f"{type(error).__name__}: {error}"[:500])
            return
        with self._lock:
            wanted = self._formations.get(plan.generation) is formation and self._plans.formed(plan.generation)
            if wanted:
                self._groups[plan.generation] = groups
        if not wanted:
            groups.interrupt()
            groups.close()
            self.close(plan.generation)
            return
        self._client.ready_in_background(plan.generation, time.perf_counter() - started)
        if plan.start == CONTINUE and not self._plans.is_member_of(plan.base) and groups.store is not None:
            self._await_switch(plan, groups.store)

    def _fetch_job(self, plan: Plan) -> None:
        """Fetch the plan's job. Raises RuntimeError if the controller has a newer job by now: then another plan follows."""
        if not plan.job_revision or plan.job_revision in self._jobs:
            return
        job = job_from_json(self._client.describe_job(), "the controller's job")
        if job_revision(job) != plan.job_revision:
            raise RuntimeError(f"the plan follows job {plan.job_revision}, the controller has {job_revision(job)} by now")
        self._jobs[plan.job_revision] = job

    def _report_not_formed(self, plan: Plan, reason: str) -> None:
        """Note in the plan table that the groups were not formed; `_watch_plans` reports it to the controller."""
        self.close(plan.generation)
        if self._plans.not_formed(plan.generation, reason):
            log.warning("plan %s not prepared: %s", plan.generation, reason)

    def _await_switch(self, plan: Plan, store: object) -> None:
        """Poll the plan's store, as a joiner, until the members of the base generation have switched."""
        try:
            while plan.generation in self._groups and not store.check([_switch_key(plan)]):  # type: ignore[attr-defined]
                time.sleep(SWITCH_POLL_SECONDS)
        except RuntimeError as error:
            log.warning("the store of %s is gone: %s", plan.generation, error)
            return
        self._plans.switched(plan.generation)


def _switch_key(plan: Plan) -> str:
    return f"g{plan.generation}/switched"
