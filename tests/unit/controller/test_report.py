"""report.html and its data, from a run directory that is true to the documented schemas."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from frostline_controller.report.build import build_report
from frostline_controller.report.charts import build_charts, thin
from frostline_controller.report.data import read_run
from frostline_controller.report.occupancy import occupancy
from frostline_controller.report.tensorboard import write_tensorboard
from tests.unit.controller.synthetic_run import FAILED_AT, RESTORED_AT, TOTAL, UNITS, WORKERS, record, write_run


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return write_run(tmp_path / "digits")


def test_a_cut_lineage_loses_its_later_steps_only(run_dir: Path) -> None:
    run = read_run(run_dir)
    assert [r.step for r in run.records] == list(range(1, TOTAL + 1))
    assert {r.lineage for r in run.records if r.step <= RESTORED_AT} == {0}
    assert {r.lineage for r in run.records if r.step > RESTORED_AT} == {1}
    # The late record of the old lineage is lost as well, and the doubled one counts once.
    assert [r.step for r in run.lost_records] == list(range(RESTORED_AT + 1, FAILED_AT + 2))
    assert run.lineage_starts == ((1, RESTORED_AT),)


def test_generations_have_their_first_and_last_steps(run_dir: Path) -> None:
    spans = [(str(span.plan.generation), span.first_step, span.last_step) for span in read_run(run_dir).plans]
    assert spans == [("1.1", 1, 50), ("1.2", 51, FAILED_AT), ("1.3", 81, 100), ("1.4", 101, None)]
    assert [(d.number, d.kind, d.effective_step) for d in read_run(run_dir).decisions] == [(2, "freeze", 43)]


def test_a_decision_that_became_void_is_told_once(run_dir: Path) -> None:
    plans = run_dir / "plans.jsonl"
    decided = next(line for line in map(json.loads, plans.read_text().splitlines()) if line["kind"] == "decision")
    with plans.open("a") as file:
        file.writelines(json.dumps(decided | changed) + "\n" for changed in ({"number": 3}, {"void": True}))
    assert [(one.number, one.void) for one in read_run(run_dir).decisions] == [(2, True), (3, False)]


def test_the_slider_knows_who_held_what(run_dir: Path) -> None:
    shown = occupancy(read_run(run_dir))
    assert shown["units"][0] == "embedding"
    assert shown["units"][-1] == "head"
    assert len(shown["units"]) == UNITS
    assert [worker["id"] for worker in shown["workers"]][:4] == list(WORKERS)
    # Steps 43 to 50 are computed in the first shape with two units frozen: a segment of its own.
    assert [1, 42, 0, 0] in shown["segments"]
    assert [43, 50, 0, 2] in shown["segments"]
    assert shown["plans"][-1]["bounds"] == [0, UNITS]
    assert shown["segments"][-1] == [101, TOTAL, 3, 4]
    covered = [step for low, high, *_ in shown["segments"] for step in range(low, high + 1)]
    assert covered == list(range(1, TOTAL + 1))


def test_the_page_needs_no_network_and_tells_the_run(run_dir: Path) -> None:
    page = build_report(run_dir).read_text()
    assert page.startswith("<!doctype html>")
    assert re.findall(r"""(?:src|href)=["'](?!#|data:)[^"']*""", page) == []
    assert page.count("Content-Security-Policy") == 1
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\"" in page
    for name in ("shape", "freeze", "gradients", "loss", "metric", "throughput", "parts", "cache", "timeline"):
        assert f'id="chart-{name}-title"' in page, name
    assert "96.11 %" in page
    assert "pod-3: killed by signal 9" in page
    assert "ab" * 32 in page
    # Reasons are text, not markup, in the table and in the slider's data alike.
    assert "block 3 of 6 &lt;has the&gt; least norm" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_the_page_names_whose_bits_were_wrong(run_dir: Path) -> None:
    named = "trainer-2 is on node b, device cpu; worker trainer-2 is excluded: ComputationDiffers"
    with open(run_dir / "events.jsonl", "a") as file:
        file.write(json.dumps({"kind": "wrong_bits", "step": 80, "generation": "1.3", "reason": named}) + "\n")
    rows = re.findall(r"<tr>.*?</tr>", build_report(run_dir).read_text(), re.DOTALL)
    assert [row for row in rows if "wrong_bits" in row and named in row], "in the table of events"


def test_pictures_take_their_colours_from_the_page(run_dir: Path) -> None:
    charts = build_charts(read_run(run_dir))
    assert len(charts) == 8
    for chart in charts:
        assert "var(--" in chart.svg
        assert re.search(r"#0[1-9]0[2-9]0[3-9ab]", chart.svg) is None
        assert "<desc" in chart.svg


def test_an_unfinished_run_has_a_report(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", finished=False)
    assert '<span class="badge other">unfinished</span>' in build_report(folder).read_text()
    for name in ("metrics.jsonl", "plans.jsonl", "statistics.jsonl", "events.jsonl"):
        (folder / name).unlink()
    assert "No step has been committed yet" in build_report(folder).read_text()


def test_records_without_their_plan_are_still_shown(run_dir: Path) -> None:
    (run_dir / "plans.jsonl").unlink()
    assert {segment[2] for segment in occupancy(read_run(run_dir))["segments"]} == {-1}
    assert "Shape over time" in build_report(run_dir).read_text()


def test_refused_and_infinite_losses_do_not_break_the_pictures(run_dir: Path) -> None:
    bad = record(TOTAL + 1, 1).model_copy(update={"loss": float("nan"), "refused": True, "gradient_norm": float("inf")})
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(bad.model_dump()) + "\n")
    assert "refused (not finite)" in build_report(run_dir).read_text()
    (run_dir / "metrics.jsonl").write_text(json.dumps(bad.model_dump()) + "\n")
    assert "No finite loss." in build_report(run_dir).read_text(), "not one step was good"


def test_no_run_directory_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no run directory"):
        build_report(tmp_path)


def test_thinning_keeps_every_record_once(run_dir: Path) -> None:
    records = read_run(run_dir).records
    for count in (1, 7, 119, 120, 500):
        groups = thin(records, count)
        assert [r for group in groups for r in group] == list(records)
        assert len(groups) == min(count, len(records))


def test_tensorboard_reads_back_what_metrics_hold(run_dir: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    write_tensorboard(run_dir)
    folder = write_tensorboard(run_dir)
    files = list(folder.iterdir())
    assert len(files) == 1
    losses = {}
    for event in EventFileLoader(str(files[0])).Load():
        for value in event.summary.value:
            if value.tag == "train/loss":
                losses[event.step] = value.tensor.float_val[0] if value.tensor.float_val else value.simple_value
    assert losses == pytest.approx({r.step: r.loss for r in read_run(run_dir).records}, rel=1e-6)


def test_report_and_tensorboard_import_no_torch(run_dir: Path) -> None:
    code = (
        "import sys; from frostline_controller.cli.main import main; "
        f"code = main(['report', {str(run_dir)!r}]); print(code, [m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_what_others_wrote_stays_where_it_is_shown_and_the_cluster_is_not_told_of(run_dir: Path) -> None:
    """In a script element the parser looks at "<" alone. A report may be passed on, and anyone who reaches the pages sees it."""
    reasons = ["<!--<script>", "</script><script>alert(1)</script>", "a < b", "]]>"]
    with open(run_dir / "events.jsonl", "a") as file:
        for reason in (*reasons, "half \ud800 a pair"):
            file.write(json.dumps({"kind": "reshape", "step": 100, "generation": "1.4", "reason": reason}) + "\n")
    job = yaml.safe_load((run_dir / "job.yaml").read_text())
    job["kubernetes"]["trainer"]["env"] = {"COLOUR": "by accident a secret"}
    (run_dir / "job.yaml").write_text(yaml.safe_dump(job))
    text = build_report(run_dir).read_text(encoding="utf-8")
    block = text.partition('id="occupancy-data">')[2].partition("</script>")[0]
    assert "<" not in block
    assert json.loads(block) == occupancy(read_run(run_dir))
    shown = json.dumps(json.loads(block), ensure_ascii=False)
    assert all(reason in shown for reason in reasons)
    assert "half ? a pair" in text
    assert "by accident" not in text and "kubernetes:" not in text
    assert "learning_rate" in text
