"""A run directory and its owner: who may run it, which jobs a resume takes for the same run, and which it refuses."""

import json
import os
import shutil
import subprocess
import sys
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from frostline_contract.annotations import FENCE, PLAN
from frostline_contract.job import Job, load_job, parse_job, section_digests
from frostline_controller.cluster.local.backend import LocalBackend
from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.errors import UserMistake
from frostline_controller.local_run.prepared_run import resumed_run
from frostline_controller.local_run.run_folder import new_run_folder, write_run_folder
from frostline_controller.local_run.run_lock import owned, owner
from frostline_controller.local_run.starting_checks import check_resumable, how_to_go_on
from frostline_controller.planner.adapter import check_shapes
from frostline_controller.report.data import read_run
from frostline_controller.run.checkpoints import newest_checkpoint
from frostline_controller.run.durable import DurableState, DurableStore, decode_state, encode_state
from frostline_controller.run.epochs import current_epoch, raise_epoch, reopen
from frostline_controller.run.same_job import check_same_job
from frostline_rpc.auth import Tokens
from tests.unit.controller.synthetic_run import job_values, write_run
from tests.unit.controller.test_cli import end_of

HOLD = """
import sys, time
from pathlib import Path
from frostline_controller.local_run.run_lock import owned
with owned(Path(sys.argv[1])):
    print("owned", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """Return a run that was stopped at a checkpoint, as its controller left it."""
    folder = write_run(tmp_path / "run", finished=False)
    write_run_folder(folder, parse_job(job_values(checkpoint={"uri": "saved"})), {})
    Tokens.create().write(folder / "tokens.json")
    backend = LocalBackend(folder / "cluster")
    store = DurableStore(backend)
    found, _ = store.take_over()
    store.write(found, found.model_copy(update={"job_digests": section_digests(load_job(folder / "job.yaml"))}))
    manifest = folder / "saved" / "0" / "1.1" / "80" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"lineage": 0, "step": 80}))
    return folder


@pytest.fixture
def held(stopped: Path) -> Iterator[tuple[Path, int]]:
    """Return the same run while another process owns it."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(stopped)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "owned\n"
    yield stopped, holder.pid
    holder.kill()
    holder.wait()


def test_a_second_owner_is_refused_and_told_who_the_first_is(held: tuple[Path, int], capsys: pytest.CaptureFixture[str]) -> None:
    folder, process = held
    before = (folder / "job.yaml").stat().st_mtime_ns
    code, _, error = end_of(capsys, "resume", str(folder), "--workers", "2")
    assert code == exit_codes.USER_MISTAKE
    assert f"is running; see it with `frostline status {folder} --watch` (process {process} on " in error
    assert (folder / "job.yaml").stat().st_mtime_ns == before


def test_advice_is_to_resume_only_what_nobody_runs(held: tuple[Path, int], capsys: pytest.CaptureFixture[str]) -> None:
    folder, process = held
    code, text, _ = end_of(capsys, "status", str(folder))
    assert code == exit_codes.NO_RUN
    assert f"`frostline` (process {process} on " in text
    assert "frostline resume" not in text
    os.kill(process, 9)
    os.waitpid(process, 0)
    code, text, _ = end_of(capsys, "status", str(folder))
    assert f"start it again with `frostline resume {folder}`" in text


def test_a_lock_ends_with_its_owner_and_asking_takes_none(tmp_path: Path) -> None:
    with owned(tmp_path):
        assert owner(tmp_path).startswith(f"process {os.getpid()} on ")
        with pytest.raises(UserMistake, match="is running"), owned(tmp_path):
            pass
    assert owner(tmp_path) == ""
    with owned(tmp_path):
        pass


def test_two_new_runs_never_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = new_run_folder("digits", None)
    real = Path.exists
    # The other one has looked before the first was there.
    monkeypatch.setattr(Path, "exists", lambda path: path.resolve() != first and real(path))
    assert new_run_folder("digits", None) == first.with_name("digits-2")


def complaint(check: Callable[..., object], *given: object) -> str:
    """Return the message of the refusal; "" where nothing is refused."""
    try:
        check(*given)
    except (ValueError, UserMistake) as error:
        return str(error)
    return ""


def edited(folder: Path) -> None:
    file = folder / "job.yaml"
    file.write_text(file.read_text().replace("steps: 120", "steps: 60"))


def halved(name: str) -> Callable[[Path], None]:
    def halve(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return halve


def torn_between_lines(folder: Path) -> None:
    """Return half of job.yaml that is still valid YAML: defaults would replace the missing fields."""
    text = (folder / "job.yaml").read_text()
    (folder / "job.yaml").write_text(text[: text.index("\nfreeze:")])


def annotated(change: Callable[[dict[str, str]], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        file = folder / "cluster" / "statefulset.json"
        found: dict[str, Any] = json.loads(file.read_text())
        change(found["metadata"]["annotations"])
        file.write_text(json.dumps(found))

    return damage


def one_letter(annotations: dict[str, str]) -> None:
    text = annotations[PLAN]
    annotations[PLAN] = text[:20] + ("A" if text[20] != "A" else "B") + text[21:]


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "an edited job": (edited, "job.yaml: is not the job that the run was started with: fixed fields differ in training; restore"),
    "half a job that is YAML": (
        torn_between_lines,
        "is not the job that the run was started with: fixed fields differ in freeze",
    ),
    "no job": (lambda folder: (folder / "job.yaml").write_text(""), "job.yaml: holds NoneType, expected a mapping"),
    "half the state": (halved("cluster/statefulset.json"), "cluster/statefulset.json: is damaged"),
    "no state": (lambda folder: (folder / "cluster" / "statefulset.json").write_text(""), "statefulset.json: is damaged"),
    "a letter of the state": (annotated(one_letter), f"durable state (annotation {PLAN}) is damaged"),
    "no tokens": (lambda folder: (folder / "tokens.json").write_text(""), "tokens.json: is damaged"),
    "half of run.json": (halved("run.json"), "run.json: no JSON"),
    "checkpoints gone": (lambda folder: shutil.rmtree(folder / "saved"), "saved holds no checkpoint of it; mount or restore"),
    "checkpoints elsewhere": (
        lambda folder: (folder / "saved").rename(folder / "elsewhere"),
        "checkpoint.uri is relative to the run directory: move checkpoints that lie elsewhere there, or train again from step 0",
    ),
    "checkpoints that cannot be written": (
        lambda folder: ((folder / "saved").rename(folder / "real"), (folder / "saved").symlink_to("/proc/self")),
        "saved holds no checkpoint",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_resume_that_would_not_be_the_same_run_is_refused(
    case: str, stopped: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    damage, says = DAMAGE[case]
    damage(stopped)
    monkeypatch.setattr("frostline_controller.local_run.requests.watch", lambda *given, **named: pytest.fail("it was started"))
    code, _, error = end_of(capsys, "resume", str(stopped))
    assert (code, says in error, error.count("\n")) == (exit_codes.USER_MISTAKE, True, 1), error


def test_a_resume_goes_on_from_any_directory_with_other_live_fields(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = load_job(stopped / "job.yaml")
    check_resumable(stopped, job, from_scratch=False)
    assert job.checkpoint_root(Path("run")) == stopped / "saved"
    live = job.model_copy(update={"placement": job.placement.model_copy(update={"workers": 7})})
    check_same_job(decode_state(LocalBackend(stopped / "cluster").read().annotations[PLAN]), live, stopped / "job.yaml")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, ("--resume",)),
        ({"overrides": ["placement.min_workers=1"]}, ("--resume",)),
        ({"workers": 4}, ("--resume", "--limit=-1")),
        ({"overrides": ["placement.workers=4"]}, ("--resume", "--limit=-1")),
    ],
)
def test_a_resume_with_a_number_of_workers_lifts_the_limit_of_before(
    stopped: Path, given: dict[str, Any], said: tuple[str, ...]
) -> None:
    with resumed_run(stopped, **given) as prepared:
        assert prepared.resume == said


def test_a_run_whose_tiles_had_no_ranges_of_their_own_is_refused(stopped: Path) -> None:
    """Such a run cut whole units into ranges, so that its pieces' numbers, and the bits of its norms, mean something else now."""
    plan = read_run(stopped).plans[-1].plan
    tiles = {"tensor_tiles": {"inner": 2}, "state_ranges": 3}
    values = job_values()
    job = parse_job(values | {"training": values["training"] | tiles})
    for tiles_then in (1, 2):
        state = DurableState(current=plan.model_copy(update={"state_ranges": 3, "state_tiles": tiles_then}))
        said = complaint(check_same_job, state, job, stopped / "job.yaml")
        assert ("start a new run, or go on with the version that began it" in said) == (tiles_then == 1), said


@pytest.mark.parametrize(("tiles_then", "tiles_now", "ranges"), [(4, 8, 1), (1, 2, 1), (2, 1, 3), (1, 2, 3)])
def test_a_job_whose_tiles_were_edited_is_said_to_be_edited(stopped: Path, tiles_then: int, tiles_now: int, ranges: int) -> None:
    plan, values = read_run(stopped).plans[-1].plan, job_values()

    def job(inner: int) -> Job:
        tiles = {"tensor_tiles": {"inner": inner}, "state_ranges": ranges}
        return parse_job(values | {"training": values["training"] | tiles})

    current = plan.model_copy(update={"state_ranges": ranges, "state_tiles": tiles_then})
    state = DurableState(current=current, job_digests=section_digests(job(tiles_then)))
    said = complaint(check_same_job, state, job(tiles_now), stopped / "job.yaml")
    assert "fixed fields differ in training" in said and "restore the file" in said, said


def test_from_scratch_is_taken_at_its_word(stopped: Path) -> None:
    assert how_to_go_on(stopped, load_job(stopped / "job.yaml")) == f"frostline resume {stopped}"
    shutil.rmtree(stopped / "saved")
    assert how_to_go_on(stopped, load_job(stopped / "job.yaml")).startswith(f"frostline resume {stopped} --from-scratch ")
    assert complaint(check_resumable, stopped, load_job(stopped / "job.yaml"), True) == ""
    assert "--from-scratch" in complaint(check_resumable, stopped, load_job(stopped / "job.yaml"), False)


def test_from_scratch_goes_on_in_whatever_run_epoch_it_was(stopped: Path) -> None:
    job, backend = load_job(stopped / "job.yaml"), LocalBackend(stopped / "cluster")
    plan = read_run(stopped).plans[-1].plan.model_copy(update={"run_epoch": 3})
    store = DurableStore(backend)
    found, _ = store.take_over()
    store.write(found, found.model_copy(update={"current": plan}))
    shutil.rmtree(stopped / "saved")
    check_resumable(stopped, job, from_scratch=True)
    reopen(stopped / "saved", 3)
    raise_epoch(stopped / "saved", plan.model_copy(update={"run_epoch": 4, "checkpoint_path": ""}))
    assert (current_epoch(stopped / "saved").run_epoch, newest_checkpoint(stopped / "saved")) == (4, None)


def test_another_version_with_other_fields_takes_a_run_up() -> None:
    """A new field has its default in every older job; that is no edit."""
    job = parse_job(job_values())
    older = DurableState(job_digests={**section_digests(job), "fields": "0" * 16, "training": "0" * 16})
    assert complaint(check_same_job, older, job, Path("job.yaml")) == ""
    assert complaint(check_same_job, DurableState(), job, Path("job.yaml")) == ""
    same = DurableState(job_digests={**section_digests(job), "training": "0" * 16})
    assert "fixed fields differ in training" in complaint(check_same_job, same, job, Path("job.yaml"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "é",
        b64encode(b"no zlib").decode(),
        b64encode(zlib.compress(b"[")).decode(),
        b64encode(zlib.compress(b"3")).decode(),
    ],
)
def test_a_damaged_durable_state_is_one_kind_of_error(text: str) -> None:
    with pytest.raises(ValueError, match="is damaged"):
        decode_state(text)


def test_every_damaged_letter_of_a_durable_state_is_refused_or_harmless() -> None:
    state = DurableState(incarnation=3, counter=4, state="running")
    text = encode_state(state)
    spoilt = [text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :] for place in range(len(text))]
    said = [complaint(decode_state, one) for one in spoilt]
    assert [one for one in said if one and "is damaged" not in one] == []


def test_a_fence_that_is_no_generation_is_named(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    backend.patch_annotations({FENCE: "x.y"}, {})
    with pytest.raises(ValueError, match=r"annotation \S+ is 'x.y', which is no generation"):
        DurableStore(backend).take_over()


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"placement": {"workers": 9, "pp_degree": 9}}, "placement.pp_degree is 9, and the model has 5 units"),
        ({"placement": {"initial_pp_degree": 6}}, "placement.initial_pp_degree is 6"),
        ({"reshapes": [{"step": 3, "pp_degree": 8, "dp_degree": 1}]}, "reshapes.0.pp_degree is 8"),
    ],
)
def test_a_pipeline_longer_than_the_model_is_refused(sections: dict[str, Any], says: str) -> None:
    check_shapes(parse_job(job_values()), 5)
    with pytest.raises(ValueError, match=says):
        check_shapes(parse_job(job_values(**sections)), 5)
