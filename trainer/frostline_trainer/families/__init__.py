"""Model families: each file builds one kind of transformer and cuts it into units."""

from frostline_trainer.families.base import CutModel, Family, Unit
from frostline_trainer.families.hugging_face import HuggingFaceFamily
from frostline_trainer.families.registry import family_named

__all__ = ["CutModel", "Family", "HuggingFaceFamily", "Unit", "family_named"]
