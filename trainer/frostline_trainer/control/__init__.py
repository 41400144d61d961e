"""The worker's side of the control plane: the connection to the controller, the client's threads, and the mailbox they fill."""
