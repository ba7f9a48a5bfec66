"""Data in and out: a Lake from other formats, and other formats from a Lake."""

from .exporting import export_lake
from .formats import EXPORTS, IMPORTS
from .importing import Moved, import_lake

__all__ = ["EXPORTS", "IMPORTS", "Moved", "export_lake", "import_lake"]
