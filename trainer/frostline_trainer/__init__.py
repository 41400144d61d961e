"""Frostline's trainer: agent and workers."""

from frostline_trainer.process.kernels import settle_kernels

# Here, so that every process that computes with this package has it before torch's libraries compute anything.
settle_kernels()
