"""Import data of other formats into a Lake, and export a Lake to them."""

from .exporting import export_lake
from .formats import EXPORTS, IMPORTS
from .importing import Moved, import_lake

__all__ = ["EXPORTS", "IMPORTS", "Moved", "export_lake", "import_lake"]
