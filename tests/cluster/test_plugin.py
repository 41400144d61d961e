"""`kubectl frostline`, as kubectl itself finds and runs it."""

from pathlib import Path

from tests.cluster.releases import Release, long
from tests.cluster.waiting import wait_for


def frostline(release: Release, *words: str) -> str:
    """Run the plugin within a program's time, not kubectl's: a report took over a minute to draw on one busy processor."""
    return release.cluster.run("kubectl", "frostline", *words, namespace=release.namespace)


def test_a_run_is_seen_and_steered(release: Release, tmp_path: Path) -> None:
    by_hand = {"interval_steps": 10, "policy": {"name": "manual", "alpha": None}}
    release.install(**long(2000), freeze=by_hand)  # it is suspended in the end, so it need not end by itself
    wait_for(lambda: release.progress().get("generation"), "a first generation to be told", 60)
    shown = frostline(release, "status", "digits")
    for part in ("digits: running", "of 2000", "freeze point 0", "shape pp 4 x dp 1", "digits-trainer-3", "digits-controller-"):
        assert part in shown
    assert "stage bounds" in (plan := frostline(release, "plan", "digits"))
    assert plan.count("units") == 4
    assert "freeze by command" in frostline(release, "freeze", "digits", "3")
    wait_for(lambda: "freeze point 3" in frostline(release, "status", "digits"), "the freeze to be shown", 60)
    assert "checkpoint by command" in frostline(release, "checkpoint", "digits")
    reported = frostline(release, "resize", "digits", "3")
    assert "3 workers" in reported and "answered by 3" in reported
    assert "refused" in release.cluster.kubectl("frostline", "freeze", "digits", "99", namespace=release.namespace, check=False)
    assert "digits-trainer-0: " in frostline(release, "logs", "digits", "--pod", "trainer", "--lines", "3")
    page = tmp_path / "report.html"
    assert frostline(release, "report", "digits", "--out", str(page)).strip() == str(page)
    assert "<svg" in page.read_text(encoding="utf-8")
    assert "Freeze" in frostline(release, "events", "digits")
    assert "suspend" in frostline(release, "suspend", "digits")
    release.wait_for_state("suspended")
    assert "digits: suspended" in frostline(release, "status", "digits", "--watch")
    refused = release.cluster.kubectl("frostline", "cancel", "digits", namespace=release.namespace, check=False)
    assert "the run is suspended; resume it first" in refused


def test_a_release_that_is_not_there_is_said_with_those_that_are(release: Release) -> None:
    release.install()
    said = release.cluster.kubectl("frostline", "status", "digit", namespace=release.namespace, check=False)
    assert f"no release digit in namespace {release.namespace}: it has digits" in said
