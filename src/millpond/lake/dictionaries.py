"""`Dictionaries`: the codecs of a Lake's compressed columns, each built once for all segments."""

from __future__ import annotations

from pathlib import Path

from ..errors import LakeDamaged, LakeRefused
from .codec import Codec
from .columns import Columns, LakeColumn
from .manifest import GroupInfo, LakeInfo
from .recovery import load_meta, read_dictionary, segment_files
from .segment import path_of


class Dictionaries:
    """Every segment holds a copy of its dictionaries, so a damaged one may survive in another."""

    def __init__(self, folder: Path, info: LakeInfo, groups: list[GroupInfo]) -> None:
        self._folder, self._info, self._groups = folder, info, groups
        self._codecs: dict[tuple[str, int], Codec] = {}

    def codec(self, column: LakeColumn, identity: int, dictionary: bytes | None) -> Codec | None:
        """The codec of a dictionary. If it is damaged (None), an intact copy is looked for in the
        other segments; None if there is none."""
        key = (column.name, identity)
        if key not in self._codecs:
            if dictionary is None:
                dictionary = self._elsewhere(column.name, identity)
            if dictionary is None:
                return None
            self._codecs[key] = Codec(dictionary, column.width)
        return self._codecs[key]

    def _elsewhere(self, name: str, identity: int) -> bytes | None:
        columns = Columns(self._info.spec)
        for group in self._groups:
            folder = self._folder / "groups" / group.name
            for number, kinds in segment_files(folder).items():
                path = path_of(folder, number, ".seg")
                try:
                    meta = load_meta(path, columns, self._info, group) if "seg" in kinds else None
                    if meta is None or meta.columns[name].dictionary_sum != identity:
                        continue
                    dictionary = read_dictionary(path, meta, name)
                except (LakeDamaged, LakeRefused, OSError):
                    continue
                if dictionary is not None:
                    return dictionary
        return None
