"""The laptop's cluster: its API server is a file, its kubelet a thread, its pods are child processes."""
