"""The three images: small, pinned, not root, and every install step works. No engine is needed, so no image is built."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.images.dockerfile import Build, Stage, read_instructions
from tests.wide_rows import wide_rows

ROOT = Path(__file__).parents[2]
SERVICES = ("controller", "cache_server", "trainer")
IMPORTED = {
    "controller": "frostline_controller.cli.kubectl, frostline_controller.check_release",
    "cache_server": "frostline_cache_server.__main__",
    "trainer": "frostline_trainer.process.worker, frostline_trainer.process.preload",
}
"""Commands that the chart and people start in an image, beside the image's own command."""
HEAVY = ("torch", "transformers")


def dockerfile(service: str) -> Path:
    return ROOT / service / "Dockerfile"


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_is_pinned_runs_as_nobody_and_is_built_in_two_stages(service: str) -> None:
    found = read_instructions(dockerfile(service))
    bases = [one.text.split()[0] for one in found if one.name == "FROM"]
    assert len(bases) == 2 and len(set(bases)) == 1
    name, _, tag = bases[0].partition(":")
    assert name == "python" and tag.split("@")[0].count(".") == 2 and "slim" in tag, "a patch release of a small image"
    assert re.search(r"@sha256:[0-9a-f]{64}$", tag), "tags can be moved"
    last = {one.name: one.text for one in found}
    user, group = last["USER"].split(":")
    assert int(user) >= 10000 and int(group) >= 10000
    assert last["CMD"].startswith("["), "a shell would take the signals"
    assert not [one for one in found if one.name in ("ADD", "EXPOSE", "ENTRYPOINT")]


@pytest.mark.parametrize("service", SERVICES)
def test_only_the_trainers_have_torch(service: str) -> None:
    named = "requirements-torch.txt" in dockerfile(service).read_text(encoding="utf-8")
    assert named == (service == "trainer")


def test_the_trainers_have_the_libraries_of_rdma_each_with_its_version() -> None:
    (line,) = [one.text for one in read_instructions(dockerfile("trainer")) if "apt-get install" in one.text]
    packages = [word for word in shlex.split(line) if "=" in word]
    assert {word.partition("=")[0] for word in packages} == {"libibverbs1", "ibverbs-providers"}
    assert all(re.fullmatch(r"[a-z0-9-]+=\d[\w.+~-]*", word) for word in packages)
    assert "rm -rf /var/lib/apt/lists/*" in line, "the image keeps no lists"


@pytest.mark.parametrize("service", wide_rows(SERVICES, ("cache_server",)))
def test_the_install_steps_work_and_what_is_started_can_be_imported(service: str, tmp_path: Path) -> None:
    """Clean environments; the trainer's sees this environment's packages, since torch with its libraries is 5 GB."""
    stage = follow(service, tmp_path)
    module = stage.command[stage.command.index("-m") + 1]
    python = stage.place("/opt/frostline/bin/python")
    where = python_says(python, f"import {module} as found, {IMPORTED[service]}; print(found.__file__)")
    assert Path(where.strip()).resolve().is_relative_to(stage.place("/opt/frostline").resolve()), "not this checkout's"
    compiled = {file.name.split(".")[0] for file in stage.place("/compiled").rglob("*.pyc")}
    assert {"argparse", "selectors", "socket", "subprocess"} <= compiled, "the standard library is compiled in the image"
    ours = stage.place("/opt/frostline").resolve().rglob("frostline_contract/__pycache__/plan.*.pyc")
    assert list(ours), "pip compiles the rest"
    if service != "trainer":
        for name in HEAVY:
            assert python_says(python, f"import importlib.util; print(importlib.util.find_spec({name!r}))").strip() == "None"


def follow(service: str, folder: Path) -> Stage:
    if service != "trainer":
        return Build(ROOT, folder).follow(dockerfile(service))
    here = Path(os.__file__).parent.name
    site = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    link = f"echo {site} > $0/lib/{here}/site-packages/here.pth"

    class Seeing(Build):
        """A build whose environment finds the packages installed here, so that pip installs nothing large."""

        def _run(self, stage: Stage, text: str) -> None:
            made, _, rest = text.partition("&&")
            if "-m venv" not in made:
                super()._run(stage, text)
                return
            super()._run(stage, f"{made} && {link.replace('$0', '/opt/frostline')} && {rest}")

    return Seeing(ROOT, folder).follow(dockerfile(service))


def python_says(python: Path, code: str) -> str:
    """Return what the code prints in an environment that was installed, whatever packages the caller's PYTHONPATH names."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=python.parent, env=own)
    assert done.returncode == 0, done.stderr
    return done.stdout
