"""Checks that need a GPU, in one command: `python -m tests.gpu_check` (`make gpu-check`), with a report at its end."""
