"""The trainer's worker on a machine whose products depend on a row's place (FROSTLINE_WORKER_MODULE names this module)."""

from frostline_trainer.process.worker import main
from tests import uneven_kernel

uneven_kernel.plant()

__all__ = ["main"]
