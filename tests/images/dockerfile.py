"""A Dockerfile without a container engine: its instructions, followed in an ordinary folder.

The instructions of our files are supported: ARG with a default, FROM, WORKDIR, COPY, RUN, ENV, USER, CMD. Absolute paths of COPY
and RUN lie under the stage's folder; `python` is the interpreter of the tests, since no base image is available here. Packages of
the base's distribution are recorded, not installed.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

PATHS = re.compile(r"(?<![\w./-])/(opt|build)(?=[/\s]|$)")
"""Folders that exist in the images and not on this machine."""


@dataclass(frozen=True)
class Instruction:
    """One instruction, with continuation lines joined. name: in capitals."""

    name: str
    text: str


def read_instructions(file: Path) -> list[Instruction]:
    """Return a file's instructions without comments and empty lines; an ARG's default replaces its name."""
    text = re.sub(r"\\\n", " ", file.read_text(encoding="utf-8"))
    lines = [line.strip() for line in text.splitlines()]
    read = [Instruction(*_split(line)) for line in lines if line and not line.startswith("#")]
    defaults = dict(one.text.split("=", 1) for one in read if one.name == "ARG")

    def default(named: re.Match[str]) -> str:
        return defaults.get(named[1], named[0])

    return [Instruction(one.name, re.sub(r"\$\{(\w+)\}", default, one.text)) for one in read if one.name != "ARG"]


@dataclass
class Stage:
    """A stage, which a FROM begins. root: the folder in place of /. command: of CMD. packages: of the base's distribution."""

    base: str
    root: Path
    workdir: str = "/"
    user: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)

    def place(self, path: str) -> Path:
        """Return the place on this machine of an absolute or relative path of the image."""
        return self.root / os.path.normpath(os.path.join(self.workdir, path)).lstrip("/")


class Build:
    """Follow a Dockerfile's instructions. context: the repository; .dockerignore admits a part of it."""

    def __init__(self, context: Path, folder: Path) -> None:
        self._context, self._folder = context, folder
        self._allowed = allowed_names(context / ".dockerignore")
        self.stages: dict[str, Stage] = {}

    def follow(self, file: Path) -> Stage:
        """Return the last stage. Raises AssertionError for a line that no engine accepts, RuntimeError for a failed RUN."""
        stage = None
        for one in read_instructions(file):
            if one.name == "FROM":
                stage = self._begin(one.text)
                continue
            assert stage is not None, "the first instruction is FROM"
            getattr(self, f"_{one.name.lower()}")(stage, one.text)
        assert stage is not None
        return stage

    def _begin(self, text: str) -> Stage:
        base, _, name = re.sub(r"\s+(?i:as)\s+", " AS ", text).partition(" AS ")
        name = name or str(len(self.stages))
        stage = Stage(base, self._folder / name)
        stage.root.mkdir(parents=True)
        self.stages[name] = stage
        return stage

    def _workdir(self, stage: Stage, text: str) -> None:
        stage.workdir = text
        stage.place(".").mkdir(parents=True, exist_ok=True)

    def _user(self, stage: Stage, text: str) -> None:
        stage.user = text

    def _env(self, stage: Stage, text: str) -> None:
        stage.environment |= dict(word.split("=", 1) for word in shlex.split(text))

    def _cmd(self, stage: Stage, text: str) -> None:
        stage.command = json.loads(text)

    def _copy(self, stage: Stage, text: str) -> None:
        *sources, target = shlex.split(text)
        if sources[0].startswith("--from="):
            (source,) = sources[1:]
            found = self.stages[sources[0].removeprefix("--from=")].place(source)
            place = stage.place(target)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.rename(found, place)  # renamed, not copied: it is needed only once, and environments are large
            found.symlink_to(place)  # scripts of an environment contain its path
            return
        for source in sources:
            assert source.removeprefix("./").split("/")[0] in self._allowed, f".dockerignore keeps {source} out"
            one, place = self._context / source, stage.place(target)
            if one.is_dir():
                shutil.copytree(one, place, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"), dirs_exist_ok=True)
            else:
                assert len(sources) == 1 or target.endswith("/"), f"several files go to a folder, {target} has no / at its end"
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(one, place)

    def _run(self, stage: Stage, text: str) -> None:
        if text.startswith("apt-get update"):
            stage.packages += [word for word in shlex.split(text) if "=" in word]
            return
        tools = self._folder / "tools"
        tools.mkdir(exist_ok=True)
        python = tools / "python"
        if not python.exists():
            python.symlink_to(Path(sys._base_executable))  # type: ignore[attr-defined]
        command = PATHS.sub(lambda found: f"{stage.root}/{found[1]}", text)
        env = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "HOME": str(self._folder), **stage.environment}
        if "compileall" in text:  # of the standard library, which here is not the image's own
            env["PYTHONPYCACHEPREFIX"] = str(stage.root / "compiled")
        env |= {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.lower().endswith("_proxy")}
        done = subprocess.run(["sh", "-ec", command], cwd=stage.place("."), env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"RUN {text}: exit code {done.returncode}:\n{done.stdout[-1500:]}{done.stderr[-3000:]}")


def allowed_names(dockerignore: Path) -> set[str]:
    """Return the first parts of the paths that a file admits after it has excluded everything (`**`), as ours does."""
    first, *rest = dockerignore.read_text(encoding="utf-8").split()
    assert first == "**", f"{dockerignore} begins with {first}, expected **: a context is what is named"
    return {name for line in rest if line.startswith("!") for name in _expanded(dockerignore.parent, line[1:])}


def _expanded(context: Path, pattern: str) -> list[str]:
    return [path.name for path in context.glob(pattern)]


def _split(line: str) -> tuple[str, str]:
    name, _, text = line.partition(" ")
    return name.upper(), text.strip()
