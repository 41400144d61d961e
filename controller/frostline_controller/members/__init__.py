"""Members: who is in the run, who may come in, who leaves, who hangs, who is slow, whose device is sick."""
