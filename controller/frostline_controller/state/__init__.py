"""What outlives the controller's process: the guarded annotation and the append-only logs."""
