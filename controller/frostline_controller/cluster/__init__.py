"""The cluster as the controller sees it (`backend`), and the laptop's own (`local_backend`, `local_cluster`)."""
