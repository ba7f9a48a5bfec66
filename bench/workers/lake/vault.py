"""The settings of flashbax's Vault, through TensorStore alone: Vault itself draws no samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..stopwatch import Card
from . import frames as work
from . import task
from .tensorstore import Shards

ENDLESS = 10**13  # its time axis


class Vault(Shards):
    """zarr over ocdbt with gzip level 5 and TensorStore's own choice of chunks, as Vault opens."""

    def spec(self, folder: Path, shape: tuple[int, ...]) -> dict[str, Any]:
        return {
            "driver": "zarr",
            "kvstore": {
                "driver": "ocdbt",
                "base": f"file://{folder.parent.resolve()}",
                "path": folder.name,
            },
            "metadata": {"compressor": {"id": "gzip", "level": 5}},
            "dtype": "uint8",
            "schema": {"domain": {"shape": [work.STREAMS, ENDLESS, *shape]}},
        }


def main() -> None:
    _, recording, folder = task.arguments()
    card = Card("tensorstore", "numpy")
    note = "five rows with scalars; no borders, no masks; its settings, without flashbax"
    task.measure(card, "vault", Vault(), recording, folder, note)
    card.show()


if __name__ == "__main__":
    main()
