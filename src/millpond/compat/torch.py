"""PyTorch: batches as tensors in the same memory, and a Lake as what a `DataLoader` reads.

`from millpond.compat.torch import as_torch, LakeLoader`; `pip install 'millpond[torch]'`.
"""

from .lake_loader import LakeBatches, LakeLoader, LakeWindows
from .tensors import as_torch, pinned_like

__all__ = ["LakeBatches", "LakeLoader", "LakeWindows", "as_torch", "pinned_like"]
