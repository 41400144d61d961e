"""Nothing is installed or started that is not what was looked at: hashes of packages, digests of images."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.pins import IMAGES, TORCH, WHOLE, closure, declared, pin_of, read_pins, write_images

ROOT = Path(__file__).parents[2]
LOCKED = (*WHOLE, TORCH, *(f"{service}/requirements.txt" for service in IMAGES))
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
TORCH_ELSEWHERE = 'install --index-url "$TORCH_INDEX_URL" "$(grep -o \'^torch==[^ ]*\' requirements-torch.txt)"'
"""The one escape, told of in tools/setup.sh, requirements-torch.txt and docs/security.md."""


@pytest.mark.parametrize("name", LOCKED)
def test_every_package_has_one_version_and_hashes(name: str) -> None:
    pins = read_pins(ROOT / name)
    assert pins
    for package, entry in pins.items():
        assert re.match(rf"(?i){package.replace('-', '[-_.]')}==[\w.+!]+( ; [^\\]+)? \\\n", entry), entry.splitlines()[0]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}$", entry), package
        assert not re.search(r"--(?!hash=sha256:[0-9a-f]{64}( \\)?$)", entry, flags=re.MULTILINE), package


def test_files_that_are_installed_together_name_the_same_files() -> None:
    whole = read_pins(ROOT / "requirements.txt")
    for service in IMAGES:
        assert read_pins(ROOT / service / "requirements.txt").items() <= whole.items(), service
    assert not read_pins(ROOT / TORCH).keys() & whole.keys()
    bench = read_pins(ROOT / "requirements-bench.txt")
    assert {name: bench[name] for name in bench.keys() & whole.keys()}.items() <= whole.items()


def test_every_installation_compares_hashes() -> None:
    """What takes something from an index; what is installed from this checkout takes nothing."""
    files = [ROOT / "Makefile", ROOT / "tools/setup.sh", *(ROOT / service / "Dockerfile" for service in IMAGES)]
    found = []
    for file in files:
        lines = re.sub(r"\\\n", " ", file.read_text(encoding="utf-8")).splitlines()
        parts = [part.strip() for line in lines if not line.startswith("#") for part in re.split(r"&&|;", line)]
        found += [part for part in parts if re.search(r"^install -|\bpip\b.* install ", part) and "local pip=" not in part]
    local = [part for part in found if "--no-deps --no-build-isolation" in part and "requirement" not in part]
    hashed = [part for part in found if "--require-hashes" in part]
    assert set(found) - set(local) - set(hashed) == {TORCH_ELSEWHERE}
    assert len(local) == 4 and len(hashed) == 8, found
    assert "--require-hashes --requirement" in (ROOT / "tests/cluster/binaries.py").read_text(encoding="utf-8")
    for part in local:
        targets = part.split("--no-build-isolation")[1].replace("-e ", "").split()
        assert targets and all((ROOT / target / "pyproject.toml").is_file() for target in targets)


def test_what_images_install_is_what_their_distributions_need(tmp_path: Path) -> None:
    write_images(ROOT, tmp_path)
    for service, distributions in IMAGES.items():
        made, committed = tmp_path / service / "requirements.txt", ROOT / service / "requirements.txt"
        assert made.read_text(encoding="utf-8") == committed.read_text(encoding="utf-8"), "run: make proto"
        pins = read_pins(committed).keys() | {"torch"}
        asked = {canonicalize_name(one.name) for name in distributions for one in declared(ROOT / name / "pyproject.toml")}
        assert asked <= pins, asked - pins
        assert not pins & {"pytest", "ruff", "hypothesis"}


def test_a_dependency_that_nobody_pinned_is_named() -> None:
    pinned = set(read_pins(ROOT / "requirements.txt"))
    with pytest.raises(SystemExit, match="aiohttp is needed and not pinned"):
        closure([Requirement("kubernetes")], pinned - {"aiohttp"}, set())
    assert "cryptography" in closure([Requirement("pyjwt[crypto]")], pinned, set())


def test_every_distribution_here_is_pinned() -> None:
    """What .venv holds beside ours came by a pin: nothing was pulled in unasked."""
    command = [sys.executable, "-m", "pip", "freeze", "--all", "--exclude-editable"]
    freeze = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pinned = {name: pin_of(entry) for file in (*WHOLE, TORCH) for name, entry in read_pins(ROOT / file).items()}
    ours = re.compile(r"^(pip|frostline[-_]\w+)\b")
    names = [re.split(r"==| @", line)[0] for line in freeze.splitlines() if not ours.match(line)]
    assert len(names) > 80
    assert not [name for name in names if canonicalize_name(name) not in pinned]


def test_images_are_named_by_digest() -> None:
    """Bases of ours, and Redis of the chart. Ours are pinned by who installs: `image.digest` (tests/chart/test_toggles.py)."""
    for service in IMAGES:
        base = re.search(r"^ARG PYTHON_IMAGE=(\S+)$", (ROOT / service / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
        assert base and DIGEST.search(base[1]), service
    values = yaml.safe_load((ROOT / "charts/frostline/values.yaml").read_text(encoding="utf-8"))["kubernetes"]
    images = {role: section["image"] for role, section in values.items() if isinstance(section, dict) and "image" in section}
    assert set(images) == {"controller", "trainer", "cache_server", "redis"}
    for role, image in images.items():
        assert image["repository"] == "" or DIGEST.search(image["tag"]), f"an image of others by tag alone: {role}"
    texts = [file.read_text(encoding="utf-8") for file in (ROOT / "charts/frostline/templates").rglob("*") if file.is_file()]
    named = [line.strip() for text in texts for line in text.splitlines() if re.match(r"\s*(- )?image:", line)]
    assert named and all('include "frostline.image"' in line for line in named), named
