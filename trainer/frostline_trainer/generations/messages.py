"""Makes the messages in which a worker describes itself: registration and heartbeats."""

import os
import resource
from collections.abc import Sequence

from frostline_contract.job import job_digest
from frostline_contract.plan import GenerationId
from frostline_contract.statistics import CacheProfile, MemoryUse, WorkerProfile
from frostline_proto.v1 import control_pb2, plan_pb2
from frostline_rpc.convert import to_message
from frostline_trainer.data.augment import cache_refusal
from frostline_trainer.generations.groups import Groups
from frostline_trainer.memory import on_gpu, peak_of
from frostline_trainer.process.device_facts import device_facts
from frostline_trainer.process.identity import Identity
from frostline_trainer.profile import worker_profile
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.digests import weights_digest
from frostline_trainer.step.link import Links
from frostline_trainer.step.phases import PhaseClock


def make_registration(
    identity: Identity, context: RunContext, store_port: int, steps_per_epoch: int, profiles: Sequence[WorkerProfile] = ()
) -> control_pb2.RegisterRequest:
    """The worker's registration, with a digest of its initial weights, which no step has changed yet.

    Args:
        identity: this worker's ids and addresses.
        context: the run's model and data, on this worker.
        store_port: port of this worker's store.
        steps_per_epoch: steps of an epoch.
        profiles: the run's, one for each kind of device. If this worker's kind is not among them, its units are measured now,
            which takes a moment.
    """
    refusal = cache_refusal(context.job)
    context.weights_digest = weights_digest(context)
    return control_pb2.RegisterRequest(
        worker_id=identity.worker_id,
        pod_name=identity.pod_name,
        failure_domain=identity.node,
        process_id=os.getpid(),
        store_host=identity.host,
        store_port=store_port,
        probe_digest=context.probe_digest,
        probe_detail=context.probe_detail,
        job_digest=job_digest(context.job),
        profile=to_message(worker_profile(context, profiles), plan_pb2.WorkerProfile),
        num_units=context.num_units,
        steps_per_epoch=steps_per_epoch,
        train_samples=len(context.data.train),
        dataset_digest=context.data.digest,
        unit_names=context.cut.unit_names,
        boundary_bytes_per_sample=context.boundary_bytes_per_sample,
        cacheable=refusal is None,
        cache_refusal=refusal or "",
        tied=context.cut.tied is not None,
        weights_digest=context.weights_digest,
        place_dependence=context.place_dependence,
        sample_tile_cost=context.sample_tile_cost,
        device=to_message(device_facts(context.device), plan_pb2.DeviceFacts),
    )


def heartbeat(worker_id: str, step: int, clock: PhaseClock, generation: GenerationId | None, links: Links,
              cache: CacheProfile | None, uncovered_pieces: Sequence[int] = (), memory: MemoryUse | None = None,
              ) -> control_pb2.HeartbeatRequest:  # fmt: skip
    """A heartbeat with the worker's current progress; only the newest counts.

    Args:
        worker_id: the worker.
        step: its last committed step.
        clock: its phase clock.
        generation: the generation that it runs; None: none.
        links: its measured links.
        cache: the measured cache; None: it is not measured.
        uncovered_pieces: pieces without a copy in another failure domain, as of its last vote.
        memory: the memory of its device; None: not measured.
    """
    now = clock.now()
    request = control_pb2.HeartbeatRequest(
        worker_id=worker_id,
        step=step,
        phase=now.phase,
        phase_seconds=now.seconds,
        waiting_seconds=now.waiting_seconds,
        resident_bytes=_resident_bytes(),
        step_parts=clock.means(),
        phase_p99_seconds=clock.p99(),
        busy_seconds=clock.busy_seconds(),
        uncovered_pieces=uncovered_pieces,
    )
    for phase, spent in clock.spent().items():
        request.spending.seconds[phase], request.spending.waiting_seconds[phase] = spent.seconds, spent.waiting
    place = clock.trail.place() if clock.trail is not None else None
    if place is not None:
        request.device_phase, request.device_seconds, request.device_waiting = place.phase, place.seconds, place.waiting
    if generation is not None:
        request.generation.CopyFrom(to_message(generation, plan_pb2.GenerationId))
    if links.far is not None:
        request.link.CopyFrom(to_message(links.far, plan_pb2.LinkProfile))
    if links.near is not None:
        request.near_link.CopyFrom(to_message(links.near, plan_pb2.LinkProfile))
    if cache is not None:
        request.cache.CopyFrom(to_message(cache, plan_pb2.CacheProfile))
    if memory is not None:
        request.memory.CopyFrom(to_message(memory, control_pb2.MemoryUse))
    return request


def memory_use(context: RunContext, groups: Groups, counted: int) -> MemoryUse:
    """Memory use of this worker's device in a generation.

    Args:
        context: the run's model, on this worker.
        groups: the generation's process groups.
        counted: bytes of a step's tensors, for a CPU; 0: not counted.
    """
    peak, size = peak_of(context.device)
    return MemoryUse(
        peak_bytes=peak,
        limit_bytes=context.job.placement.worker_memory_bytes or size,
        communicator_bytes=groups.communicator_bytes,
        communicators=groups.communicators,
        tensor_bytes=peak if on_gpu(context.device) else counted,
    )


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
