"""Protection against loss and corruption: unit replicas at buddies, the inventory of intact pieces, audits of computations."""
