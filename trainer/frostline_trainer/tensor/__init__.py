"""Tensor tiles: linear layers of the blocks computed in tiles of their inner width, one fixed grid for a run
(docs/adr/0018-tensor-tiles.md)."""
