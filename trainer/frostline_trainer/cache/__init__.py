"""The activation cache as a worker sees it: boundary activations of the frozen prefix, read from Redis instead of computed.

The walk of a value: `codec` turns a row into bytes, `layout` names and cuts them, `lane` spreads them over the shards,
`resp` moves them; `boundary_cache` is what the rest of the trainer calls. Nothing here raises because of the cache:
a miss, a dead Redis or a torn value changes speed, never results (docs/protocols.md 11.2).
"""
