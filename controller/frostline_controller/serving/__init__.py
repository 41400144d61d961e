"""The services of the controller: the Control service for workers and people, status, metrics, web pages, report."""
