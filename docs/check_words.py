"""Plain English: what CONTRIBUTING.md asks to avoid, in pages, docstrings, help and messages.

python docs/check_words.py
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What keeps coming back and nobody says; CONTRIBUTING.md has what to write instead.
BANNED = re.compile(
    r"\b(anew|befell|so many|the wiser|lets it be|comes to \d|told|in vain|in company)\b"
    r"|\b(sittings?|for want of|somebody's own)\b"
    r"|\bstands? beside\b|\bbeside others\b|\bless is better\b|\bone's own\b"
    r"|\bhow (they|it|runs) stands?\b|\bleave \S+ away\b|\b(faster|slower) day\b"
    r"|\bleave (\S+ ){1,3}away\b|\bbelongs? into\b|\b(gives?|given) \S+ \S+ free\b|\bat the most\b"
    r"|\b(rows|lines) too many\b|\boutside of\b|\bby (a|the) wrapper\b|\bthe rest of them is\b"
    r"|(?<!there )\b(is|are) no (run|agent|lake|mixture|multiple|step|dtype|crash)s?\b"
    r"|\basks? the run again\b|\bwhat the \S+ numbers mean\b"
    r"|\bleast (agent|team)\b|\bprove that it would\b|\bloop of (your|somebody's) own\b",
    re.I,
)


def pages() -> list[Path]:
    """Every page that people read."""
    top = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
    return [*(ROOT / name for name in top), *sorted((ROOT / "docs").rglob("*.md"))]


def notebooks() -> list[Path]:
    """Notebooks, whose text is checked too."""
    return sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def prose(page: Path) -> str:
    """A page without its code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def texts_of(path: Path) -> list[str]:
    """Docstrings, messages and help: the longer strings of a module, none of its names."""
    found = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    strings = (node.value for node in found if isinstance(node, ast.Constant))
    return [text for text in strings if isinstance(text, str) and " " in text]


def findings() -> list[str]:
    """`file: phrase` for everything that nobody says; code in ticks does not count."""
    wrong: list[str] = []
    for page in pages():
        text = prose(page)
        if page.name == "CONTRIBUTING.md":  # its table is the list
            text = re.sub(r"^\|.*\|$", "", text, flags=re.M)
        wrong += _in(page, text)
    for path in notebooks():
        wrong += _in(path, path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "src").rglob("*.py")):
        for text in texts_of(path):
            wrong += _in(path, text)
    return wrong


def _in(path: Path, text: str) -> list[str]:
    plain = re.sub(r"`[^`]*`", "", text)
    return [f"{path.relative_to(ROOT)}: {hit[0]}" for hit in BANNED.finditer(plain)]


if __name__ == "__main__":
    found = findings()
    print("\n".join(found), file=sys.stderr)
    sys.exit(bool(found))
