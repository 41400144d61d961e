"""The pages name what the code has: events, exit codes, methods, job fields, files, commands. Nothing is left out or invented."""

import ast
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest

from frostline_contract.exit_codes import CRASH_LOOP, DEVICE, DONE, FAULT, FINAL, REFUSED, USER_MISTAKE
from frostline_contract.job import Job, load_job
from frostline_controller.cli import kubectl
from frostline_controller.cli.arguments import build_parser
from frostline_controller.local_run import exit_codes
from frostline_controller.run.events import KINDS
from frostline_proto.v1 import cache_pb2, control_pb2
from frostline_rpc.auth import ALLOWED
from frostline_rpc.channel import IDEMPOTENT
from frostline_trainer import verify
from tools.concept_pictures import PICTURES

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("concepts", "tutorial", "troubleshooting", "testing", "grpc")),
]
SECTIONS = "model|task|data|training|freeze|elastic|decisions|placement|cache|checkpoint|controller"


def rows(page: str, heading: str) -> list[list[str]]:
    """Cells of the tables below a heading, up to the next heading of any level."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert f"\n{heading}\n" in text, heading
    below = re.split(r"\n#+ ", text.split(f"\n{heading}\n", 1)[1])[0]
    lines = [line for line in below.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def exits_of(file: str) -> set[int]:
    """Integers that the functions of a file return, constants by name included: of a file whose integers are exit codes."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    named = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Constant)
    }
    found = set()
    for function in ast.walk(tree):
        if (
            not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            or ast.unparse(function.returns or ast.Name("")) != "int"
        ):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and node.value is not None:
                values = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
                found |= {named.get(ast.unparse(value)) if isinstance(value, ast.Name) else value.value
                          for value in values if isinstance(value, ast.Name | ast.Constant)}  # fmt: skip
    return {code for code in found if isinstance(code, int)}


def test_every_kind_of_event_is_explained_and_no_other() -> None:
    explained = [row[0].strip("`") for row in rows("docs/troubleshooting.md", "## Events")[1:]]
    assert sorted(explained) == sorted(KINDS)


def test_every_exit_code_of_the_command_is_explained_and_no_other() -> None:
    explained = [int(row[0]) for row in rows("docs/troubleshooting.md", "### Of `frostline` and `kubectl frostline`")[1:]]
    assert sorted(explained) == sorted(exit_codes.MEANING)


def test_every_exit_code_of_a_process_is_explained_and_no_other() -> None:
    explained: dict[str, set[int]] = {}
    for process, codes, _ in rows("docs/troubleshooting.md", "### Of the processes")[1:]:
        explained.setdefault(process, set()).update(map(int, re.findall(r"\d+", codes)))
    controller = exits_of("controller/frostline_controller/on_cluster.py") | exits_of(
        "controller/frostline_controller/__main__.py"
    )
    assert explained == {
        "worker": {DONE, USER_MISTAKE, REFUSED, FAULT, DEVICE},
        "agent (the pod)": FINAL | {CRASH_LOOP},
        "controller": controller,
        "cache server": exits_of("cache_server/frostline_cache_server/__main__.py"),
        "preload process": exits_of("trainer/frostline_trainer/process/preload.py"),
        "`helm test`": exits_of("controller/frostline_controller/check_release.py"),
        "`frostline verify`": {verify.EXIT_EQUAL, verify.EXIT_DIFFERENT, verify.EXIT_USER},
    }
    assert len(controller) == 4, controller


@pytest.mark.parametrize(
    ("heading", "service"),
    [
        ("## Control: the controller", control_pb2.DESCRIPTOR.services_by_name["Control"]),
        ("## CacheControl: the cache server", cache_pb2.DESCRIPTOR.services_by_name["CacheControl"]),
    ],
)
def test_every_method_is_listed_with_its_callers(heading: str, service: object) -> None:
    methods = rows("docs/grpc.md", heading)[1:]
    assert [row[0].strip("`") for row in methods] == [method.name for method in service.methods]
    for name, callers, _, _, retried in methods:
        assert set(callers.split(", ")) == ALLOWED[name.strip("`")], name
        assert (retried == "yes") == (name.strip("`") in IDEMPOTENT), name


def job_fields(model: type, path: str = "") -> set[str]:
    found = set()
    for name, field in model.model_fields.items():
        found.add(path + name)
        for inner in [field.annotation, *getattr(field.annotation, "__args__", ())]:
            if hasattr(inner, "model_fields"):
                found |= job_fields(inner, f"{path}{name}.")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_fields_of_the_job_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    known = job_fields(Job)
    named = set(re.findall(rf"(?:`|--set )((?:{SECTIONS})(?:\.[a-z_]+)+)\b(?!\(|/|\.)", text))
    assert {name for name in named if not name.endswith((".py", ".md", ".proto", ".log"))} <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:proto|controller|trainer|cache_server|tests|tools|docs|charts|examples)/[\w./-]*[\w/])`", text))
    assert {name for name in named if "NAME" not in name and not (ROOT / name).exists()} == set()


COMMANDS = [
    pytest.param(line.strip(), id=f"{page.stem}: {line.strip()}")
    for page in [*PAGES, ROOT / "README.md", ROOT / "docs" / "clusters.md"]
    for line in page.read_text(encoding="utf-8").splitlines()
    if re.match(r"    (make|kubectl frostline|(\.venv/bin/)?frostline) [a-z]", line) and "-->" not in line
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_a_page_shows_are_commands(command: str) -> None:
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{words[1]}:.*##", makefile, re.MULTILINE), command
        values = dict(word.split("=", 1) for word in words[2:])
        if words[1] != "run":
            return
        words = [
            "frostline",
            "run",
            "-f",
            values.get("JOB", "examples/image_classification/digits.yaml"),
            *shlex.split(values.get("ARGS", "")),
        ]
    if words[0] == "kubectl":
        assert kubectl.build_parser().parse_args(words[2:]).run
        return
    arguments = build_parser().parse_args(words[1:])
    if getattr(arguments, "file", None) and arguments.file != "job.yaml":
        assert load_job(ROOT / arguments.file, arguments.overrides).name


def test_pictures_are_whole_and_carry_no_foreign_parts() -> None:
    """Each is well-formed, described for who does not see it, and its words lie inside it, in a wide font too."""
    for name, draw in PICTURES.items():
        picture = ElementTree.fromstring(draw())
        width = float(picture.attrib["width"])
        space = "{http://www.w3.org/2000/svg}"
        assert picture.findtext(f"{space}title")
        assert picture.findtext(f"{space}desc")
        assert not picture.findall(f".//{space}image")
        for text in picture.iter(f"{space}text"):
            long = 0.52 * float(text.attrib["font-size"]) * len(text.text or "")
            left = float(text.attrib["x"]) - {"start": 0.0, "middle": long / 2, "end": long}[text.attrib["text-anchor"]]
            assert left >= 0, (name, text.text)
            assert left + long <= width, (name, text.text)


def test_the_run_directory_names_every_kind_of_event() -> None:
    section = (ROOT / "docs" / "run-directory.md").read_text().split("## events.jsonl")[1].split("\n## ")[0]
    assert [kind for kind in sorted(KINDS) if f"`{kind}`" not in section] == []
