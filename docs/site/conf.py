"""The documentation site: `make docs` builds it into build/site with Sphinx, MyST and Furo.

The source directory is the repository, so links between README, docs/ and the files beside them mean the same here and
on a code host. The navigation is what docs/README.md lists, in its order: a page that it leaves out fails the build.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import offpolicy  # noqa: E402  # of this checkout
from docs.site import reference  # noqa: E402

project = "offpolicy"
author = "offpolicy contributors"
release = version = offpolicy.__version__
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/adr/*.md", "docs/site/*.md"]
# Directories without pages are left out, because every file in them would be looked at.
exclude_patterns = [path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "docs"]
extensions = ["myst_parser", "sphinx.ext.autodoc"]
suppress_warnings = ["myst.header"]  # the changelog begins its versions two levels down

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
highlight_language = "text"  # a block without a language is a screen
default_role = "code"  # docstrings mark names with single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = "offpolicy"
html_extra_path = ["index.html"]
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False

CONTENTS = "docs/README"
LISTED = re.compile(r"^- \[[^\]]*\]\(([^)#]+\.md)\)", re.MULTILINE)
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)


def navigation() -> str:
    """Returns hidden tables of contents, one for each section of docs/README.md."""
    _, *sections = SECTION.split((ROOT / f"{CONTENTS}.md").read_text())
    trees = [f"```{{toctree}}\n:hidden:\n\nAll pages <{CONTENTS}>\n```"]
    for caption, text in zip(sections[::2], sections[1::2], strict=True):
        pages = [(ROOT / "docs" / page).resolve().relative_to(ROOT) for page in LISTED.findall(text)]
        lines = "\n".join(str(page.with_suffix("")) for page in pages)
        trees.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```")
    return "\n\n".join(trees)


def decision_records() -> str:
    """Returns the hidden table of contents of the decision records."""
    pages = [page.stem for page in sorted((ROOT / "docs/adr").glob("[0-9d]*.md"))]
    return "```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```"


AUTODOC = re.compile(r"<!-- autodoc (\S+): (.+) -->")


def docstrings(marker: re.Match[str]) -> str:
    """Returns the directives for the names of a marker `<!-- autodoc module: names -->`, which a code host hides."""
    module = importlib.import_module(marker[1])
    lines = []
    for name in marker[2].split():
        value = getattr(module, name)
        is_class = isinstance(value, type)
        if not callable(value):  # a constant: what its docstring would show is that of its type
            lines += [f".. py:data:: {marker[1]}.{name}", f"   :type: {type(value).__name__}", ""]
            continue
        lines.append(f".. auto{'class' if is_class else 'function'}:: {marker[1]}.{name}")
        lines += ["   :members:", ""] if is_class else [""]
    return "```{eval-rst}\n" + "\n".join(lines) + "\n```"


GENERATED = re.compile(r"<!-- generated: (\w+) -->")


def generated(marker: re.Match[str]) -> str:
    """Returns what `reference` makes of the code for a marker `<!-- generated: name -->`."""
    text: str = getattr(reference, marker[1])()
    return text


ADDED = {"README": navigation, "docs/adr/README": decision_records}


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Adds what a code host would show as text: tables of contents, docstrings, options."""
    source[0] = GENERATED.sub(generated, AUTODOC.sub(docstrings, source[0]))
    if docname in ADDED:
        source[0] = f"{source[0]}\n\n{ADDED[docname]()}\n"


def unlink_what_is_not_here(app: Sphinx, doctree: nodes.document) -> None:
    """Shows a link to a file or a directory of the repository that is no page as the name of that file."""
    for link in list(doctree.findall(nodes.Element)):
        target = link.get("reftarget") or ""
        if link.get("refdomain") == "doc" and target not in app.env.found_docs:
            link.replace_self(nodes.literal(text=f"{target}.md"))
            continue
        if link.get("refdomain") == "doc" or not target or target.startswith(("http", "#")):
            continue
        page = Path(app.env.doc2path(app.env.docname)).parent
        path = (page / target.partition("#")[0]).resolve()
        if path.exists() and path.suffix != ".md":
            link.replace_self(nodes.literal(text=str(path.relative_to(ROOT))))


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_navigation)
    app.connect("doctree-read", unlink_what_is_not_here)
