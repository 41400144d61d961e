"""The maps of large packages: each module is in its package's map, once, and nothing else is."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAPPED = ("controller/frostline_controller/planner", "trainer/frostline_trainer/step")


@pytest.mark.parametrize("package", MAPPED)
def test_each_module_is_in_its_packages_map_once(package: str) -> None:
    folder = ROOT / package
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    named = Counter(re.findall(r"`(\w+)`", text.partition("A map")[2]))
    modules, packages = folder.glob("*.py"), folder.glob("*/__init__.py")
    assert set(named) == {path.stem for path in modules} - {"__init__"} | {path.parent.name for path in packages}
    assert max(named.values()) == 1, [name for name, times in named.items() if times > 1]
