"""PyTorch: batches as tensors that share memory, and Lakes as datasets for a `DataLoader`.

`from millpond.compat.torch import as_torch, LakeLoader`; `pip install 'millpond[torch]'`.
"""

from .lake_loader import LakeBatches, LakeLoader, LakeWindows
from .tensors import as_torch, pinned_like

__all__ = ["LakeBatches", "LakeLoader", "LakeWindows", "as_torch", "pinned_like"]
