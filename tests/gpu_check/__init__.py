"""What only a GPU can show, asked in one command: `python -m tests.gpu_check` (`make gpu-check`), a report at its end."""
