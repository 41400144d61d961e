"""The worker's side of the control plane: the client's threads, the mailbox they fill, the line to the controller."""
