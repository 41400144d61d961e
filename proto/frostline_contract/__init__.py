"""The contract between Frostline's services: job model, shapes, plans, records, seeds and cache identity.

No I/O and no torch: the controller and the cache server import it in environments that have neither.
"""
