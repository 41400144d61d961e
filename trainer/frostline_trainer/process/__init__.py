"""The processes of a pod (agent, preload process, worker, exit reporter), and the checks of the machine before a worker joins."""
