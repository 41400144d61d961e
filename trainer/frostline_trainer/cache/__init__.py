"""A worker's side of the activation cache: boundary activations of the frozen prefix are read from Redis instead of computed.

The path of a value: `codec` encodes a row as bytes, `values` names them and cuts them into chunks, `lane` distributes the chunks
over the shards, `resp` sends and receives them. The rest of the trainer calls `boundary_cache` only. No error of the cache is
raised: a miss, a dead Redis or a torn value changes speed, never results (docs/protocols.md 11.2).
"""
