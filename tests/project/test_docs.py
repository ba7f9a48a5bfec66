"""The documentation: its links lead somewhere, its code runs, every public name says what it is."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HOW_TO = sorted((DOCS / "how-to").glob("*.md"))

sys.path.insert(0, str(DOCS))
check_words = importlib.import_module("check_words")
make_cli = importlib.import_module("make_cli")
run_notebooks = importlib.import_module("run_notebooks")
run_blocks = importlib.import_module("run_blocks")
PAGES = check_words.pages()
WITH_PYTHON = [
    page for page in HOW_TO if any(b.kind == "python" for b in run_blocks.blocks_of(page))
]

PACKAGES = [
    "millpond",
    "millpond.agents",
    "millpond.compare",
    "millpond.doctor",
    "millpond.envs",
    "millpond.exchange",
    "millpond.flow",
    "millpond.lake",
    "millpond.logged",
    "millpond.mixture",
    "millpond.replay",
    "millpond.train",
]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as repositories and Sphinx make them."""
    heads = re.findall(r"^#+ (.+)$", check_words.prose(page), re.M)
    plain = (re.sub(r"[^\w\- ]", "", head.lower()) for head in heads)
    return {head.replace(" ", "-") for head in plain}


def test_links_lead_somewhere():
    wrong = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", check_words.prose(page)):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            if not there.exists():
                wrong.append(f"{page.name}: {target}: there is no such file")
            elif anchor and anchor not in anchors(there):
                wrong.append(f"{page.name}: {target}: no such heading")
    assert not wrong, "\n".join(wrong)


def test_words_that_nobody_says():
    found = check_words.findings()
    assert not found, "\n".join(found)


def test_the_word_list_finds_what_it_looks_for():
    for text in (
        "as it was told",
        "read anew",
        "after so many steps",
        "Less is better",
        "how it stands",
        "on a slower day",
        "for want of time",
        "a run of somebody's own loop",
        "it is no run",
        "text belongs into config=",
        "gives the group free",
        "leave the call away",
        "0.1 at the most",
    ):
        assert check_words.BANNED.search(text), text
    assert not check_words.BANNED.search("holds, strongly, untold, standing; comes to rest")
    assert not check_words.BANNED.search("there is no run, for free, belongs in it")


def test_figures_of_the_readme_are_those_of_the_page_it_links():
    """Each row of its table is one row of docs/performance.md: no figure has two values."""
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    theirs = [
        set(re.findall(r"\d[\d,.]*\d|\d", row)) for row in page.splitlines() if row[:1] == "|"
    ]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("## Compared with other libraries")[2].partition("The other rows")[0]
    rows = [row.split("|")[2:4] for row in table.splitlines() if re.search(r"\| \**\d", row)]
    assert len(rows) == 5
    for ours, best in rows:
        figures = {re.findall(r"\d[\d,.]*", cell)[0] for cell in (ours, best)}
        assert any(figures <= row for row in theirs), (
            f"docs/performance.md has no row with {figures}"
        )


def test_every_page_is_in_the_index():
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    text += (DOCS / "api.md").read_text(encoding="utf-8")
    for page in (*sorted(DOCS.rglob("*.md")), *NOTEBOOKS):
        name = page.relative_to(DOCS).with_suffix("").as_posix()
        listed = name == "index" or name.startswith("decisions/")
        assert listed or f"\n{name}\n" in text, f"{name} is in no toctree of docs/index.md"


def test_code_in_docstrings_is_indented():
    """What is not would be set as prose in the reference; nor is it if no text follows the code."""
    code = re.compile(r"(?:[\w.][\w.\[\], ]* = .+\)|(?:[a-z]\w*\.)*\w+\(.*\))\s*(?:#.*)?")
    assert code.fullmatch('PrioritizedDQN("MlpPolicy", env).learn(50_000)')
    wrong = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                lines = (ast.get_docstring(node) or "").splitlines()
                wrong += [f"{path.name}: {line}" for line in lines if code.fullmatch(line)]
    assert not wrong, "\n".join(wrong)


def test_cli_page_is_what_the_commands_say():
    same = make_cli.words_of(make_cli.PAGE.read_text(encoding="utf-8"))
    remedy = "docs/cli.md is not what the commands say: python docs/make_cli.py"
    assert same == make_cli.words_of(make_cli.page()), remedy


# `make docs` runs them all; what compiles long is left to it and to --full.
LONG = ("replay-in-jax", "your-own-environment")


def page_param(page):
    marks = [pytest.mark.full] if page.stem in LONG else []
    return pytest.param(page, id=page.stem, marks=marks)


@pytest.mark.parametrize("page", [page_param(page) for page in WITH_PYTHON])
@pytest.mark.filterwarnings("default")  # those of other libraries do not concern a page
def test_how_to_code_runs(page, tmp_path):
    run_blocks.run_page(page, tmp_path, kinds=("python",))


def test_tutorial_has_a_block_for_every_part():
    blocks = run_blocks.blocks_of(DOCS / "tutorial.md")
    code = "\n".join(block.code for block in blocks)
    for command in ("train", "eval", "runs", "resume", "doctor", "plan", "lake", "mix", "compare"):
        assert f"millpond {command} " in code or f"millpond {command}\n" in code, command


@pytest.mark.full
def test_tutorial_runs(tmp_path):
    run_blocks.run_page(DOCS / "tutorial.md", run_blocks.like_a_clone(tmp_path))


def page_of(tmp_path: Path, text: str) -> Path:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


def test_the_runner_runs_what_a_reader_would(tmp_path):
    page = page_of(
        tmp_path,
        "<!-- run: file=one.py -->\n```python\nprint('one')\n```\n"
        '<!-- run: says="one" -->\n```bash\npython one.py\n```\n'
        "<!-- run: exit=3 -->\n```bash\nexit 3\n```\n"
        '<!-- run: interrupt="ready" -->\n```bash\n'
        "trap 'exit 130' INT; echo ready; for i in $(seq 300); do sleep 0.1; done\n```\n"
        "<!-- run: module=no_such_module -->\n```python\nimport no_such_module\n```\n"
        "<!-- run: command=no-such-command -->\n```bash\nmillpond no-such-command\n```\n"
        "```python\nx = 1\n```\n```text\nnot run\n```\n```python\nassert x == 1\n```\n",
    )
    run_blocks.run_page(page, tmp_path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("```bash\nfalse\n```\n", "ended with 1, not 0"),
        ("```bash\nfalse\ntrue\n```\n", "ended with 1, not 0"),
        ('<!-- run: says="two" -->\n```bash\necho one\n```\n', "expected it to print 'two'"),
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("<!-- run: exti=1 -->\n```bash\ntrue\n```\n", "unknown exti"),
    ],
)
def test_the_runner_says_what_went_wrong(text, why, tmp_path):
    with pytest.raises(run_blocks.BlockFailed, match=re.escape(why)):
        run_blocks.run_page(page_of(tmp_path, text), tmp_path)


NOTEBOOKS = check_words.notebooks()


def notebook_of(tmp_path: Path, *code: str) -> Path:
    cells = [{"cell_type": "markdown", "source": ["# Title\n"]}]
    cells += [{"cell_type": "code", "source": [text], "outputs": []} for text in code]
    path = tmp_path / "one.ipynb"
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    return path


def test_a_notebook_becomes_a_page_with_what_it_printed(tmp_path):
    path = notebook_of(tmp_path, "x = 2\nprint('two')", "x + 1")
    page = run_notebooks.as_markdown(run_notebooks.run_notebook(path, tmp_path))
    assert page.startswith("# Title\n\n\n```python\nx = 2\nprint('two')\n```\n\n```text\ntwo\n```")
    assert page.endswith("x + 1\n```\n\n```text\n3\n```\n")
    with pytest.raises(run_notebooks.CellFailed, match=r"one\.ipynb, cell 2: NameError: name 'y'"):
        run_notebooks.run_notebook(notebook_of(tmp_path, "x = 1", "y"), tmp_path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_hold_no_outputs(path):
    """`make docs` runs them."""
    cells = run_notebooks.cells_of(path)
    assert cells[0]["source"].startswith("# ")
    for cell in cells:
        assert not cell.get("outputs"), "outputs are made by `make docs`"
        assert cell["cell_type"] == "markdown" or ast.parse(cell["source"])
    for target in re.findall(r"\]\(([^)\s]+)\)", run_notebooks.as_markdown(cells)):
        assert (path.parent / target).exists(), target


def public() -> list[tuple[str, str]]:
    return [(name, one) for name in PACKAGES for one in importlib.import_module(name).__all__]


@pytest.mark.parametrize(("package", "name"), public(), ids=lambda text: text)
def test_every_public_name_has_a_contract_and_a_usage_line(package, name):
    thing = getattr(importlib.import_module(package), name)
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return  # a table or a type: what it is stands above it
    text = thing.__dict__.get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert text, f"{package}.{name} has no docstring of its own"
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return  # raised, not called
    assert has_usage(inspect.cleandoc(text)), f"{package}.{name}: no usage line in its docstring"


def has_usage(text: str) -> bool:
    """Code in ticks or indented, which calls, assigns or reads an attribute, and is Python."""
    ticks = re.findall(r"`([^`]+)`", text)
    indented = re.findall(r"(?:^    .*\n?)+", text, re.M)
    return any(is_code(inspect.cleandoc(code)) for code in [*ticks, *indented])


def is_code(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip()]
    for code in (text, f"{text} pass", f"{text}: pass", *lines):
        try:
            tree = ast.parse(code)
        except SyntaxError:
            continue
        if any(isinstance(n, ast.Call | ast.Assign | ast.Attribute) for n in ast.walk(tree)):
            return True
    return False


def test_api_page_names_every_public_name():
    page = "".join(one.read_text(encoding="utf-8") for one in (DOCS / "api").glob("*.md"))
    named = set(re.findall(r"^\.\. auto\w+:: (\w+)$", page, re.M))
    missing = []
    for package, name in public():
        thing = getattr(importlib.import_module(package), name)
        if name not in named and (inspect.isclass(thing) or inspect.isfunction(thing)):
            missing.append(f"{package}.{name}")
    assert not missing, missing


def documented(text: str) -> list[str]:
    """What the API pages describe, by where it is defined: the same thing has one name there."""
    found, module = [], ""
    for kind, name in re.findall(r"^\.\. (currentmodule|auto\w+):: ([\w.]+)$", text, re.M):
        if kind == "currentmodule":
            module = name
        else:
            thing = getattr(importlib.import_module(module), name)
            found.append(f"{getattr(thing, '__module__', module)}.{name}")
    return found


def test_api_pages_describe_everything_once():
    """Sphinx calls a second description an error, and `make docs` fails minutes later."""
    pages = [one.read_text(encoding="utf-8") for one in sorted((DOCS / "api").glob("*.md"))]
    found = [name for page in pages for name in documented(page)]
    assert not {name for name in found if found.count(name) > 1}
    again = ".. currentmodule:: millpond.replay\n\n.. autoclass:: Pond\n"
    assert documented(again) == ["millpond.replay.pond.Pond"]
    assert documented(again)[0] in found


def test_what_docs_need_is_locked_apart():
    """`make lock` leaves out what docs/requirements.lock has, so nothing may be in both."""
    ours, theirs = (
        set((folder / "requirements.lock").read_text().split()) for folder in (DOCS, ROOT)
    )
    assert not ours & theirs
