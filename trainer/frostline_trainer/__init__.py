"""Frostline's trainer: agent and workers."""

from frostline_trainer.process.kernels import settle_kernels

# Set on import of the package, so that it is in force before torch's libraries compute anything in any process.
settle_kernels()
