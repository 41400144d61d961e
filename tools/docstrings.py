"""House rules of docstrings: which code must have one, and that a function's names only parameters that the function has.

Every public class, function and method of the production code has a docstring, its own or its interface's.

A method needs no docstring of its own where a base class documents it, or where its class has all methods of a protocol that
documents it: an interface is documented once. `forward` of a torch module is documented by its class, and the sections of the job
file by their fields.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

Fault = tuple[int, str]
Function = ast.FunctionDef | ast.AsyncFunctionDef

DOCUMENTED_BY_THE_CLASS = "forward"
DOCUMENTED_BY_FIELDS = "Section"

NAMES = r"([a-z_]\w*(?:, [a-z_]\w*)*)"
AFTER_A_SENTENCE = re.compile(rf"(?<=[.] ){NAMES}: ")
"""Parameters that a docstring of running text describes: `It does. one, two: meaning.`"""
IN_ARGS = re.compile(rf"^    {NAMES}(?: \([^)]*\))?: ", re.MULTILINE)
"""Parameters that an `Args:` section describes."""


@dataclass
class Classes:
    """The classes of all checked files, by name: a base may stand in another file."""

    by_name: dict[str, list[ast.ClassDef]] = field(default_factory=dict)
    protocols: list[tuple[ast.ClassDef, set[str], set[str]]] = field(default_factory=list)
    """Each with the names of its methods, and of those that have a docstring."""

    def add(self, tree: ast.AST) -> None:
        """Add a file's classes, nested ones included."""
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self.by_name.setdefault(node.name, []).append(node)
                if any(_name_of(base) == "Protocol" for base in node.bases):
                    self.protocols.append((node, _public(node), _documented(node)))

    def interface_documents(self, owner: ast.ClassDef, method: str) -> bool:
        """Whether the method is documented by a base class, or by a protocol whose methods the class all has."""
        return self._base_documents(owner, method, ()) or any(
            method in documented and len(methods) > 1 and methods <= _public(owner)
            for protocol, methods, documented in self.protocols
            if protocol is not owner
        )

    def _base_documents(self, owner: ast.ClassDef, method: str, seen: tuple[ast.ClassDef, ...]) -> bool:
        bases = [one for base in owner.bases for one in self.by_name.get(_name_of(base), []) if one not in seen]
        return any(method in _documented(one) or self._base_documents(one, method, (*seen, one)) for one in bases)


def check_docstrings(tree: ast.Module, classes: Classes) -> Iterator[Fault]:
    """Yield the public classes, functions and methods of a module that have no docstring of their own or of an interface."""
    yield from _undocumented(tree, None, classes)


def _undocumented(parent: ast.Module | ast.ClassDef, owner: ast.ClassDef | None, classes: Classes) -> Iterator[Fault]:
    for node in parent.body:
        if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
            continue
        if isinstance(node, ast.ClassDef):
            yield from _undocumented(node, node, classes)
            is_described = any(_name_of(base) == DOCUMENTED_BY_FIELDS for base in node.bases)
        else:
            is_described = owner is not None and (
                node.name == DOCUMENTED_BY_THE_CLASS or classes.interface_documents(owner, node.name)
            )
        if not is_described and ast.get_docstring(node) is None:
            place = f"{owner.name}.{node.name}" if owner is not None else node.name
            yield node.lineno, f"{place} is public and has no docstring; say what it does or gives, with units, owner or reason"


def check_parameters(tree: ast.AST) -> Iterator[Fault]:
    """Yield functions whose docstrings describe a parameter that the function does not have, as a rename leaves them."""
    for node in ast.walk(tree):
        if isinstance(node, Function):
            taken = node.args
            every = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs, taken.vararg, taken.kwarg]
            known = {one.arg for one in every if one is not None}
            for name in _described(ast.get_docstring(node) or ""):
                if name not in known:
                    yield node.lineno, f"{node.name}'s docstring describes {name!r}, which is none of its parameters"


def _described(docstring: str) -> Iterator[str]:
    text, _, rest = docstring.partition("Args:\n")
    section = re.split(r"^\S", rest, maxsplit=1, flags=re.MULTILINE)[0]
    plain = " ".join(text.split())
    for found in (*AFTER_A_SENTENCE.finditer(plain), *IN_ARGS.finditer(section)):
        yield from found.group(1).split(", ")


def _public(owner: ast.ClassDef) -> set[str]:
    return {one.name for one in owner.body if isinstance(one, Function) and not one.name.startswith("_")}


def _documented(owner: ast.ClassDef) -> set[str]:
    return {one.name for one in owner.body if isinstance(one, Function) and ast.get_docstring(one) is not None}


def _name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Subscript):
        return _name_of(node.value)
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
