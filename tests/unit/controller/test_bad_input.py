"""Mistakes of command line and job file: each is one clear message on standard error, no traceback, exit status 2, at once.

The commands run in this process: their output and exit status are the same, and a hundred of them take seconds.
"""

import time
from pathlib import Path

import pytest
import yaml

from frostline_controller.local_run import exit_codes
from tests.unit.controller.synthetic_run import job_values, write_run
from tests.unit.controller.test_cli import end_of

LONG = 20.0
"""Far above what a refusal takes on a busy machine: a bomb of aliases or a number of devices without end takes for ever."""

HUGE = "9" * 20
COMMAND_LINES = [
    ("", "required: COMMAND"),
    ("fly", "invalid choice: 'fly'"),
    ("run", "required: -f/--file"),
    ("run -f {dir}/none.yaml", "none.yaml: cannot be read (No such file or directory); give a job file with -f"),
    ("run -f {dir}", "cannot be read (Is a directory)"),
    ("run -f {dir}/binary", "binary: is no UTF-8 text"),
    ("run -f {job} --colour", "unrecognized arguments: --colour"),
    ("run -f {job} --workers 0", "'0' is no whole number above 0"),
    ("run -f {job} --workers -1", "'-1' is no whole number above 0"),
    ("run -f {job} --workers many", "'many' is no whole number above 0"),
    ("run -f {job} --workers 1.5", "'1.5' is no whole number above 0"),
    ("run -f {job} --workers ٣", "'٣' is no whole number above 0"),
    (f"run -f {{job}} --workers {HUGE}", "and at most 2147483647"),
    ("run -f {job} --workers 70000", "placement.workers is 70000"),
    ("run -f {job} --set seed", "--set 'seed': write it as section.field=value"),
    ("run -f {job} --set =3", "write it as section.field=value"),
    ("run -f {job} --set model.family.a=1", "family is no section"),
    ("run -f {job} --set training..steps=3", "training.: unknown key"),
    ("run -f {job} --set trainin.steps=3", "trainin: unknown key; did you mean training?"),
    ("run -f {job} --set name=[", "--set 'name=[': no valid YAML"),
    ("run -f {job} --set name={{", "no valid YAML"),
    ("run -f {job} --set name='", "no valid YAML"),
    ("run -f {job} --set name=@a", "no valid YAML"),
    ("run -f {job} --set name=!!python/object/apply:os.getcwd", "could not determine a constructor"),
    ("run -f {job} --set name=!!int__x", "no valid YAML"),
    ("run -f {job} --set name=!!timestamp__x", "no valid YAML"),
    ("run -f {job} --replay {dir}", "holds no plans.jsonl; give the directory of a run that has trained"),
    ("run -f {job} --replay {dir}/none", "holds no plans.jsonl"),
    ("run -f {job} --replay {torn}", "plans.jsonl cannot be read"),
    ("run -f {job} --out {dir}", "is not empty and holds no run; give an empty or new folder with --out"),
    ("run -f {job} --out {run}", "holds another run; go on with it by `frostline resume"),
    ("run -f {job} --out {job}", "is no directory; give another --out"),
    ("run -f {job} --out {job}/below", "is no directory; give another --out"),
    ("run -f {job} --out /proc/none", "cannot be made"),
    ("resume {dir}/none", "no such directory; give a run directory such as runs/digits"),
    ("resume {dir}", "is no run directory: it has neither job.yaml nor metrics.jsonl"),
    ("resume {run}", "has completed; there is nothing to go on with"),
    ("resume {unfinished}", "holds no checkpoint of it; mount or restore that folder, or train again from step 0"),
    ("resume {unfinished} --from-scratch --set seed=7", "seed is 0 and fixed for the whole run; start a new run to have 7"),
    ("resume {unfinished} --from-scratch --set cache.us=never", "cache.us: unknown key; did you mean use?"),
    ("resume {unfinished} --from-scratch --workers 0", "'0' is no whole number above 0"),
    ("resume {torn}", "job.yaml: no valid YAML"),
    ("status {dir}/none", "no such directory"),
    ("status {dir}", "is no run directory"),
    ("status {torn}", "plans.jsonl, line 1: no JSON"),
    ("report {half}", "job.yaml: no YAML"),
    ("report {zeros}", "bytes that are no text"),
    ("report {worded}", "metrics.jsonl has a record without lineage and step, two whole numbers: {'step': 'three'}"),
    ("status {worded}", "metrics.jsonl has a record without lineage and step"),
    ("report {planless}", "plans.jsonl holds a broken Plan: generation: Field required"),
    ("report {counted}", "statistics.jsonl holds a broken IntervalStatistics: number: "),
    ("report {unkind}", "events.jsonl has an event without a kind: {'step': 3}"),
    (f"run -f {{job}} --out {'x' * 5000}", "a path is longer than this system allows; give a shorter one"),
    ("run -f {dir}/loop", "loop: cannot be read (Too many levels of symbolic links)"),
    ("run -f {dir}/wide", "wide: is no UTF-8 text"),
    ("run -f {job} --quiet=3", "ignored explicit argument '3'"),
    ("run -f {job} --out .", "is not empty and holds no run"),
    ("job --explain x.y.z", "no field 'x.y.z'"),
    (f"freeze {{run}} {HUGE}", "is no whole number and at most 2147483647"),
    ("cancel {run} now", "unrecognized arguments: now"),
    ("compare -f {job} --arms ,", "nothing is no arm"),
    ("plan -f {job} --profile {dir}/list.json", "Input should be an object"),
    ("verify {run} --steps ten", "'ten' is no list of steps; write 10,20,30"),
    ("verify {run} --steps 0", "'0' is no list of steps"),
    ("verify {run} --steps 1,,2", "is no list of steps"),
    ("plan -f {job} --devices 0", "'0' is no whole number above 0"),
    (f"plan -f {{job}} --devices {HUGE}", "is no whole number above 0 and at most 2147483647"),
    ("plan -f {job} --devices 70000", "'70000' is more than the 65536 devices that can be planned for"),
    ("plan -f {job} --teraflops nan", "'nan' is no finite number above 0"),
    ("plan -f {job} --teraflops inf", "'inf' is no finite number above 0"),
    ("plan -f {job} --teraflops 0", "'0' is no finite number above 0"),
    ("plan -f {job} --teraflops fast", "'fast' is no finite number above 0"),
    ("plan -f {job} --freeze-point -1", "'-1' is no whole number"),
    ("plan -f {job} --freeze-point 99", "--freeze-point is 99; it must be 0 to 7"),
    ("plan -f {job} --hardware tpu", "invalid choice: 'tpu'"),
    ("plan -f {job} --profile {dir}/none", "none"),
    ("plan -f {job} --profile {dir}/binary", "binary"),
    ("compare -f {job} --seeds 9-0", "'9-0' is no list of seeds; write 0-9 or 0,3,7-9"),
    ("compare -f {job} --seeds a", "'a' is no list of seeds"),
    ("compare -f {job} --seeds 0-99999999999", "'0-99999999999' is no list of seeds"),
    ("compare -f {job} --seeds 0-999999999", "'0-999999999' are more than 10000 seeds; name fewer"),
    ("compare -f {job} --arms static,fast", "fast is no arm; known: static, freezing"),
    ("compare -f {job} --time-seeds x", "'x' is no whole number"),
    ("compare -f {job} --out {job}", "cannot be made"),
    ("compare -f {job} --out {dir}/c --set checkpoint.uri=../x", "checkpoint.uri is '../x': several runs would write there"),
    ("job", "one of the arguments --explain --schema is required"),
    ("job --explain freeze.rail", "no field 'freeze.rail'; did you mean freeze.rails"),
    ("job --explain --schema", "not allowed with argument"),
    ("freeze {run}", "required: N"),
    ("freeze {run} -1", "'-1' is no whole number"),
    ("resize {run} two", "'two' is no whole number"),
    ("reshape {run} --pp 2", "required: --dp"),
    ("reshape {run} --pp 0 --dp 1", "'0' is no whole number above 0"),
    ("suspend {dir}/none", "no such directory"),
]

FIELDS = [
    ("seed=true", "seed is true, a truth value; write a number"),
    ("training.steps=true", "training: steps is true, a truth value; write a number"),
    ("training.clip_norm=false", "training: clip_norm is false, a truth value; write a number"),
    ("training.audit_every_steps=.5", "got a number with a fractional part"),
    ("elastic=off", "elastic is 'off'"),
    ("faults=[{kind: explode, step: 1}]", "faults.0.kind is 'explode'"),
    ("reshapes=[3]", "reshapes.0 is 3"),
    ("placement.spare_workers=999999999", "less than or equal to 65536"),
    ("cluster.price_per_worker_hour=-1", "cluster.price_per_worker_hour is -1: Input should be greater than or equal to 0"),
    ("training.steps=0", "training.steps is 0"),
    ("training.steps=many", "training.steps is 'many'"),
    ("training.steps=1.5", "training.steps is 1.5"),
    ("training.steps=null", "give exactly one of them"),
    ("training.steps=10000000000", "less than or equal to 1000000000"),
    (f"training.steps={HUGE}", "a whole number beyond 64 bits"),
    ("training.steps={}", "training.steps"),
    ("training.epochs=.inf", "--set 'training.epochs=.inf': the value is inf; give a finite number"),
    ("training.epochs=1e300", "training.epochs is"),
    ("training.optimizer.learning_rate=.nan", "give a finite number"),
    ("training.optimizer.learning_rate=0", "greater than 0"),
    ("training.optimizer.name=lion", "'adamw' or 'sgd'"),
    ("training.optimizer.beta1=1", "less than 1"),
    ("training.batch_size=4", "batch_size 4 is smaller than micro_batch_size 8"),
    ("training.reduction_leaves=6", "it must be a power of two"),
    ("training.threads=100000", "less than or equal to 1024"),
    ("training.precision=float16", "training.precision is 'float16'"),
    ("training.clip_norm=0", "training.clip_norm is 0"),
    ("controller.heartbeat_seconds=.inf", "give a finite number"),
    ("controller.heartbeat_seconds=1e-300", "controller.heartbeat_seconds is"),
    ("controller.dead_after_seconds=1e-300", "is not above heartbeat_seconds 0.5: every worker would count as gone"),
    ("controller.hang_floor_seconds=1e9", "less than or equal to 10000000"),
    ("cache.addresses=[x]", "shard 'x' is not host:port with a port of 1 to 65535"),
    ("cache.addresses=[host:0]", "shard 'host:0' is not host:port"),
    ("cache.addresses=['host:99999']", "shard 'host:99999' is not host:port"),
    ("cache.memory_bytes=1", "cache.memory_bytes is 1"),
    ("cache.codec=zip", "cache.codec is 'zip'"),
    ("checkpoint.uri=s3://bucket/x", "checkpoint.uri is 's3://bucket/x': is no path; checkpoints go to a folder"),
    (
        "checkpoint.uri=/etc/passwd",
        "/etc/passwd: checkpoints cannot be written there (File exists); make it a folder that this process may write to, or set "
        "checkpoint.uri to another folder",
    ),
    ("checkpoint.uri=/proc/x", "/proc/x: checkpoints cannot be written there"),
    ("checkpoint.uri=/proc/self", "/proc/self: checkpoints cannot be written there"),
    ("checkpoint.keep_last=0", "checkpoint.keep_last is 0"),
    ("placement.min_workers=9", "min_workers 9 exceeds workers 4; lower min_workers or raise workers"),
    ("placement.pp_degree=5", "exceeds workers 4; raise workers or lower a degree"),
    ("reshapes=[{step: 5, pp_degree: 1, dp_degree: 9}]", "reshapes.0.dp_degree 9 exceeds training.reduction_leaves 8"),
    ("reshapes=[{step: 0, pp_degree: 1, dp_degree: 1}]", "reshapes.0.step is 0"),
    ("faults=[{kind: stop, step: 1, worker: 9}]", "faults.0.worker is 9; the job's pods are 0 to 3"),
    ("freeze.policy.name=replay", "freeze.policy.replay_of is null; name the run directory to follow"),
    ("freeze.policy={name: replay, replay_of: none}", "give the folder of a run"),
    ("freeze.policy.points=[1, 2]", "freeze.policy.points"),
    ("freeze.interval_steps=1", "freeze.interval_steps is 1"),
    ("model.adapters={rank: 0}", "model.adapters.rank is 0"),
    ("model.adapters={blocks: first 2}", "blocks is 'first 2'; write all, last N, last half"),
    ("model.config=3", "model.config is 3"),
    ("model.config.since=2020-01-01", "is 2020-01-01, a date; write a text (in quotes), a number, a list or a mapping"),
    ("model.config.key=!!binary aGVsbG8=", "binary; write a text"),
    ("model.config.key=!!set {a, b}", "a set; write a text"),
    ('model.config.key="\\ud800"', "characters that no file or name can hold"),
    ('model.path="a\\0b"', "characters that no file or name can hold"),
    ("model={family: vit, path: a, hub: b}", "and hub is 'b'; give one of them"),
    ("data.test_fraction=1", "data.test_fraction is 1"),
    ("data.sequence_length=9999999", "data.sequence_length is 9999999"),
    ("task.kind=dancing", "task.kind is 'dancing'"),
    ("name=Big Run", "name is 'Big Run'"),
    ("name=2020-01-01", "a date; write a text"),
    ("seed=-1", "seed is -1"),
    ("kubernetes.trainer.replicas=3", "kubernetes.trainer.replicas: unknown key"),
]

ALIASES = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {k: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 12)}]}}\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
FILES = [
    ("empty", "", "holds NoneType, expected a mapping"),
    ("a list", "- a\n", "holds list, expected a mapping"),
    ("torn", "model: {family: vit", "no valid YAML"),
    ("two documents", "a: 1\n---\nb: 2\n", "expected a single document"),
    ("a tab", "model:\n\tfamily: vit\n", "no valid YAML"),
    ("zero bytes", "\0" * 4096, "no valid YAML"),
    ("a key twice", "seed: 1\nname: a\nseed: 2\n", "'seed' is given twice"),
    ("an alias of nothing", "a: *b\n", "undefined alias"),
    ("a bomb of aliases", ALIASES, "more than 100000 values, aliases counted as often as they are used"),
    ("a bomb of merges", MERGES, "more than 100000 values"),
    ("a list inside itself", "a: &a [*a]\n", "deep; write it flatter"),
    ("deep", "a: " + "[" * 200 + "]" * 200, "nested more than 50 deep"),
    ("deeper", "a: " + "[" * 3000 + "]" * 3000, "nested too deeply"),
    ("a long number", "seed: " + "9" * 6000, "no valid YAML"),
    ("a list as a key", "? [1, 2]\n: 3\n", "no valid YAML"),
    ("a date as a key", "model: {2020-01-01: 3}\n", "the key 2020-01-01 is a date"),
    ("another object", "!!python/object/apply:os.getcwd []\n", "no valid YAML"),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the files that the tables' commands name."""
    tmp_path = tmp_path_factory.mktemp("places")
    job = tmp_path / "job.in"
    job.write_text(yaml.safe_dump(job_values()))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00a")
    torn, zeros = tmp_path / "torn", write_run(tmp_path / "zeros")
    torn.mkdir()
    (torn / "job.yaml").write_text("model: {family: vit")
    (torn / "plans.jsonl").write_text('{"kind": \n')
    lines = (zeros / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (zeros / "metrics.jsonl").write_bytes(b"".join([*lines[:3], b"\0" * 4096 + b"\n", *lines[3:]]))
    run, unfinished = write_run(tmp_path / "run"), write_run(tmp_path / "unfinished", finished=False)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "wide").write_bytes(job.read_text().encode("utf-16"))
    (tmp_path / "list.json").write_text("[1, 2]")
    broken = {
        "worded": ("metrics.jsonl", '{"step": "three"}'),
        "planless": ("plans.jsonl", '{"kind": "plan"}'),
        "counted": ("statistics.jsonl", '{"number": null}'),
        "unkind": ("events.jsonl", '{"step": 3}'),
    }
    runs = {name: write_run(tmp_path / name) for name in broken}
    for name, (file, line) in broken.items():
        (runs[name] / file).write_text(line + "\n")
    half = write_run(tmp_path / "half")
    (half / "job.yaml").write_text("model: {family: vit")
    return {"dir": tmp_path, "job": job, "run": run, "unfinished": unfinished, "torn": torn, "zeros": zeros, "half": half} | runs


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a command that is accepted by mistake fail here, instead of starting to train."""
    monkeypatch.setattr("frostline_controller.local_run.requests.watch", lambda *given, **named: pytest.fail("it was started"))


@pytest.fixture
def places(written: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Return the same files, with the working directory among them."""
    monkeypatch.chdir(written["dir"])
    return written


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the message of a refused command, which is its last line and appears once."""
    started = time.monotonic()
    code, out, error = end_of(capsys, *words)
    lines = error.splitlines()
    assert code == exit_codes.USER_MISTAKE, error
    assert len(lines[-1]) < 700, "one clear line"
    assert error.count("frostline: ") == 1 or lines[0].startswith("usage: "), error
    assert "Traceback" not in error + out
    assert time.monotonic() - started < LONG
    return lines[-1]


@pytest.mark.parametrize(("line", "says"), COMMAND_LINES)
def test_a_mistake_on_the_command_line(line: str, says: str, places: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refusal(capsys, *(word.replace("__", " ") for word in line.format(**places).split()))


@pytest.mark.parametrize(("field", "says"), FIELDS)
def test_a_mistake_in_a_field_leaves_nothing_behind(
    field: str, says: str, places: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before = list(Path("runs").glob("*"))
    assert says in refusal(capsys, "run", "-f", str(places["job"]), "--set", field)
    assert list(Path("runs").glob("*")) == before


@pytest.mark.parametrize(("content", "says"), [row[1:] for row in FILES], ids=[row[0] for row in FILES])
def test_a_job_file_that_is_none(content: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(content)
    assert says in refusal(capsys, "run", "-f", str(file), "--out", str(tmp_path / "run"))


def test_there_are_enough_of_them() -> None:
    assert len(COMMAND_LINES) + len(FIELDS) + len(FILES) >= 120
