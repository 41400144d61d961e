"""The command `frostline`: starts, watches, controls, checks and compares runs. It imports no torch; other services are
processes."""
