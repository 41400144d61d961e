"""Imports torch and transformers without what they import for features that no worker uses: a fifth of a cold pod's imports.

transformers looks for scipy (losses of object detection), for torch.distributed (its own sharding, with DTensor) and for
accelerate (its own placing of models), which is there for peft alone.
The compiler of `torch.compile`, torch._dynamo, is imported by whatever wants to say that the compiler leaves it alone, which is
each optimizer step too. A worker needs none of them to build, run, load or save a model; who compiles gets the real compiler.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
MASKS = f"{COMPILER}._trace_wrapped_higher_order_op"
"""The one module of the compiler that transformers imports by name, for masks of a whole model; units get theirs ready made."""


@contextmanager
def lean_imports() -> Iterator[None]:
    """Inside, scipy and accelerate look as if they were not installed, and torch as if it were built without torch.distributed.
    What is imported already stays as it is. The stand-in for the compiler remains."""
    defer_compiler()
    with _hidden("scipy"), _hidden("accelerate"), _not_distributed():
        yield


def import_peft() -> ModuleType:
    """peft, which looks for torch.distributed too: where transformers has not imported DTensor, each layer would miss it."""
    with _not_distributed():
        return importlib.import_module("peft")


def defer_compiler() -> None:
    """Put a stand-in in the compiler's place, which the first use of the compiler replaces by the real one."""
    if COMPILER not in sys.modules:
        sys.modules[COMPILER] = _Compiler(COMPILER)
        sys.modules[MASKS] = _Masks(MASKS)
        sys.meta_path.insert(0, _Submodules())


@contextmanager
def _hidden(package: str) -> Iterator[None]:
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


@contextmanager
def _not_distributed() -> Iterator[None]:
    """transformers asks once, and keeps the answer for as long as the process lives."""
    import torch.distributed

    asked = torch.distributed.is_available
    torch.distributed.is_available = lambda: False
    try:
        yield
    finally:
        torch.distributed.is_available = asked


class _Compiler(ModuleType):
    """Stands in for torch._dynamo where code only says that it must not be compiled; all else is the real module's."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__dict__.update(__spec__=ModuleSpec(name, None, is_package=True), __path__=[])

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Nothing is compiled, so there is no graph to break."""

    @staticmethod
    def disable(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
        """A function that the compiler must leave alone, as it is; without one, the decorator."""
        return _as_it_is if function is None else function

    @staticmethod
    def assume_constant_result(function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that the compiler may call once, as it is."""
        return function

    @staticmethod
    def allow_in_graph(function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that the compiler need not look into, as it is."""
        return function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_real_compiler(), name)


class _Masks(ModuleType):
    """Stands in for the compiler's module of that name."""

    @staticmethod
    def TransformGetItemToIndex() -> Any:
        """The real context manager."""
        _real_compiler()
        return importlib.import_module(MASKS).TransformGetItemToIndex()


class _Submodules(MetaPathFinder, Loader):
    """Where a module of the compiler is imported by name, the real compiler takes the stand-in's place first."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not fullname.startswith(f"{COMPILER}.") or not isinstance(sys.modules.get(COMPILER), _Compiler):
            return None
        parent = _real_compiler()
        return ModuleSpec(fullname, self) if fullname in sys.modules else PathFinder.find_spec(fullname, parent.__path__)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module as the compiler has just imported it."""
        found = sys.modules[spec.name]
        spec.loader_state = found.__spec__
        return found

    def exec_module(self, module: ModuleType) -> None:
        """It is executed already."""
        assert module.__spec__ is not None, module
        module.__spec__ = module.__spec__.loader_state


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _real_compiler() -> ModuleType:
    """Import the real one; from then on it is what everybody finds."""
    if isinstance(sys.modules.get(COMPILER), _Compiler):
        import torch

        del sys.modules[COMPILER], sys.modules[MASKS]
        vars(torch).pop(COMPILER.rpartition(".")[2], None)
    return importlib.import_module(COMPILER)
