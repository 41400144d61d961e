"""Predictions for shapes beyond pipeline and replicas: tensors cut over the workers of a group, state shared out over replicas."""
