"""The house-rule check sees what it is there to see."""

from pathlib import Path

import pytest

from frostline_contract.phases import Phase
from frostline_contract.run_status import RunStatus
from frostline_contract.worker_state import WorkerState
from tools.house_rules import check, main
from tools.one_home import run_directory_names, words_of


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("a.py", '"""Doc."""\nx = 1  # TODO later\n', "'TODO': unfinished work"),
        ("a.py", '"""Doc."""\nimport pickle\n', "no pickle"),
        ("a.py", '"""Doc."""\nimport torch\nw = torch.load("x")\n', "use safetensors"),
        ("a.py", '"""Doc."""\ntry:\n    f()\nexcept OSError:\n    pass\n', "exception swallowed"),
        ("a.py", '"""Doc."""\ndef f(rank):\n    return 1\n', "bare 'rank'"),
        ("a.py", '"""Doc."""\nrank = 1\n', "bare 'rank'"),
        ("a.py", '"""Doc."""\n' + "x = 1\n" * 330, "331 lines"),
        ("a.py", '"""Doc."""\ndef f():\n' + "    x = 1\n" * 80, "f has 81 lines"),
        ("a.py", '"""Doc."""\npp_rank = global_rank % shape.pp_degree\n', "a rank is worked out"),
        ("a.py", '"""Doc."""\ndp_rank = global_rank // pp_degree\n', "a rank is worked out"),
        ("a.py", '"""Doc."""\ngroup = member.global_rank // size\n', "a rank is worked out"),
        ("a.py", '"""Doc."""\ndp_rank, pp_rank = divmod(global_rank, pp_degree)\n', "a rank is worked out"),
        ("a.py", '"""Doc."""\nglobal_rank = dp_rank * placement.pp_degree + pp_rank\n', "a rank is worked out"),
        ("a.py", '"""Doc."""\nplaces = range(dp_rank * tp_degree, (dp_rank + 1) * tp_degree)\n', "a rank is worked out"),
        ("a.py", '"""Doc."""\nend = shape.dp_degree * (dp_rank + 1)\n', "a rank is worked out"),
        ("a.py", '"""Doc."""\nstage = pp_rank + chunk * pp_degree\n', "a rank is worked out"),
        ("a.py", '"""Doc."""\nowners = workers[pp_rank :: placement.pp_degree]\n', "a rank is worked out"),
        ("a.py", '"""Doc."""\nworld_size = one.pp_degree * one.dp_degree\n', "a rank is worked out"),
        ("a.py", '"""Doc."""\npp_rank = stage % degrees["pp"]\n', "a rank is worked out"),
        ("a.py", '"""Doc."""\npp_rank = stage % mesh.degree("pp")\n', "a rank is worked out"),
        ("a.py", '"""Doc."""\nkept_wards = ()\n', "private word 'wards'; say unit replica"),
        ("a.py", '"""Doc."""\nclass ParcelBox:\n    """Is."""\n', "private word 'parcel'; say replica update"),
        ("a.py", '"""Doc."""\ndef f(last_heard):\n    return 1\n', "private word 'heard'; say received"),
        ("a.py", '"""Doc."""\nbox.tell(1)\n', "private word 'tell'; say send"),
        ("utils.py", '"""Doc."""\n', "module name utils"),
        ("a.py", "x = 1\n", "no module docstring"),
        ("frostline_a/b.py", '"""B."""\n\n\nclass C:\n    """size: of it."""\n', "C's docstring begins with a parameter"),
        ("frostline_a/b.py", '"""B."""\n\n\ndef f(a, b):\n    """a, b(c): of it."""\n', "f's docstring begins with a parameter"),
        ("a.py", '"""Doc."""\ndef f(a, b):\n    """Do. a, c: of it."""\n', "f's docstring describes 'c'"),
        ("a.py", '"""Doc."""\ndef f(a):\n    """Do.\n\n    Args:\n        a: x.\n        d: y.\n    """\n', "describes 'd'"),
        ("frostline_a/b.py", '"""B."""\n\n\ndef f():\n    return 1\n', "f is public and has no docstring"),
        ("frostline_a/b.py", '"""B."""\n\n\nclass C:\n    x = 1\n', "C is public and has no docstring"),
        ("frostline_a/b.py", '"""B."""\n\n\nclass C:\n    """Is."""\n\n    def m(self):\n        ...\n', "C.m is public"),
        ("test_a.py", "def test_a():\n    f()\n", "test_a asserts nothing"),
        ("test_a.py", "class A:\n    def test_a(self):\n        f()\n", "test_a asserts nothing"),
    ],
)
def test_each_rule_is_seen(name: str, source: str, words: str) -> None:
    assert [text for _, text in check(Path(name), source) if words in text], check(Path(name), source)


DOCUMENTED = '''"""Doc."""


class Base(Protocol):
    """What there is."""

    def m(self):
        """One."""

    def n(self):
        """Two."""


class Made({base}):
    """One of them."""

    def m(self):
        return 1

    {more}
'''
OURS = "controller/frostline_controller/a.py"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('generation.phase("load")', "Phase.LOAD"),
        ('clock.enter("spare")', "Phase.SPARE"),
        ('late = worker.phase in ("recovery", "reshape")', "Phase.RECOVERY"),
        ('worker = Worker(phase="start")', "Phase.START"),
        ('own = {"load", "norms", "commit"}', "Phase.NORMS"),
        ('over = run.state.state == "suspended"', "RunStatus.SUSPENDED"),
        ('outcome = RunOutcome(status="failed")', "RunStatus.FAILED"),
        ('ended = ("completed", "failed")', "RunStatus.COMPLETED"),
        ('lost = worker.presence == "gone"', "WorkerState.GONE"),
        ('ranked = worker["state"] in ("member", "leaving")', "WorkerState.LEAVING"),
        ('shown = {"worker_id": name, "state": "joining"}', "WorkerState.JOINING"),
        ('word = "joining" if prepared else "spare"', "WorkerState.SPARE"),
        ('departures.note(worker_id, why, "ended")', "WorkerState.ENDED"),
        ('lines = read(folder / "metrics.jsonl")', "RunDirectory"),
        ('NAME = "redis.password"', "RunDirectory"),
        ("os.replace(draft, file)", "durable_files"),
        ("os.fsync(file.fileno())", "durable_files"),
        ("draft.rename(file)", "durable_files"),
        ("kept = all(step <= start.starts_at_step for start in later)", "lineage.Cuts"),
        ("cut = start.lineage > record.lineage and record.step > step", "lineage.Cuts"),
        ('kept = at.lineage <= manifest["lineage"] or manifest["step"] <= at.step', "lineage.Cuts"),
        ("newer = (one.lineage, one.step) > (other.lineage, other.step)", "lineage.Place"),
        ("newer = place < (checkpoint.lineage, checkpoint.step)", "lineage.Place"),
        ("newer = (lineage_at(failure, found.state), found.state.step) < place", "lineage.Place"),
        ('same = (manifest["lineage"], manifest["step"]) == place', "lineage.Place"),
        ("known = (record.lineage, record.step) in fresh", "lineage.Place"),
        ("found = sorted(records, key=lambda record: (record.lineage, record.step))", "lineage.Place"),
        ("found = max(own, key=lambda one: ((one.lineage, one.step), one.path))", "lineage.Place"),
        ("newest = max(((one.lineage, one.step) for one in old), default=(0, 0))", "lineage.Place"),
        ("first = min((one.lineage, one.step), (other.lineage, other.step))", "lineage.Place"),
        ("opened = 1 + max(lineages)", "lineage_above"),
        ("opened = max(one.lineage for one in decisions) + 1", "lineage_above"),
        ("opened = max([state.max_lineage, plan.lineage]) + 1", "lineage_above"),
        ("opened = max(*lineages, plan.lineage) + 1", "lineage_above"),
        ("opened = max(starts, key=newest).lineage + 1", "lineage_above"),
        ("opened = self.max_lineage + 1", "lineage_above"),
        ("last = decision.interval * calendar.interval_steps", "DecisionCalendar"),
        ("number = step // self.calendar.interval_steps", "DecisionCalendar"),
        ("wait = min(LONGEST, FIRST * 2 ** failures)", "Backoff"),
        ('uid = worker_id.rpartition("/")[0]', "worker_id"),
        ('line = {"kind": "plan_end", "last_step": 3}', "plan_log"),
        ("from frostline_trainer.faults.of_worker import PlannedFaults", "plugged in by name"),
        ("import frostline_trainer.faults", "plugged in by name"),
        ("from frostline_controller.faults.planned import PlannedFaults", "plugged in by name (frostline_controller.run.plug)"),
        ("from frostline_controller import faults", "plugged in by name"),
    ],
)
def test_a_second_home_of_a_rule_is_seen_in_production_code(line: str, words: str) -> None:
    source = f'"""Doc."""\n{line}\n'
    assert [text for _, text in check(Path(OURS), source) if words in text], check(Path(OURS), source)
    assert check(Path("tests/unit/a.py"), source) == [], "tests may say what they expect by its word"


@pytest.mark.parametrize(
    ("home", "line"),
    [
        ("proto/frostline_contract/durable_files.py", "os.replace(draft, file)"),
        ("proto/frostline_contract/lineage.py", "kept = step <= start.starts_at_step"),
        ("controller/frostline_controller/cluster/local/backend.py", 'file = folder / "events.jsonl"'),
        (OURS, 'text = "a-b".replace("-", "_")'),
        ("proto/frostline_contract/lineage.py", "cut = start.lineage > one.lineage and one.step > step"),
        (OURS, "late = before.step + 1 == state.step and before.lineage <= state.lineage"),
        (OURS, "due = decision.decided_in < lineage and decision.effective_step > step"),
        ("proto/frostline_contract/lineage.py", "newer = (one.lineage, one.step) > (other.lineage, other.step)"),
        ("proto/frostline_contract/lineage.py", "opened = max(known_lineages) + 1"),
        (OURS, "newer = Place(one.lineage, one.step) > other.place"),
        (OURS, "before = (decision.decided_in, decision.number) < (lineage, number)"),
        (OURS, "unsent = (one.lineage, one.number) > (lineage, interval)"),
        (OURS, "starts = tuple((one.lineage, one.step) for one in cuts)"),
        (OURS, "following = max((one.number for one in decisions), default=0) + 1"),
        (OURS, "newest = max(one.lineage for one in starts)"),
        ("proto/frostline_contract/worker_state.py", 'state = "gone"'),
        (OURS, 'shown = {"ended": names, "silent": others}'),
        (OURS, 'line = {"kind": "decision", "void": True}'),
        ("controller/frostline_controller/run/plan_log.py", 'line = {"kind": "plan_end"}'),
        (OURS, 'event = Event(kind="checkpoint")'),
        (OURS, "needed = 2 * calendar.interval_steps"),
    ],
)
def test_the_home_of_a_rule_and_what_only_looks_alike_pass(home: str, line: str) -> None:
    assert check(Path(home), f'"""Doc."""\n{line}\n') == []


def test_the_rules_read_their_words_from_the_contract() -> None:
    assert words_of("phases.py", "Phase") == frozenset(Phase)
    assert words_of("run_status.py", "RunStatus") == frozenset(RunStatus)
    assert words_of("worker_state.py", "WorkerState") == frozenset(WorkerState)
    assert {"job.yaml", "result.json", "metrics.jsonl", "tokens.json"} <= run_directory_names()


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.py", '"""Doc."""\nimport torch.distributed as dist\ndist.init_process_group(rank=global_rank)\n'),
        ("a.py", '"""Doc."""\ntry:\n    f()\nexcept OSError as error:\n    log(error)\n'),
        ("test_a.py", "def test_a():\n    assert f() == 1\n"),
        ("proto/frostline_contract/mesh.py", '"""Doc."""\npp_rank = global_rank % pp_degree\n'),
        ("tests/oracle.py", '"""Doc."""\npp_rank = global_rank % pp_degree\n'),
        ("a.py", '"""Doc."""\nsamples = batch_size * dp_degree\nwarmup = min(pp_degree - 1 - pp_rank, micro_batches)\n'),
        ("a.py", '"""Doc."""\nrounded = -(-micro_batches // pp_degree) * pp_degree\n'),
        ("test_a.py", "def test_a():\n    with pytest.raises(ValueError):\n        f()\n"),
        ("frostline_a/b.py", DOCUMENTED.format(base="Base", more="")),
        ("frostline_a/b.py", DOCUMENTED.format(base="object", more="def n(self):\n        return 2\n")),
    ],
)
def test_what_is_allowed_passes(name: str, source: str) -> None:
    assert check(Path(name), source) == []


def test_half_an_interface_documents_nothing() -> None:
    (fault,) = check(Path("frostline_a/b.py"), DOCUMENTED.format(base="object", more=""))
    assert fault[1].startswith("Made.m is public and has no docstring")


def test_a_fault_fails_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.py").write_text('"""Doc."""\n')
    assert main([str(tmp_path)]) == 0
    (tmp_path / "bad.py").write_text('"""Doc."""\nimport pickle\n')
    assert main([str(tmp_path)]) == 1
    assert "bad.py:2" in capsys.readouterr().out
    assert main([]) == 2
