"""Every dotted name that a page quotes, such as `module.function` or `Class.field`, is a name of the sources."""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from frostline_contract.job import Job

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGES = (
    "proto/frostline_contract",
    "proto/frostline_rpc",
    "controller/frostline_controller",
    "trainer/frostline_trainer",
    "cache_server/frostline_cache_server",
)

BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`")
FILE = re.compile(r"\.(?:py|md|proto|json|jsonl|yaml|toml|html|log|sh|svg|txt|sha256|safetensors|address|token|password|secret)$")
LIBRARIES = ("torch.", "nn.", "transformers.", "jwt.", "http.", "grpc.")
"""How names of libraries begin. The libraries' own checks find a name that does not exist."""
NO_NAMES = {
    "frostline.v1": "a package of the .proto files",
    "frostline.datasets": "a group of entry points",
    "frostline.families": "a group of entry points",
    "frostline.freeze_policies": "a group of entry points",
    "frostline.schedules": "a group of entry points",
    "degrees.tp_columns": "a field of plans.jsonl: the axis is a key",
    "detail.certain": "a field of events.jsonl: details differ by the kind of event",
    "detail.stack": "a field of events.jsonl: details differ by the kind of event",
    "device.teraflops": "a field of the file that describes a cluster",
    "device.units": "a field of the file that describes a cluster",
    "incarnation.counter": "how a generation is written",
    "spec.replicas": "a field of Kubernetes'",
    "grad.double": "a method of a tensor",
    "loss.backward": "a method of a tensor",
    "self.layer": "a name of the example's",
    "self.layer.weight": "a name of the example's",
}
"""Quoted words with dots that are no names of the sources, each with the reason."""


class Sources:
    """The names of the packages: of each module its own, of each class its members, inherited ones included."""

    def __init__(self) -> None:
        self.modules: dict[str, set[str]] = {}
        self._members: dict[str, set[str]] = {}
        self._bases: dict[str, set[str]] = {}
        for package in PACKAGES:
            for path in (ROOT / package).rglob("*.py"):
                dotted = path.relative_to((ROOT / package).parent).with_suffix("").as_posix().replace("/", ".")
                tree = ast.parse(path.read_text(encoding="utf-8"))
                self.modules[dotted.removesuffix(".__init__")] = set(_names_in(tree.body))
                for node in ast.walk(tree):
                    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                        self.modules[dotted.removesuffix(".__init__")].update(ast.literal_eval(node.value))
                    elif isinstance(node, ast.ClassDef):
                        self._members.setdefault(node.name, set()).update(_names_in(node.body), _set_by_itself(node))
                        self._bases.setdefault(node.name, set()).update(ast.unparse(base).split(".")[-1] for base in node.bases)

    def members_of(self, name: str) -> set[str]:
        bases = self._bases.get(name, set()) - {name}
        return self._members.get(name, set()).union(*map(self.members_of, bases))

    def have(self, dotted: str) -> bool:
        """Whether a name is there: of a module, by the end of its path at least, of a class, or of an instance (`plan.vote`)."""
        parts = dotted.split(".")
        if len(parts) == 2 and parts[1] in self.members_of(parts[0].title().replace("_", "")) | self.members_of(parts[0]):
            return True
        for length in range(1, len(parts) + 1):
            head, rest = ".".join(parts[:length]), parts[length:]
            for module, names in self.modules.items():
                if f".{module}".endswith(f".{head}") and self._end_well(rest, names):
                    return True
        return False

    def _end_well(self, rest: list[str], names: set[str]) -> bool:
        """Whether the end of a dotted name is empty, one of a module's names, or a member of a class among these."""
        own = not rest or rest[0] in names
        return own and (len(rest) < 2 or (len(rest) == 2 and rest[1] in self.members_of(rest[0])))


def _names_in(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from (one.id for one in ast.walk(target) if isinstance(one, ast.Name))


def _set_by_itself(node: ast.ClassDef) -> Iterator[str]:
    """Yield the attributes that a class's methods set on self."""
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) and ast.unparse(one.value) == "self":
            yield one.attr


@cache
def sources() -> Sources:
    return Sources()


def is_field_of_job(dotted: str) -> bool:
    """Whether a name is a field of the job file, or a property of one of its sections."""
    model: object = Job
    for part in dotted.split("."):
        fields = getattr(model, "model_fields", {})
        if part not in fields:
            return isinstance(getattr(model, part, None), property)
        kinds = [fields[part].annotation, *getattr(fields[part].annotation, "__args__", ())]
        model = next((kind for kind in kinds if hasattr(kind, "model_fields")), None)
    return True


@cache
def values_of_cluster() -> dict[str, Any]:
    """The schema of the chart's section `kubernetes`, below which pages name a value."""
    schema = json.loads((ROOT / "charts" / "frostline" / "values.schema.json").read_text(encoding="utf-8"))
    return schema["properties"]["kubernetes"]


def is_value_of_chart(dotted: str) -> bool:
    schema, parts = values_of_cluster(), dotted.split(".")
    while parts and "properties" in schema:
        schema = schema["properties"].get(parts.pop(0))
        if schema is None:
            return False
    return not parts or schema.get("additionalProperties", True) is not False  # a mapping whose keys are the user's


def unknown_names(text: str) -> list[str]:
    """Return the dotted names that a page quotes and that are nowhere."""
    return [
        name
        for name in QUOTED.findall(BLOCK.sub("", text))
        if not (FILE.search(name) or name.startswith(LIBRARIES) or name in NO_NAMES)
        and not (is_field_of_job(name) or is_value_of_chart(name) or sources().have(name))
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_dotted_name_that_a_page_quotes_exists(page: Path) -> None:
    assert unknown_names(page.read_text(encoding="utf-8")) == []


def test_no_exception_is_left_over() -> None:
    quoted = {name for page in PAGES for name in QUOTED.findall(BLOCK.sub("", page.read_text(encoding="utf-8")))}
    assert sorted(NO_NAMES.keys() - quoted) == []


def test_a_name_that_is_gone_is_seen() -> None:
    there = "`lineage.Cuts.survives` `Cuts.survives` `recovery.answer.answer()` `Plan.vote` `plan.vote` `metrics.jsonl`"
    assert unknown_names(there) == []
    gone = ["lineage.Cuts.endures", "plan_building.buddies_of", "Plan.votes", "plan.votes", "cache.coder", "lineage.cuts"]
    assert unknown_names(" ".join(f"`{name}`" for name in gone)) == gone
