"""A Kubernetes cluster: API server, watches, Lease and the trainer StatefulSet."""
