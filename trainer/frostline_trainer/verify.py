"""`frostline verify RUN_DIR`: recomputes chosen steps of a run in one process and compares bits (docs/protocols.md 1.13).

Any step can be checked, whatever its placement was. The state to start from comes from the run's checkpoints, freeze points from
its recorded decisions, and everything else from the job file. No controller, cache or network is needed.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.job import Job, load_job
from frostline_contract.lineage import Cuts
from frostline_contract.mesh import in_words
from frostline_contract.plan import MICRO_BATCH, GenerationId, Placement, Plan
from frostline_contract.reading import read_as
from frostline_contract.run_directory import RunDirectory
from frostline_contract.statistics import StepRecord
from frostline_trainer.cache.codec import make_codec
from frostline_trainer.checkpoints.reading import complete_checkpoints
from frostline_trainer.checkpoints.restoring import restore_pieces
from frostline_trainer.generations.groups import lone_groups
from frostline_trainer.process.setup import build_context
from frostline_trainer.step.committing import commit_step, record_step
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.digests import world_digest
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.run_state import RunState
from frostline_trainer.step.vote import Ballot, hold_vote

EXIT_EQUAL, EXIT_DIFFERENT, EXIT_USER = 0, 1, 2
VERIFYING = GenerationId(incarnation=0, counter=1)
"""The generation of the verifying process, lower than any that a controller makes."""
COMPARED = ("loss", "gradient_norm", "learning_rate", "unit_gradient_norms", "freeze_point", "refused", "numerics_hash")


def surviving_records(run_dir: Path) -> tuple[dict[int, StepRecord], Cuts]:
    """The records by step, without those that a rollback or a restore took back, and the starts of the run's lineages."""
    places = RunDirectory(run_dir)
    lines = places.read_records()
    return {line["step"]: read_as(StepRecord, line, places.metrics.name) for line in lines.surviving}, lines.cuts


class Replayer:
    """One worker that recomputes a run's steps."""

    def __init__(self, run_dir: Path, job: Job) -> None:
        if job.training.batch == "per_replica":
            raise ValueError("training.batch is per_replica: the batch depends on dp_degree, so one process cannot redo a step")
        self.run_dir, self.job = run_dir, job
        self.context: RunContext = build_context(job)
        self.records, self.cuts = surviving_records(run_dir)
        if not self.records:
            raise ValueError(f"{RunDirectory(run_dir).metrics} holds no step yet; verify a run that has trained")
        epoch = self.context.order(1).steps_per_epoch
        self.calendar = DecisionCalendar(job.interval_steps(epoch), job.decisions.lag_steps, job.total_steps(epoch))
        root = job.checkpoint_root(run_dir)
        self.checkpoints = complete_checkpoints(root)
        refuse_unlike(self.context, self.checkpoints[-1][1] if self.checkpoints else {}, RunDirectory(run_dir))
        codec = make_codec(job.cache.codec, self.context.hidden_shape, self.context.dtype)
        self.round_trip = None if codec.name == "none" else codec.round_trip
        self.prefix_tile = RunDirectory(run_dir).recorded_prefix_tile() or MICRO_BATCH
        self.state = RunState()

    def run(self, steps: list[int]) -> Iterator[tuple[int, list[str]]]:
        """Yield (step, what differs) for each of `steps`, in order."""
        for step in sorted(steps):
            if step not in self.records:
                raise ValueError(
                    f"step {step} is not recorded in {RunDirectory(self.run_dir).metrics}; recorded: 1 to {max(self.records)}"
                )
            generation = self._start_before(step)
            while self.state.step < step:
                found = self._redo(generation, self.state.step + 1)
            yield step, _differences(self.records[step], found)

    def _start_before(self, step: int) -> Generation:
        """Load the newest state before `step`: the current one, a checkpoint's, or the initial one."""
        usable = [
            (folder, manifest)
            for folder, manifest in self.checkpoints
            if self.state.step < manifest["step"] < step and self._is_of_this_history(manifest)
        ]
        if usable:
            folder, manifest = max(usable, key=lambda item: (item[1]["step"], item[1]["lineage"]))
            self.context.moments.clear()
            restore_pieces(self.context, self.context.moments, folder, manifest, range(self.context.pieces.count))
            self.state = RunState.model_validate(manifest.get("state"))
        return self._generation(self.state.freeze_point)

    def _is_of_this_history(self, manifest: dict) -> bool:
        """Whether a checkpoint is of steps that no rollback took back, and of no lineage that has no record of its own yet."""
        lineage, step = manifest["lineage"], manifest["step"]
        after = self.records.get(step + 1)
        return self.cuts.survives(lineage, step) and (after is None or lineage <= after.lineage)

    def _generation(self, freeze_point: int) -> Generation:
        context = self.context
        placement = Placement(
            degrees={"dp": 1, "pp": 1},
            stage_bounds=(0, context.num_units),
            leaf_bounds=(0, self.job.training.reduction_leaves),
            workers=("verify",),
        )
        plan = Plan(
            generation=VERIFYING, lineage=self.state.lineage, start="fresh", freeze_point=freeze_point, placement=placement,
            prefix_tile=self.prefix_tile, state_ranges=self.job.training.state_ranges, state_tiles=self.job.training.state_tiles,
            hidden_tiles=self.job.training.tensor_tiles.hidden,
        )  # fmt: skip
        chain = tuple(self.state.codec_chain)
        return Generation(
            context, plan, 0, lone_groups(), freeze_point, lambda name: None, chain, self.round_trip, self.state.data_origin
        )

    def _redo(self, generation: Generation, step: int) -> StepRecord:
        """Recompute one step, at its recorded freeze point."""
        state, recorded = self.state, self.records[step]
        if recorded.freeze_point != generation.freeze_point:
            state.codec_chain = [point for point in state.codec_chain if point < recorded.freeze_point]
            state.codec_chain += [recorded.freeze_point] if recorded.freeze_point else []
            generation.freeze_to(recorded.freeze_point, tuple(state.codec_chain), self.round_trip)
        state.freeze_point = recorded.freeze_point
        gradients = generation.compute(step)
        ballot = Ballot(gradients.piece_squares, gradients.losses)
        result = hold_vote(generation.world, ballot, self.context.pieces, generation.num_microbatches)
        commit_step(generation, state, self.calendar, step, gradients, result)
        record_step(generation, state, step, result, seconds=0.0, parts={})
        assert state.unconfirmed is not None
        return state.unconfirmed

    def final_digest(self) -> str:
        """The digest of the current state; comparable with the run's if its last step was recomputed."""
        return world_digest(self._generation(self.state.freeze_point))


def refuse_unlike(context: RunContext, newest: dict[str, Any], run: RunDirectory) -> None:
    """Raise ValueError where this machine reads other data than the run, or computes other bits in exact numerics.

    Args:
        context: of this process.
        newest: the manifest of the run's newest checkpoint, whose digests count, since a resume may have accepted other numerics;
            {}: there is none, and those of result.json count.
        run: the run's directory.
    """
    settings = run.read_result().get("settings", {})
    dataset, probe = (newest.get(name) or settings.get(name) for name in ("dataset_digest", "probe_digest"))
    if dataset and dataset != context.data.digest:
        raise ValueError(f"dataset_digest is {context.data.digest[:12]}, this run's is {dataset[:12]}; verify with its data")
    if context.job.training.numerics == "exact" and probe and probe != context.probe_digest:
        where = settings.get("probe_detail") if settings.get("probe_digest") == probe else ""
        raise ValueError(
            f"probe digest is {context.probe_digest[:12]} ({context.probe_detail}), this run's is {probe[:12]} "
            f"({where or 'its machine is not recorded'}); this machine computes other bits: verify on a like one"
        )


def _differences(recorded: StepRecord, found: StepRecord) -> list[str]:
    return [
        f"{name}: recorded {getattr(recorded, name)!r}, computed {getattr(found, name)!r}"
        for name in COMPARED
        if repr(getattr(recorded, name)) != repr(getattr(found, name))
    ]


def recorded_digest(result: dict[str, Any], last: int) -> str | None:
    """The digest that result.json has of the weights after step `last`, the newest on record.

    None where it has none: the run failed, or stopped without members; or its result is of an earlier step, before a resume.
    """
    return result["digest"] if result.get("digest") and result.get("steps") == last else None


def main(argv: list[str] | None = None) -> int:
    """Verify the steps that the command line names. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m frostline_trainer.verify", description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=Path, help="directory of a run that has trained")
    parser.add_argument("--steps", default="", help="steps, e.g. 1,20,126; default: one after each checkpoint, and the last")
    options = parser.parse_args(argv)
    try:
        return _verify(options.run_dir, options.steps)
    except (ValueError, OSError) as mistake:
        print(f"verify: {mistake}", file=sys.stderr)
        return EXIT_USER


def _verify(run_dir: Path, wanted: str) -> int:
    replayer = Replayer(run_dir, load_job(RunDirectory(run_dir).job))
    last = max(replayer.records)
    steps = [int(text) for text in wanted.split(",") if text.strip()] or _default_steps(replayer, last)
    wrong = 0
    for step, differences in replayer.run(steps):
        wrong += bool(differences)
        record = replayer.records[step]
        print(f"step {step:>6}  computed on {in_words(record.degrees)}  {'; '.join(differences) or 'same bits'}", flush=True)
    result = RunDirectory(run_dir).read_result()
    if last in steps and result:
        recorded, found = recorded_digest(result, last), replayer.final_digest()
        wrong += recorded is not None and recorded != found
        said = "same" if recorded == found else "no digest recorded" if recorded is None else f"recorded {recorded}"
        print(f"digest        {found}  {said}", flush=True)
    print(f"{len(steps)} step(s) computed again in one process: {f'{wrong} DIFFER' if wrong else 'all the same bits'}")
    return EXIT_DIFFERENT if wrong else EXIT_EQUAL


def _default_steps(replayer: Replayer, last: int) -> list[int]:
    """The step after each checkpoint and the last one, ten at most: a cheap sample from all parts of the run."""
    after = {manifest["step"] + 1 for _, manifest in replayer.checkpoints if manifest["step"] < last}
    return sorted({1, *sorted(after)[:8], last})


if __name__ == "__main__":
    sys.exit(main())
