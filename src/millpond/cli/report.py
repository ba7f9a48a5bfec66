"""`millpond report`: write runs to an HTML file that works offline, plus PNGs

millpond report runs/treasure
millpond report runs/breakout-0 runs/breakout-1 -o breakout.html --no-film

The PNGs go into a folder next to the file. Runs may still be training.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import BadConfig
from ..view.run_report import read_runs, save_run_report
from ._options import Parser


def main(args: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser("millpond report", __doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("report.html"),
        help="the HTML file (default report.html)",
    )
    parser.add_argument("--no-film", action="store_true", help="do not film an episode")
    options = parser.parse_args(args)
    if options.out.suffix.lower() not in (".html", ".htm"):
        raise BadConfig(f"report: -o must name an .html file, got '{options.out}'")
    runs = read_runs(options.runs)
    page, *pictures = save_run_report(options.out, runs, not options.no_film)
    print(f"report: {page}")
    print(f"{len(pictures)} figures as PNGs in {pictures[0].parent}")
    return 0
