"""The command `frostline`: starts, watches, steers, checks and compares runs. Torch-free: other services are processes."""
