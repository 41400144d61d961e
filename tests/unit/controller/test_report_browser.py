"""report.html in a real browser: it draws, the slider changes the picture, and the console stays silent."""

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from frostline_controller.report.build import build_report
from tests.unit.controller.synthetic_run import TOTAL, write_run

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage", "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--window-size=1200,2400",
)  # fmt: skip

# A person's acts on the page: move the slider, press the buttons, and note the picture's text.
PROBE = """
<script>
window.addEventListener("load", () => {
  const slider = document.getElementById("step-slider"), picture = document.getElementById("occupancy");
  const seen = [];
  const note = (name) => seen.push({name, step: Number(slider.value), label: picture.getAttribute("aria-label"),
    units: picture.querySelectorAll(".unit").length, frozen: picture.querySelectorAll(".frozen").length,
    readout: document.getElementById("readout").textContent, news: document.getElementById("news").textContent,
    stages: [...picture.querySelectorAll(".stage title")].map((t) => t.textContent)});
  const move = (step) => { slider.value = step; slider.dispatchEvent(new Event("input")); note("move"); };
  note("start");
  for (const step of [45, 70, 90, 120]) move(step);
  document.getElementById("previous").click(); note("previous");
  document.getElementById("next").click(); note("next");
  const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
  const out = document.createElement("pre");
  out.id = "probe"; out.textContent = JSON.stringify({seen, wide, svgs: document.querySelectorAll("section svg").length});
  document.body.appendChild(out);
});
</script>
"""


def browse(page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Open a page headless, with a profile of its own beside it."""
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [str(CHROMIUM), *FLAGS, profile, *flags, page.as_uri()]
    environment = {**os.environ, "HOME": str(page.parent)}
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True, env=environment)


@pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: chromium is not on PATH, so nobody looked at report.html")
def test_the_slider_changes_the_picture_and_nothing_complains(tmp_path: Path) -> None:
    report = build_report(write_run(tmp_path / "digits"))
    probed = tmp_path / "probed.html"
    probed.write_text(report.read_text().replace("</body>", PROBE + "</body>"))
    done = browse(probed, "--dump-dom")
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert console == []
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None
    reported = json.loads(unescape(found.group(1)))
    by_step = {entry["step"]: entry for entry in reported["seen"] if entry["name"] in ("start", "move")}
    assert {step: (e["units"], e["frozen"]) for step, e in by_step.items()} == {
        1: (8, 0), 45: (8, 2), 70: (16, 4), 90: (16, 8), TOTAL: (32, 16)
    }  # fmt: skip
    assert [len(by_step[step]["stages"]) for step in (1, 70, TOTAL)] == [4, 4, 4]
    assert "generation 1.2" in by_step[70]["readout"]
    assert "every trainable unit fits one worker" in by_step[TOTAL]["news"]
    assert by_step[1]["label"] == "Step 1: 4 pipeline ranks times 1 replicas, 0 of 8 units frozen"
    assert [entry["step"] for entry in reported["seen"][-2:]] == [101, TOTAL]
    assert reported["svgs"] == 10
    assert not reported["wide"]


@pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: chromium is not on PATH, so nobody looked at report.html")
def test_a_browser_draws_the_page(tmp_path: Path) -> None:
    report = build_report(write_run(tmp_path / "digits"))
    browse(report, f"--screenshot={tmp_path / 'page.png'}")
    from PIL import Image

    with Image.open(tmp_path / "page.png") as image:
        colours = image.convert("RGB").getcolors(maxcolors=1 << 24) or []
    assert image.size == (1200, 2400)
    # An empty or broken page has a handful of colours; the heat map alone has hundreds.
    assert len(colours) > 500
