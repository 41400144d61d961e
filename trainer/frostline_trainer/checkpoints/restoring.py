"""Loads a checkpoint's files into the model: the only way, for resumes, rollbacks, verification and the saved model."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from frostline_trainer.checkpoints.reading import load_piece
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.optimizer import Moments
from frostline_trainer.step.unit_state import import_piece


def restore_pieces(context: RunContext, moments: Moments, folder: Path, manifest: dict[str, Any], pieces: Iterable[int]) -> None:
    """Bring pieces of the model to a checkpoint's state. Raises ValueError as `load_piece` and `import_piece` do.

    Args:
        context: the run's model, on this worker.
        moments: receives the pieces' optimizer state.
        folder: the checkpoint.
        manifest: the checkpoint's manifest.
        pieces: numbers of the pieces.
    """
    table = context.pieces
    for piece in pieces:
        state = load_piece(folder, manifest, table, piece)
        import_piece(table, piece, context.cut.units[table.unit_of(piece)], moments, state)
