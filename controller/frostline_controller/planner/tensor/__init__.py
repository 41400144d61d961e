"""Shapes beyond pipeline and replicas, on paper: tensors cut over workers of a group, state shared out over replicas."""
