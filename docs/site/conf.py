"""Sphinx settings of the documentation site: `make docs`. The pages are the Markdown files that GitHub shows.

The source folder is the repository's root, so that a link has the same target here and on GitHub. A link to a page or heading
that does not exist is an error; a link to a source file is checked too, and the file is copied to the site.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]

project = "Frostline"
extensions = ["myst_parser"]
root_doc = "README"
EXAMPLES = sorted(f"examples/{file.parent.name}/README" for file in (ROOT / "examples").glob("*/README.md"))
include_patterns = [
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "charts/frostline/README.md", "docs/**.md",
    *(f"{page}.md" for page in EXAMPLES),
]  # fmt: skip
exclude_patterns = [".*", "build", "dist", "runs", "*/frostline_*", "tests", "tools", "proto/gen", "**/*.egg-info"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "Frostline"
html_copy_source = False
html_extra_path = ["index.html"]
nitpicky = True

NAVIGATION = {
    "Start": ["docs/concepts", "docs/tutorial", *EXAMPLES, "docs/troubleshooting"],
    "Use": [
        "docs/job-reference", "docs/simulate", "docs/run-directory", "docs/sweeps", "docs/python-api", "docs/faults",
        "docs/extending", "docs/clusters", "docs/gpus", "charts/frostline/README", "docs/security",
    ],
    "Understand": ["docs/design", "docs/protocols", "docs/grpc", "docs/glossary"],
    "Measured": [
        "docs/benchmarks", "docs/comparison/payoff", "docs/comparison/digits", "docs/comparison/reviews",
        "docs/comparison/published", "docs/comparison/terapipe", "docs/comparison/tensor",
    ],
    "Change": ["CONTRIBUTING", "docs/testing", "CHANGELOG"],
    "Decisions": sorted(f"docs/adr/{file.stem}" for file in (ROOT / "docs" / "adr").glob("*.md")),
}  # fmt: skip
"""The side bar. A page of docs/ that is not named here is listed under More."""


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.connect("source-read", name_html_anchors)


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Add to the front page the tables of contents that make up the side bar; on GitHub they would be noise."""
    if page != root_doc:
        return
    found = app.env.found_docs
    named = {name for names in NAVIGATION.values() for name in names} | {root_doc}
    for caption, names in {**NAVIGATION, "More": sorted(found - named)}.items():
        there = [f"/{name}" for name in names if name in found]
        if there:
            source[0] += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *there, "```", ""])


def name_html_anchors(app: Sphinx, page: str, source: list[str]) -> None:
    """Turn each anchor that is a line of HTML, as GitHub requires, into a target against which links are checked."""
    source[0] = re.sub(r'^<a id="([\w-]+)"></a>$', r"(\1)=", source[0], flags=re.MULTILINE)
