"""`SourceForEnv`: a source cast to the dtypes of an env's Spec, so that runs can learn from it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..errors import BadConfig
from ..rows import Rows
from ..spec import Field, Spec, walk
from .columns import fields_of
from .source import Source


class SourceForEnv:
    """The same rows with another Spec; BadConfig for fields that are missing or do not fit."""

    def __init__(self, source: Source, spec: Spec, env: str) -> None:
        self._source, self.spec = source, spec
        self.streams, self.about = source.streams, source.about
        self.losses = [*source.losses]
        mine, theirs = fields_of(spec), fields_of(source.spec)
        for path, field in mine.items():
            there = theirs.get(path)
            if there is None:
                raise BadConfig(
                    f"rows of env {env} have '{path}', which the data lacks; choose the env it "
                    f"was recorded in, or omit --env (the data has {', '.join(theirs)})"
                )
            if there.shape != field.shape or not field.accepts(there.dtype):
                raise BadConfig(
                    f"env {env}: field '{path}' is {field.describe()}, but the data has "
                    f"{there.describe()}; choose the env it was recorded in, or omit --env"
                )
            if path in dict(walk(spec.obs, "obs")) and rounds(there, field):
                self.losses.append(
                    f"'{path}' is {there.dtype} in the data and {field.dtype} in the Lake"
                )
        if gone := sorted(theirs.keys() - mine.keys()):
            self.losses.append(f"{', '.join(gone)}, which env {env} does not have")

    def rows(self, stream: int, start: int) -> Iterator[Rows]:
        for rows in self._source.rows(stream, start):
            extras = {name: rows.extras[name] for name in self.spec.extras}
            obs = dict(walk(rows.obs, "obs"))
            yield rows._replace(obs=self.spec.obs_tree(obs), extras=extras)

    def lost(self) -> list[str]:
        return self._source.lost()


def rounds(there: Field, here: Field) -> bool:
    """Whether casting from one field to another may round values."""
    return not np.can_cast(there.dtype, here.dtype, "safe") and here.dtype.kind == "f"
