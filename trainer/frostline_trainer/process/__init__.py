"""Processes of a pod: agent, preload process, worker, and what each finds out about the machine before it joins."""
