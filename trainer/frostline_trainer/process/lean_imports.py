"""Imports torch and transformers without modules that no worker uses, which saves a fifth of a cold pod's import time.

transformers imports scipy (losses of object detection), torch.distributed (its own sharding, with DTensor), accelerate (its own
placement of models; installed for peft only) and in some versions scikit-learn (assisted generation), if it finds them. torch's
own code imports the compiler, torch._dynamo, just to mark functions as not to be compiled, also in each optimizer step. A worker
needs none of them to build, run, load or save a model. With `training.compile` it gets the real compiler.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

HIDDEN = ("scipy", "sklearn", "accelerate")
"""Packages that transformers uses where it finds them."""
COMPILER = "torch._dynamo"
MASKS = f"{COMPILER}._trace_wrapped_higher_order_op"
"""The compiler's only module that transformers imports by name, for masks of a whole model, which units do not use."""


@contextmanager
def lean_imports() -> Iterator[None]:
    """A context in which HIDDEN seem not to be installed, and torch seems to be built without torch.distributed.

    Modules that are imported already are not changed. The stand-in for the compiler remains afterwards."""
    defer_compiler()
    with ExitStack() as hidden:
        for package in HIDDEN:
            hidden.enter_context(_hidden(package))
        hidden.enter_context(_not_distributed())
        yield


def import_peft() -> ModuleType:
    """Import peft as if without torch.distributed: otherwise each of its layers would miss DTensor, which is not imported."""
    with _not_distributed():
        return importlib.import_module("peft")


def defer_compiler() -> None:
    """Replace the compiler's module by a stand-in, which its first real use replaces by the compiler."""
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
    """A context in which torch.distributed seems unavailable. transformers checks once, and keeps the answer for good."""
    import torch.distributed

    asked = torch.distributed.is_available
    torch.distributed.is_available = lambda: False
    try:
        yield
    finally:
        torch.distributed.is_available = asked


class _Compiler(ModuleType):
    """The stand-in for torch._dynamo: it has the functions that mark code as not compiled; any other use imports the real one."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__dict__.update(__spec__=ModuleSpec(name, None, is_package=True), __path__=[])

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Do nothing: there is no compiled graph to break."""

    @staticmethod
    def disable(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
        """Return the function unchanged, or without one the decorator: nothing is compiled."""
        return _as_it_is if function is None else function

    @staticmethod
    def assume_constant_result(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function unchanged: nothing is compiled."""
        return function

    @staticmethod
    def allow_in_graph(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function unchanged, as it needs no tracing."""
        return function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_real_compiler(), name)


class _Masks(ModuleType):
    """The stand-in for the compiler's module MASKS."""

    @staticmethod
    def TransformGetItemToIndex() -> Any:
        """The real context manager."""
        _real_compiler()
        return importlib.import_module(MASKS).TransformGetItemToIndex()


class _Submodules(MetaPathFinder, Loader):
    """The import hook for modules of the compiler: it replaces the stand-in by the real compiler first."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not fullname.startswith(f"{COMPILER}.") or not isinstance(sys.modules.get(COMPILER), _Compiler):
            return None
        parent = _real_compiler()
        return ModuleSpec(fullname, self) if fullname in sys.modules else PathFinder.find_spec(fullname, parent.__path__)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module, which importing the real compiler has imported."""
        found = sys.modules[spec.name]
        spec.loader_state = found.__spec__
        return found

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is executed already."""
        assert module.__spec__ is not None, module
        module.__spec__ = module.__spec__.loader_state


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _real_compiler() -> ModuleType:
    """Import the real compiler, which replaces the stand-in for all importers."""
    if isinstance(sys.modules.get(COMPILER), _Compiler):
        import torch

        del sys.modules[COMPILER], sys.modules[MASKS]
        vars(torch).pop(COMPILER.rpartition(".")[2], None)
    return importlib.import_module(COMPILER)
