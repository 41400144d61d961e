"""House rules that keep a rule in one place: names, joins and decisions that only one module of the production code may contain.

Each check has the home of its rule; words and names are read from that home, so a new phase or file is guarded from its first
day.
"""

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

CONTRACT = Path(__file__).resolve().parent.parent / "proto" / "frostline_contract"

Fault = tuple[int, str]

ATOMIC = {"replace", "rename", "renames", "link", "fsync"}
"""Functions of os that make a write atomic or durable."""
ENTERS_A_PHASE = ("phase", "_phase", "enter")
"""Functions whose first argument is a phase."""
ORDERS = ("max", "min", "sorted")
"""Functions that order their arguments or the elements of one."""
PLAN_LINES = frozenset({"plan", "plan_end"})
"""Kinds of lines of plans.jsonl about a generation."""
PLUGGED_IN = {
    "frostline_trainer/faults/": "frostline_trainer.process.plug",
    "frostline_controller/faults/": "frostline_controller.run.plug",
}
"""The folders of planned faults, which production code must not import, each with the plug that loads it by name."""
NOT_OF_A_RUN = {"local/backend.py": "events.jsonl", "kubernetes/job_source.py": "job.yaml"}
"""Files that have a name of the run directory's but lie elsewhere: in the stand-in for the API server; in a ConfigMap."""


def check_homes(file: Path, tree: ast.AST) -> list[Fault]:
    """Return the places of a production module that do the work of another module's rule."""
    checks: tuple[tuple[tuple[str, ...], Callable[[Path, ast.AST], Iterator[Fault]]], ...] = (
        (("phases.py",), _phases),
        (("run_status.py",), _run_states),
        (("worker_state.py",), _worker_states),
        (("run_directory.py",), _run_directory),
        (("durable_files.py", "journal.py", "scratch_folder.py"), _atomic_writes),
        (("lineage.py",), _lineages),
        (("intervals.py",), _calendar),
        (("backoff.py",), _back_off),
        (("worker_id.py",), _worker_ids),
        (("plan_log.py",), _plan_lines),
        ((), _plugged_in),
    )
    return [fault for homes, check in checks if file.name not in homes for fault in check(file, tree)]


def _phases(file: Path, tree: ast.AST) -> Iterator[Fault]:
    words = words_of("phases.py", "Phase")
    for node in ast.walk(tree):
        found = _said_of(node, ("phase",), words)
        if isinstance(node, ast.Call) and _tail(node.func) in ENTERS_A_PHASE and node.args:
            found = found or _constants(node.args[0], words)
        elif isinstance(node, ast.Tuple | ast.Set | ast.List) and len(node.elts) == len(_constants(node, words)) > 2:
            found = _constants(node, words)
        for word in found:
            yield node.lineno, f"phase {word!r} by its word; say frostline_contract.phases.Phase.{word.upper()}"


def _run_states(file: Path, tree: ast.AST) -> Iterator[Fault]:
    words = words_of("run_status.py", "RunStatus")
    for node in ast.walk(tree):
        found = _said_of(node, ("state", "status"), words)
        if isinstance(node, ast.Tuple | ast.Set | ast.List) and len(_constants(node, words)) > 1:
            found = _constants(node, words)
        for word in found:
            yield node.lineno, f"run state {word!r} by its word; say frostline_contract.run_status.RunStatus.{word.upper()}"


def _worker_states(file: Path, tree: ast.AST) -> Iterator[Fault]:
    words = words_of("worker_state.py", "WorkerState")
    for node in ast.walk(tree):
        found = _said_of(node, ("state", "presence", "kind"), words)
        if isinstance(node, ast.Tuple | ast.Set | ast.List) and len(_constants(node, words)) > 1:
            found = _constants(node, words)
        elif isinstance(node, ast.Return | ast.IfExp):
            values = (node.value,) if isinstance(node, ast.Return) else (node.body, node.orelse)
            found = [word for value in values if value is not None for word in _constants(value, words)]
        elif isinstance(node, ast.Call) and _tail(node.func) == "note":
            found = [word for argument in node.args for word in _constants(argument, words)]
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            found = [word for key, value in pairs if _is_word(key, "state") for word in _constants(value, words)]
        for word in found:
            home = "frostline_contract.worker_state.WorkerState"
            yield node.lineno, f"worker state {word!r} by its word; say {home}.{word.upper()}"


def _run_directory(file: Path, tree: ast.AST) -> Iterator[Fault]:
    names = run_directory_names()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in names and NOT_OF_A_RUN.get("/".join(file.parts[-2:])) != node.value:
            yield node.lineno, f"{node.value!r} is a name of the run directory; ask frostline_contract.run_directory.RunDirectory"


def _atomic_writes(file: Path, tree: ast.AST) -> Iterator[Fault]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        of_os = isinstance(node.func.value, ast.Name) and node.func.value.id == "os" and node.func.attr in ATOMIC
        of_path = node.func.attr in ("replace", "rename") and len(node.args) == 1 and not node.keywords
        if of_os or of_path:
            yield node.lineno, f"{node.func.attr} by hand; frostline_contract.durable_files writes whole and to the disk"


def _lineages(file: Path, tree: ast.AST) -> Iterator[Fault]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(_tail(side) == "starts_at_step" for side in (node.left, *node.comparators)):
            yield node.lineno, "what survives a lineage's start is decided by frostline_contract.lineage.Cuts"
        if isinstance(node, ast.BoolOp) and {"lineage", "step"} <= {name for one in node.values for name in _ordered(one)}:
            yield node.lineno, "lineages are ordered together with steps by frostline_contract.lineage.Cuts only"
        if any(_is_place(one) for one in _compared(node)):
            yield node.lineno, "a lineage and a step are compared as a frostline_contract.lineage.Place only"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and _is_one_above_lineages(node.left, node.right):
            yield node.lineno, "a lineage that opens is numbered by frostline_contract.lineage.lineage_above"


def _calendar(file: Path, tree: ast.AST) -> Iterator[Fault]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.BinOp) or "interval_steps" not in (sides := {_tail(node.left), _tail(node.right)}):
            continue
        counts = isinstance(node.op, ast.FloorDiv | ast.Mod | ast.Add | ast.Sub)
        if counts or (isinstance(node.op, ast.Mult) and sides & {"interval", "number"}):
            yield node.lineno, "steps of intervals and decisions are computed by frostline_contract.intervals.DecisionCalendar"


def _back_off(file: Path, tree: ast.AST) -> Iterator[Fault]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _tail(node.func) == "min" and any(_doubles(argument) for argument in node.args):
            yield node.lineno, "a back-off by hand; use frostline_contract.backoff.Backoff"


def _worker_ids(file: Path, tree: ast.AST) -> Iterator[Fault]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _tail(node.func) == "rpartition" and _constants(node.args[0], frozenset("/")):
            yield node.lineno, "a worker's id is taken apart by frostline_contract.worker_id"


def _plan_lines(file: Path, tree: ast.AST) -> Iterator[Fault]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            kinds = key is not None and _constants(key, frozenset({"kind"})) and _constants(value, PLAN_LINES)
            if kinds:
                yield node.lineno, f"a line {kinds[0]!r} of plans.jsonl by hand; frostline_controller.run.plan_log makes it"


def _plugged_in(file: Path, tree: ast.AST) -> Iterator[Fault]:
    for folder, plug in PLUGGED_IN.items():
        if folder in file.as_posix():
            continue
        dotted = folder.strip("/").replace("/", ".")
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module or ''}.{name}" for name in names]
            if any(f"{name}.".startswith(f"{dotted}.") for name in names):
                yield node.lineno, f"{dotted} is plugged in by name ({plug}), never imported"


def _said_of(node: ast.AST, tails: tuple[str, ...], words: frozenset[str]) -> list[str]:
    """Return the words that a variable, attribute or keyword with one of these names is compared with or set to."""

    def is_called_so(name: str) -> bool:
        return any(name == tail or name.endswith(f"_{tail}") for tail in tails)

    if isinstance(node, ast.Compare):
        sides = (node.left, *node.comparators)
        return [word for side in sides for word in _constants(side, words)] if any(is_called_so(_tail(s)) for s in sides) else []
    if isinstance(node, ast.keyword):
        return _constants(node.value, words) if is_called_so(node.arg or "") else []
    if isinstance(node, ast.AnnAssign | ast.Assign):
        targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
        named = any(is_called_so(_tail(target)) for target in targets)
        return _constants(node.value, words) if named and node.value is not None else []
    return []


def _constants(node: ast.AST, words: frozenset[str]) -> list[str]:
    """Return the words in a constant, or directly in a tuple, list or set."""
    parts = node.elts if isinstance(node, ast.Tuple | ast.Set | ast.List) else [node]
    return [part.value for part in parts if isinstance(part, ast.Constant) and part.value in words]


def _is_word(node: ast.AST | None, word: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == word


def _ordered(node: ast.AST) -> set[str]:
    """Return the names of the attributes and items that a comparison by <, <=, > or >= compares; empty for anything else."""
    if not isinstance(node, ast.Compare) or not all(isinstance(one, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for one in node.ops):
        return set()
    return {_tail(side) for side in (node.left, *node.comparators) if isinstance(side, ast.Attribute | ast.Subscript)}


def _compared(node: ast.AST) -> list[ast.expr]:
    """Return what a node compares: a comparison's sides, a key's value, what `max`, `min` or `sorted` orders; else nothing."""
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.keyword) and node.arg == "key" and isinstance(node.value, ast.Lambda):
        value = node.value.body
        return [value, *value.elts] if isinstance(value, ast.Tuple) else [value]
    return _elements(node) if isinstance(node, ast.Call) and _tail(node.func) in ORDERS else []


def _elements(call: ast.Call) -> list[ast.expr]:
    """Return a call's arguments, each comprehension, list or starred argument by what it holds."""
    found: list[ast.expr] = []
    for argument in call.args:
        one = argument.value if isinstance(argument, ast.Starred) else argument
        if isinstance(one, ast.GeneratorExp | ast.ListComp | ast.SetComp):
            found.append(one.elt)
        else:
            found += one.elts if isinstance(one, ast.List | ast.Set) else [one]
    return found


def _is_place(node: ast.AST) -> bool:
    """Whether an expression is a tuple of a lineage and a step, by their names."""
    return isinstance(node, ast.Tuple) and len(node.elts) == 2 and _says(node.elts[0], "lineage") and _says(node.elts[1], "step")


def _is_one_above_lineages(*sides: ast.expr) -> bool:
    """Whether one of the summands is 1, and the other a lineage or the highest of lineages."""
    ones = [isinstance(side, ast.Constant) and side.value == 1 for side in sides]
    others = [side for side, is_one in zip(sides, ones, strict=True) if not is_one]
    if len(others) != 1:
        return False
    highest = isinstance(others[0], ast.Call) and _tail(others[0].func) == "max"
    return any(_says(one, "lineage", "lineages") for one in (_elements(others[0]) if highest else others))


def _says(node: ast.AST, *words: str) -> bool:
    """Whether the name of a value, or of the function that returns it, has one of these words."""
    name = _tail(node.func if isinstance(node, ast.Call) else node)
    return not set(words).isdisjoint(name.split("_"))


def _doubles(node: ast.AST) -> bool:
    """Whether an expression is a product with a power of two."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    sides = [side for side in (node.left, node.right) if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Pow)]
    return any(isinstance(side.left, ast.Constant) and side.left.value == 2 for side in sides)


def _tail(node: ast.AST) -> str:
    """Return the last name of `a.b.c`, `a.b["c"]` or `a`; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return node.id if isinstance(node, ast.Name) else ""


@cache
def words_of(module: str, name: str) -> frozenset[str]:
    """Return the words of an enumeration in the contract."""
    tree = ast.parse((CONTRACT / module).read_text(encoding="utf-8"))
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    values = [node.value for node in found.body if isinstance(node, ast.Assign)]
    firsts = [value.elts[0] if isinstance(value, ast.Tuple) else value for value in values]
    return frozenset(first.value for first in firsts if isinstance(first, ast.Constant) and isinstance(first.value, str))


@cache
def run_directory_names() -> frozenset[str]:
    """Return the names of a run directory's files. Folders are left out, since their names have other meanings elsewhere."""
    tree = ast.parse((CONTRACT / "run_directory.py").read_text(encoding="utf-8"))
    joined = [node.right for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)]
    names = [right.value for right in joined if isinstance(right, ast.Constant)]
    return frozenset(name for name in names if isinstance(name, str) and "." in name)
