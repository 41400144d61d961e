"""What the controller serves: the Control service to workers and people, status, metrics, web pages, report."""
