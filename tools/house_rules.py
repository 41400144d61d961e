"""Checks the house rules that no other tool checks: python tools/house_rules.py FOLDER... Exit status 1 where one is broken."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from docstrings import Classes, check_docstrings, check_parameters
from one_home import check_homes

FILE_LINES_MAX = 320
FUNCTION_LINES_MAX = 75
VAGUE_MODULES = {"utils", "util", "common", "manager", "helper", "helpers", "misc"}
GENERATED = ("proto/gen/",)
RANKS_LIVE_IN = ("frostline_contract/mesh.py", "frostline_contract/shape.py")
"""The home of arithmetic with ranks, stages and degrees; a test may compute it by itself, to compare."""
RANK_OF_A_MATRIX = "frostline_contract/job/adapters.py"
"""The file in which `rank` is a field of the job: the rank of a matrix, not a place in a group."""
DEGREE = re.compile(r"(^|_)(dp|pp|tp|tp_columns|tp_depth)_degree$")
"""A name that holds the degree of an axis."""
RANK = re.compile(r"(global|pp|dp|tp|local)_rank$")
"""A name that holds a rank."""
REPLACED_WORDS = {
    "ward": "unit replica", "parcel": "replica update", "keeper": "buddy, replication", "tell": "send, report, announce",
    "told": "sent, reported, announced", "untold": "unreported, unannounced", "hear": "receive", "heard": "received",
    "unheard": "not received",
}  # fmt: skip
"""Private words that names once had, with the field's words that replaced them."""
PARAMETER = re.compile(r"[a-z_][a-z_0-9]*(, [a-z_][a-z_0-9]*)*(\([^)]*\))?: ")
"""A parameter, or several, followed by their meaning."""

FORBIDDEN = {
    r"\b(TODO|FIXME|XXX|HACK)\b": "unfinished work belongs into an issue",
    r"\bNotImplementedError\b": "a part that is not there is no part",
    r"^\s*(import|from) (pickle|cloudpickle|dill)\b": "wire and file formats are typed; no pickle",
    r"\btorch\.(load|save)\(": "use safetensors",
    r"\byaml\.(load|unsafe_load|full_load)\(": "use yaml.safe_load",
    r"\bshell=True\b": "pass a list of arguments",
    r"\b(all_gather|broadcast|gather|scatter)_object(_list)?\(": "object collectives are pickle",
    r"\bpytest\.mark\.(xfail|flaky)\b": "a test passes or it does not exist",
}
"""Patterns that a line of Python must not contain, with the reasons."""

Fault = tuple[int, str]


def main(folders: list[str]) -> int:
    """Check every Python file below `folders`; print one line for each fault."""
    if not folders:
        print("usage: house_rules.py FOLDER...", file=sys.stderr)
        return 2
    files = [file for folder in folders for file in sorted(Path(folder).rglob("*.py")) if _is_ours(file)]
    classes = Classes()
    for file in files:
        if _is_production(file):
            classes.add(ast.parse(file.read_text(encoding="utf-8"), str(file)))
    faults = [f"{file}:{line}: {text}" for file in files for line, text in check(file, file.read_text(encoding="utf-8"), classes)]
    print("\n".join(faults) if faults else f"house rules: {len(files)} files, no fault")
    return 1 if faults else 0


def check(file: Path, source: str, classes: Classes | None = None) -> list[Fault]:
    """Return the faults of one file, as (line, text). classes: of all production code; None: only those of the file."""
    lines = source.splitlines()
    tree = ast.parse(source, str(file))
    faults = [
        *_forbidden(file, lines),
        *_functions(tree),
        *_swallowed(tree),
        *_bare_rank(file, tree),
        *_open_coded_rank(file, tree),
        *_replaced_words(tree),
        *check_parameters(tree),
    ]
    if _is_production(file):
        if classes is None:
            classes = Classes()
            classes.add(tree)
        faults += [*check_homes(file, tree), *_parameters_first(tree), *check_docstrings(tree, classes)]
    if len(lines) > FILE_LINES_MAX:
        faults.append((len(lines), f"{len(lines)} lines; a file holds one idea in about 300"))
    if file.stem in VAGUE_MODULES:
        faults.append((1, f"module name {file.stem} says nothing; name what it does"))
    if file.name.startswith("test_"):
        faults += _tests_without_assertion(tree)
    elif source.strip() and ast.get_docstring(tree) is None:
        faults.append((1, "no module docstring"))
    return sorted(faults)


def _parameters_first(tree: ast.AST) -> Iterator[Fault]:
    """Yield docstrings that begin with a parameter: the first sentence has to say what the thing is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if PARAMETER.match(text):
                yield node.lineno, f"{node.name}'s docstring begins with a parameter; say first what it is, with the field's noun"


def _is_production(file: Path) -> bool:
    return any(part.startswith("frostline_") for part in file.parts[:-1])


def _is_ours(file: Path) -> bool:
    text = file.as_posix()
    hidden = any(part.startswith(".") or part in ("__pycache__", "build") for part in file.parts)
    return not hidden and not any(text.startswith(prefix) for prefix in GENERATED)


def _forbidden(file: Path, lines: list[str]) -> Iterator[Fault]:
    if file.name in ("house_rules.py", "test_house_rules.py"):
        return
    for number, line in enumerate(lines, 1):
        for pattern, why in FORBIDDEN.items():
            if re.search(pattern, line):
                yield number, f"{re.search(pattern, line).group().strip()!r}: {why}"


def _functions(tree: ast.AST) -> Iterator[Fault]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield node.lineno, f"{node.name} has {length} lines; a function reads top to bottom in about 60"


def _swallowed(tree: ast.AST) -> Iterator[Fault]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and all(_says_nothing(statement) for statement in node.body):
            yield node.lineno, "exception swallowed; handle it, log it, or use contextlib.suppress with its reason"


def _says_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Pass):
        return True
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and statement.value.value is ...


def _bare_rank(file: Path, tree: ast.AST) -> Iterator[Fault]:
    """Yield bare uses of `rank` in place of global_rank, pp_rank, dp_rank or local_rank; torch's own keyword arguments are
    exempt."""
    for node in ast.walk(tree):
        named = (node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else "") == "rank"
        if named and not file.as_posix().endswith(RANK_OF_A_MATRIX):
            yield node.lineno, "bare 'rank'; say global_rank, pp_rank, dp_rank or local_rank"


def _replaced_words(tree: ast.AST) -> Iterator[Fault]:
    """Yield names with a word that the field's own word has replaced; names of tests are sentences and are exempt."""
    for node in ast.walk(tree):
        name = _name_of(node) or getattr(node, "name", None) or getattr(node, "arg", None) or ""
        if isinstance(name, str) and not name.startswith("test_"):
            for word in re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"):
                if better := REPLACED_WORDS.get(word.removesuffix("s")):
                    yield getattr(node, "lineno", 1), f"{name!r} has the private word {word!r}; say {better}"


def _open_coded_rank(file: Path, tree: ast.AST) -> Iterator[Fault]:
    """Yield ranks, stages of ranks and world sizes computed from degrees: `x % d`, `x // d`, `x * d + y`, `(x + 1) * d`,
    `d * e`, `x[y::d]`; and a rank that anything divides: `global_rank // size`."""
    if file.as_posix().endswith(RANKS_LIVE_IN) or "tests" in file.parts:
        return
    for node in ast.walk(tree):
        if _is_rank_arithmetic(node):
            text = "a rank is worked out from degrees; ask frostline_contract.mesh (Mesh, ParallelShape), its one home"
            yield getattr(node, "lineno", 1), text


def _is_rank_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Slice):
        return node.step is not None and _is_degree(node.step)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "divmod" and _is_degree(node.args[-1])
    if not isinstance(node, ast.BinOp):
        return False
    if isinstance(node.op, ast.Add):
        pairs = ((node.left, node.right), (node.right, node.left))
        return any(_is_times_degree(one) and isinstance(other, ast.Name | ast.Attribute) for one, other in pairs)
    if isinstance(node.op, ast.Mult):
        pairs = ((node.left, node.right), (node.right, node.left))
        return any(_is_degree(one) and (_is_degree(other) or _is_next(other)) for one, other in pairs)
    rounding_up = isinstance(node.left, ast.UnaryOp)  # rounding a count up: -(-n // d)
    divides = isinstance(node.op, ast.Mod | ast.FloorDiv)
    return divides and (RANK.search(_name_of(node.left)) is not None or (_is_degree(node.right) and not rounding_up))


def _is_next(node: ast.AST) -> bool:
    """Whether an expression is `x + 1`, which times a degree is where the next one's ranks begin."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and isinstance(node.right, ast.Constant)


def _is_times_degree(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and (_is_degree(node.left) or _is_degree(node.right))


def _is_degree(node: ast.AST) -> bool:
    """Whether an expression is a degree: `pp_degree`, `shape.dp_degree`, `degrees["pp"]`, `mesh.degree("pp")`."""
    if isinstance(node, ast.Subscript):
        return _name_of(node.value) == "degrees"
    if isinstance(node, ast.Call):
        return _name_of(node.func) == "degree"
    return DEGREE.search(_name_of(node)) is not None


def _name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _tests_without_assertion(tree: ast.AST) -> Iterator[Fault]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_") and not _asserts(node):
            yield node.lineno, f"{node.name} asserts nothing"


def _asserts(function: ast.AST) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("raises", "warns", "fail"):
            return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
