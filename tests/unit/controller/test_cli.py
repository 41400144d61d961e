"""`frostline` as a user meets it: mistakes, help, the documented job, status with and without a controller."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from frostline_contract.cache_tag import SECRET_VARIABLE
from frostline_contract.job import Job, dump_job, parse_job
from frostline_controller.cli.arguments import arms, seeds
from frostline_controller.cli.job import explain, job_fields
from frostline_controller.cli.main import main
from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.resuming import resumed_job
from frostline_controller.local_run.run_folder import find_run_folder, new_run_folder, write_run_folder
from frostline_controller.local_run.status import from_response, status_text
from frostline_proto.v1 import control_pb2 as pb
from frostline_rpc.auth import Tokens
from tests.unit.controller.synthetic_run import job_values, write_run

COMMANDS = (
    "run", "resume", "plan", "compare", "sweep", "status", "verify", "report", "job", "checkpoint", "freeze", "unfreeze",
    "reshape", "resize", "suspend", "cancel",
)  # fmt: skip


def frostline(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "frostline_controller.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=cwd, check=False)


def end_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return exit status, standard output and standard error of a command that runs in this process."""
    try:
        code = main(arguments)
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml.in"
    path.write_text(dump_job(parse_job(job_values())))
    return path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["run"], "required: -f/--file"),
        (["run", "-f", "{dir}/none.yaml"], "cannot be read (No such file or directory); give a job file with -f"),
        (["run", "-f", "{job}", "--set", "trainin.steps=3"], "trainin: unknown key; did you mean training?"),
        (["run", "-f", "{job}", "--set", "seed"], "--set 'seed': write it as section.field=value"),
        (["run", "-f", "{job}", "--workers", "0"], "'0' is no whole number above 0"),
        (["run", "-f", "{job}", "--workers", "many"], "'many' is no whole number above 0"),
        (["run", "-f", "{job}", "--replay", "{dir}"], "holds no plans.jsonl"),
        (["run", "-f", "{job}", "--out", "{dir}"], "is not empty and holds no run"),
        (["run", "-f", "{job}", "--out", "{run}"], "holds another run; go on with it by `frostline resume"),
        (["resume", "{run}"], "has completed; there is nothing to go on with"),
        (["status", "{dir}/none"], "no such directory; give a run directory"),
        (["status", "{dir}"], "is no run directory: it has neither job.yaml nor metrics.jsonl"),
        (["verify", "{run}", "--steps", "ten"], "'ten' is no list of steps; write 10,20,30"),
        (["compare", "-f", "{job}", "--seeds", "9-0"], "'9-0' is no list of seeds"),
        (["compare", "-f", "{job}", "--arms", "static,fast"], "fast is no arm; known: static, freezing"),
        (["job"], "one of the arguments --explain --schema is required"),
        (["job", "--explain", "freeze.rail"], "no field 'freeze.rail'; did you mean freeze.rails"),
        (["freeze", "{run}"], "required: N"),
        (["reshape", "{run}", "--pp", "2"], "required: --dp"),
        (["reshape", "{run}", *["--pp", "2", "--dp", "1", "--slices", "0"]], "--slices: '0' is no whole number above 0"),
        (
            ["reshape", "{run}", *["--pp", "2", "--dp", "1", "--virtual-stages", "two"]],
            "--virtual-stages: 'two' is no whole number above 0",
        ),
        (["reshape", "{run}", *["--pp", "1", "--dp", "2", "--shard", "auto"]], "--shard: invalid choice: 'auto' (choose from"),
        (["reshape", "{run}", *["--pp", "1", "--dp", "1", "--tensor-rows", "half"]], "--tensor-rows: invalid choice: 'half'"),
    ],
)
def test_a_mistake_is_one_clear_message(
    arguments: list[str], says: str, tmp_path: Path, job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = write_run(tmp_path / "digits")
    given = [argument.format(dir=tmp_path, job=job_file, run=run_dir) for argument in arguments]
    code, _, error = end_of(capsys, *given)
    assert code == exit_codes.USER_MISTAKE
    assert says in error
    assert "Traceback" not in error


def test_a_mistake_ends_the_process_with_2_and_no_traceback(tmp_path: Path) -> None:
    done = frostline("status", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = end_of(capsys, "--help")
    assert code == 0
    assert [name for name in COMMANDS if not re.search(rf"^    {name}\b", text, re.MULTILINE)] == []
    assert "130 stopped at once (Ctrl-C twice)" in text
    for name in COMMANDS:
        code, text, _ = end_of(capsys, name, "--help")
        assert code == 0
        assert f"examples:\n  frostline {name}" in text


def test_seeds_and_arms_are_read() -> None:
    assert seeds("0-3") == [0, 1, 2, 3]
    assert seeds("7,1-2,7") == [7, 1, 2]
    assert arms("elastic, static") == ["elastic", "static"]


def test_every_field_of_the_job_is_explained() -> None:
    fields = {field.path: field for field in job_fields()}
    assert fields["freeze.rails.patience"].default == "2"
    assert fields["placement.workers"].change == "live"
    assert fields["model.family"].default is None
    assert fields["training.optimizer.name"].type_text == "adamw | sgd"
    assert fields["reshapes[].pp_degree"].change == "fixed"
    assert [path for path, field in fields.items() if not field.doc] == []
    text = explain(None)
    assert all(path in text for path in fields)
    assert explain("freeze.rails.patience").count("\n") == 1


def test_job_prints_documentation_and_schema(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = end_of(capsys, "job", "--explain", "elastic")
    assert code == 0
    assert "elastic.pipeline  (bool; default true; live)" in text
    code, text, _ = end_of(capsys, "job", "--schema")
    assert json.loads(text) == Job.model_json_schema()


def test_status_of_a_finished_run_needs_no_controller(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = write_run(tmp_path / "digits")
    code, text, _ = end_of(capsys, "status", str(run_dir), "--json")
    status = json.loads(text)
    assert code == exit_codes.DONE
    assert (status["state"], status["step"], status["generation"], status["freeze_point"]) == ("completed", 120, "1.4", 4)
    assert status["shape"]["degrees"] == {"dp": 4, "pp": 1}
    assert status["metrics"] == {"loss": 0.2104, "accuracy": 0.9611}
    assert [(w["dp_rank"], w["pp_rank"], w["state"], w["stages"]) for w in status["workers"]] == [
        (r, 0, "gone", [0]) for r in range(4)
    ]
    code, text, _ = end_of(capsys, "status", str(run_dir))
    assert text.startswith("digits: completed\nstep 120 of 120, generation 1.4, freeze point 4 of 8 units, shape pp 1 x dp 4")


def test_status_of_an_unfinished_run_without_a_controller_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = write_run(tmp_path / "digits", finished=False)
    code, text, _ = end_of(capsys, "status", str(run_dir), "--json")
    assert code == exit_codes.NO_RUN
    assert json.loads(text)["state"] == "unreachable"
    code, _, error = end_of(capsys, "freeze", str(run_dir), "2")
    assert code == exit_codes.NO_RUN
    assert f"frostline resume {run_dir}" in error


@pytest.fixture
def controlled_run(tmp_path: Path) -> Iterator[Path]:
    """A run directory with a real controller and no workers."""
    folder = tmp_path / "digits"
    folder.mkdir()
    write_run_folder(folder, parse_job(job_values()), {})
    Tokens.create().write(folder / "tokens.json")
    with (tmp_path / "controller.log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", "frostline_controller", "--run-dir", str(folder)], stderr=log)
    try:
        deadline = time.monotonic() + 120
        while not (folder / "controller.address").exists():
            assert process.poll() is None, (tmp_path / "controller.log").read_text()
            assert time.monotonic() < deadline, "the controller did not start within 120 s"
            time.sleep(0.05)
        yield folder
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_a_real_controller_answers_status_and_commands(controlled_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = end_of(capsys, "status", str(controlled_run), "--json")
    status = json.loads(text)
    assert (code, status["state"], status["total_steps"], status["workers"]) == (0, "waiting", 120, [])
    assert status["loss"] is None
    code, _, error = end_of(capsys, "checkpoint", str(controlled_run))
    assert (code, error) == (exit_codes.FAILED, "frostline: checkpoint: the run has not started yet\n")
    code, _, error = end_of(capsys, "resize", str(controlled_run), "0")
    assert code == exit_codes.USER_MISTAKE
    assert "it must be at least 1" in error
    code, _, error = end_of(capsys, "resume", str(controlled_run))
    assert code == exit_codes.USER_MISTAKE
    assert "is running" in error
    code, text, _ = end_of(capsys, "suspend", str(controlled_run))
    assert (code, text) == (0, "draining to a checkpoint\n")


def test_a_wrong_token_is_told_apart_from_no_run(controlled_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Tokens.create().write(controlled_run / "tokens.json")
    code, _, error = end_of(capsys, "suspend", str(controlled_run))
    assert code == exit_codes.FAILED
    assert "UNAUTHENTICATED" in error


def test_new_runs_are_numbered_and_the_newest_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [new_run_folder("digits", None) for _ in range(3)]
    assert [folder.name for folder in folders] == ["digits", "digits-2", "digits-3"]
    for age, folder in zip((30, 10, 20), folders, strict=True):
        (folder / "job.yaml").write_text("name: digits\n")
        os.utime(folder / "job.yaml", (time.time() - age,) * 2)
    assert find_run_folder(None) == folders[1]
    (folders[1] / "cache.address").symlink_to(tmp_path / "a shared cache that has ended")
    assert find_run_folder(None) == folders[1], "a link that leads nowhere any more"


def test_resume_changes_live_fields_only() -> None:
    job = parse_job(job_values())
    assert resumed_job(job, ["cache.use=never"], 2).placement.workers == 2
    with pytest.raises(Exception, match=r"training.batch_size is 64 and fixed for the whole run; start a new run to have 128"):
        resumed_job(job, ["training.batch_size=128"], None)
    with pytest.raises(Exception, match=r"cache.us: unknown key; did you mean use\?"):
        resumed_job(job, ["cache.us=never"], None)


def test_status_starts_quickly_and_without_heavy_libraries(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "digits")
    code = (
        f"import sys; from frostline_controller.cli.main import main; main(['status', {str(run_dir)!r}]); "
        "print([m for m in ('torch', 'matplotlib', 'rich', 'tensorboard') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_status_tells_which_units_nobody_keeps_and_who_keeps_whose() -> None:
    member = pb.WorkerStatus(worker_id="uid-0/1", pod_name="trainer-0", state="member", units=[0, 1], keeps=[4, 5], phase="vote")
    status = from_response(pb.StatusResponse(name="run", state="running", workers=[member], uncovered_units=[2, 3], run_epoch=1))
    assert (status["uncovered_units"], status["run_epoch"], status["workers"][0]["keeps"]) == ([2, 3], 1, [4, 5])
    text = status_text(status)
    assert "one node's end would take units 2, 3" in text
    assert "0-1 +4-5" in text
    covered = status_text(from_response(pb.StatusResponse(name="run", state="running", workers=[member])))
    assert "one node's end" not in covered


@pytest.mark.parametrize("finished", [False, True])
def test_the_status_of_a_run_directory_names_whose_bits_were_wrong(
    finished: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = write_run(tmp_path / "digits", finished)
    with open(run_dir / "events.jsonl", "a") as file:
        for reason in ("trainer-1 is on node a, device cpu; an earlier one", "trainer-2 is on node b, device cpu; the newest"):
            file.write(json.dumps({"kind": "wrong_bits", "step": 80, "reason": reason}) + "\n")
    _, text, _ = end_of(capsys, "status", str(run_dir), "--json")
    message = json.loads(text)["message"]
    assert message.endswith("wrong bits: trainer-2 is on node b, device cpu; the newest")
    assert "trainer-1" not in message
    assert ("; wrong bits" in message) != finished, "after the reason why no controller answers"


def test_a_terminal_without_our_letters_and_one_that_closes_early_get_their_answer(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "schön", finished=False)
    command = [sys.executable, "-m", "frostline_controller.cli"]
    plain = subprocess.run(
        [*command, "status", str(run_dir)], env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=False
    )
    assert (plain.returncode, plain.stderr) == (exit_codes.NO_RUN, b"")
    assert rb"sch\xf6n" in plain.stdout
    reader, writer = os.pipe()
    os.close(reader)
    closed = subprocess.run([*command, "job", "--explain"], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (closed.returncode, closed.stderr) == (0, b"")


@pytest.mark.parametrize("word", ["run", "resume"])
def test_a_shared_cache_without_a_secret_is_refused_before_anything_starts(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    job, out = parse_job(job_values(cache={"addresses": ["127.0.0.1:1"]})), tmp_path / "run"
    (tmp_path / "job.yaml").write_text(dump_job(job))
    arguments = ("run", "-f", str(tmp_path / "job.yaml"), "--out", str(out))
    if word == "resume":
        out.mkdir()
        write_run_folder(out, job, {})
        arguments = ("resume", str(out))
    code, _, said = end_of(capsys, *arguments)
    assert code == exit_codes.USER_MISTAKE
    assert "cache.addresses is ['127.0.0.1:1']" in said and SECRET_VARIABLE in said and "cache.trusted: true" in said
    assert not out.exists() or word == "resume"


def test_ctrl_c_while_the_command_is_still_being_imported_is_no_traceback() -> None:
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored where the tests run in the background
        "from frostline_controller.cli.main import main\n"
        "class Impatient:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'frostline_controller.cli.arguments':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Impatient())\n"
        "sys.exit(main(['job', '--schema']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (exit_codes.INTERRUPTED, "", "")
