"""Predictions for shapes beyond pipeline and replicas: tensors cut over a group's workers, state shared out over replicas."""
