"""Notebooks: run one, and turn it into a page. Plain JSON, so Jupyter is not needed.

    python docs/run_notebooks.py docs/notebooks/*.ipynb

Runs the cells of each in one process, in an empty folder, and keeps what they print and show in
build/notebooks, where the documentation takes it from. The notebooks themselves hold no outputs.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RUN = ROOT / "build" / "notebooks"


class CellFailed(Exception):
    """A cell of a notebook raised."""


def cells_of(path: Path) -> list[dict[str, Any]]:
    """Its cells: dicts with `cell_type` and `source`, as one text."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell | {"source": "".join(cell["source"])} for cell in cells]


def run_notebook(path: Path, folder: Path) -> list[dict[str, Any]]:
    """Run its code in `folder`; the cells with their outputs. CellFailed names the cell."""
    names: dict[str, Any] = {"__name__": "__main__"}
    found: list[dict[str, Any]] = []
    with contextlib.chdir(folder):
        for number, cell in enumerate(cells_of(path)):
            if cell["cell_type"] != "code":
                found.append(cell)
                continue
            said = io.StringIO()
            try:
                with contextlib.redirect_stdout(said):
                    value = _run(cell["source"], f"{path.name}[{number}]", names)
            except Exception as error:
                why = f"{path.name}, cell {number}: {type(error).__name__}: {error}"
                raise CellFailed(why) from error
            found.append(cell | {"outputs": _outputs(said.getvalue(), value)})
    return found


def _run(source: str, place: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does: the value of its last expression, None if it has none."""
    tree = ast.parse(source, place)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, place, "exec"), names)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), place, "eval"), names)


def _outputs(said: str, value: Any) -> list[dict[str, str]]:
    found = [{"text": said}] if said else []
    if hasattr(value, "savefig"):  # a figure of matplotlib
        picture = io.BytesIO()
        value.savefig(picture, format="png", dpi=110)
        found.append({"png": base64.b64encode(picture.getvalue()).decode()})
    elif value is not None:
        found.append({"text": repr(value)})
    return found


def as_markdown(cells: Sequence[dict[str, Any]]) -> str:
    """A page: text as it is, code with what it printed and showed below it."""
    parts: list[str] = []
    for cell in cells:
        if cell["cell_type"] != "code":
            parts.append(cell["source"])
            continue
        parts.append(f"```python\n{cell['source']}\n```")
        for output in cell.get("outputs", ()):
            if "png" in output:
                source = f"data:image/png;base64,{output['png']}"
                parts.append(f'<img alt="what the cell above shows" src="{source}">')
            else:
                parts.append(f"```text\n{output['text'].rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def page_of(path: Path) -> str:
    """A notebook as a page, with the outputs of its last run if it has not changed since."""
    cells, run = cells_of(path), RUN / f"{path.stem}.json"
    if run.exists():
        kept = json.loads(run.read_text(encoding="utf-8"))
        if [cell["source"] for cell in kept] == [cell["source"] for cell in cells]:
            cells = kept
    return as_markdown(cells)


def main(paths: list[str]) -> int:
    """Run notebooks, each in a folder of its own; the number of those that failed."""
    failed = 0
    RUN.mkdir(parents=True, exist_ok=True)
    for path in map(Path, paths):
        with tempfile.TemporaryDirectory(prefix="millpond-notebook-") as folder:
            try:
                cells = run_notebook(path.resolve(), Path(folder))
            except CellFailed as error:
                print(error, file=sys.stderr)
                failed += 1
                continue
        (RUN / f"{path.stem}.json").write_text(json.dumps(cells), encoding="utf-8")
        print(
            f"{path.name}: {sum(cell['cell_type'] == 'code' for cell in cells)} cells", flush=True
        )
    return failed


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
