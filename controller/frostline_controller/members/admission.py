"""The admission of workers: a registration is checked against the identity of the run, which the first worker defines."""

import logging
from collections.abc import Iterator

from frostline_contract.job import Job, job_digest
from frostline_contract.statistics import WorkerProfile
from frostline_contract.worker_id import local_rank_of, pod_uid_of
from frostline_controller.planner.tiles import TileChoice, choose_prefix_tile
from frostline_controller.run.controller import Controller
from frostline_controller.run.durable import RunIdentity
from frostline_proto.v1 import control_pb2 as pb
from frostline_rpc.convert import to_record
from frostline_rpc.errors import InvalidRequest, Refused

log = logging.getLogger(__name__)


class Admission:
    """Checks registrations. The first registration defines the run's identity."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._digest_of: tuple[Job, str] | None = None

    @property
    def _job_digest(self) -> str:
        """Return the digest of the present job, which changes when the job is settled."""
        job = self._controller.run.facts.job
        if self._digest_of is None or self._digest_of[0] is not job:
            self._digest_of = (job, job_digest(job))
        return self._digest_of[1]

    async def check(self, request: pb.RegisterRequest) -> None:
        """Raise Refused where this worker may not join, or would bring other data, code or bits into the run."""
        await self._check_place(request.worker_id)
        try:
            self._check_device(request)
            self._check_identity(request)
        except Refused as refusal:
            self._controller.start_failures.note(request.worker_id, str(refusal), request.pod_name)
            raise

    async def _check_place(self, worker_id: str) -> None:
        """Raise Refused for a process that has ended or was excluded, and for one whose pod was removed."""
        facts, pods = self._controller.run.facts, self._controller.run.pods
        if facts.members.has_ended(worker_id):
            raise Refused(f"worker {worker_id!r} has ended; a new process registers under an id of its own")
        if why := facts.members.why_excluded(worker_id):
            raise Refused(f"worker {worker_id!r} is excluded: {why}")
        place, per_pod = local_rank_of(worker_id), facts.job.placement.workers_per_pod
        if place and int(place) >= per_pod:  # its place would be another worker's, whom it would end
            raise Refused(
                f"worker {worker_id!r} is number {int(place) + 1} of its pod, and this run's placement.workers_per_pod is "
                f"{per_pod}; give that number to the release too"
            )
        uid = pod_uid_of(worker_id)
        if facts.cluster.pods and uid not in facts.cluster.uids:
            await pods.reread()  # the pod may be milliseconds old
            if facts.cluster.pods and uid not in facts.cluster.uids:
                raise Refused(f"pod {uid!r} is no longer part of the run: another has taken its place, or it was handed back")

    def _check_device(self, request: pb.RegisterRequest) -> None:
        """Raise Refused for a worker on a GPU that is in quarantine."""
        for one in self._controller.run.facts.quarantined:
            if (one.node, one.uuid) == (request.failure_domain, request.device.uuid):
                raise Refused(
                    f"device.uuid is {one.uuid}: this GPU of node {one.node} failed {one.failures} times in this run; read the "
                    "node's kernel log for Xid errors, then mend or drain the node"
                )

    def _check_identity(self, request: pb.RegisterRequest) -> None:
        """Check that a worker has this job, and in exact numerics computes the same bits (docs/protocols.md 1.9). Raises
        Refused."""
        facts = self._controller.run.facts
        if request.job_digest != self._job_digest:
            raise Refused(
                f"job digest is {request.job_digest[:12]!r}, this run's is {self._job_digest[:12]!r}; "
                "start the worker with the run's job.yaml"
            )
        known = facts.identity
        if known is None:
            if request.num_units < 1 or request.steps_per_epoch < 1:
                raise InvalidRequest(
                    f"num_units is {request.num_units} and steps_per_epoch {request.steps_per_epoch}; both must be positive"
                )
            tile = self._choose_tile(request)
            facts.adopt_identity(
                RunIdentity(
                    probe_digest=request.probe_digest, probe_detail=request.probe_detail, num_units=request.num_units,
                    steps_per_epoch=request.steps_per_epoch, train_samples=request.train_samples,
                    dataset_digest=request.dataset_digest, unit_names=tuple(request.unit_names),
                    boundary_bytes_per_sample=request.boundary_bytes_per_sample, cacheable=request.cacheable,
                    cache_refusal=request.cache_refusal, tied=request.tied, weights_digest=request.weights_digest,
                    place_dependence=request.place_dependence,
                    prefix_tile=tile.tile, prefix_tile_reason=tile.reason, sample_tile_cost=request.sample_tile_cost or 1.0,
                )
            )  # fmt: skip
            if tile.reason:
                log.warning("prefix tile=%s reason=%r", tile.tile, tile.reason)
            self._controller.note_identity()
            return
        for name in ("num_units", "steps_per_epoch", "dataset_digest"):
            if getattr(request, name) != getattr(known, name):
                raise Refused(
                    f"{name} is {getattr(request, name)!r}, this run's is {getattr(known, name)!r}; it reads other data or code"
                )
        if refusals := list(other_bits(facts.job, request, known)):
            if not facts.accept_numerics:
                raise Refused(f"{'; '.join(refusals)}; or resume with --accept-numerics")
            self._accept_numerics(request, known)
        elif not known.weights_digest:  # not known yet: the run was begun by a version that did not report it
            facts.adopt_identity(known.model_copy(update={"weights_digest": request.weights_digest}))

    def _accept_numerics(self, request: pb.RegisterRequest, was: RunIdentity) -> None:
        """Take the newcomer's probe and initial weights as the run's, since the user allows other bits (resume
        --accept-numerics)."""
        facts, outbox = self._controller.run.facts, self._controller.run.outbox
        names = ("probe_digest", "probe_detail", "place_dependence", "weights_digest", "boundary_bytes_per_sample")
        now = was.model_copy(update={name: getattr(request, name) for name in names})
        facts.adopt_identity(now)
        facts.accept_numerics = False
        before, after = (f"{one.probe_digest[:12]} ({one.probe_detail})" for one in (was, now))
        reason = f"numerics changed and accepted: probe {before} -> {after}"
        if was.weights_digest and now.weights_digest != was.weights_digest:
            reason += f", initial weights {was.weights_digest[:12]} -> {now.weights_digest[:12]}"
        outbox.note(pb.RunEvent(kind="command", step=facts.step, lineage=facts.state.lineage, reason=reason))

    def _choose_tile(self, request: pb.RegisterRequest) -> TileChoice:
        job = self._controller.run.facts.job
        passes = job.total_steps(request.steps_per_epoch) / request.steps_per_epoch
        profile = to_record(request.profile, WorkerProfile)
        return choose_prefix_tile(
            job.cache.prefix_tile, request.place_dependence, request.sample_tile_cost, profile, request.boundary_bytes_per_sample,
            passes,
        )  # fmt: skip


def other_bits(job: Job, request: pb.RegisterRequest, known: RunIdentity) -> Iterator[str]:
    """Yield the reasons why a worker would bring other bits into the run: its initial weights, or in exact numerics its
    arithmetic."""
    if known.weights_digest and request.weights_digest != known.weights_digest:
        model = job.model
        if model.path is not None:
            remedy = f"its files at model.path {model.path} are others: put the same files on every node"
        elif model.hub is not None:
            remedy = f"it has another revision of model.hub {model.hub}: set model.revision to a commit"
        else:
            remedy = "it draws others from the same seed: install the same versions of torch and transformers on every node"
        yield f"initial weights are {request.weights_digest[:12]!r}, this run's are {known.weights_digest[:12]!r}; {remedy}"
    bytes_there, bytes_here = request.boundary_bytes_per_sample, known.boundary_bytes_per_sample
    if bytes_here and bytes_there != bytes_here:
        yield (
            f"a sample's boundary has {bytes_there} bytes, this run's have {bytes_here}; training.precision "
            f"{job.training.precision} means another type there: set one that is not auto, or use a like machine"
        )
    if job.training.numerics == "exact" and request.probe_digest != known.probe_digest:
        yield (
            f"probe digest is {request.probe_digest[:12]} ({request.probe_detail}), this run's is {known.probe_digest[:12]} "
            f"({known.probe_detail}); it computes other bits: use a like machine"
        )
