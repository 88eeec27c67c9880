"""Hooks of mkdocs: adds the pages that lie outside docs/ or are generated, and rewrites links to them.

Invariants:
- every relative link of a page leads to a page of the site or to a file of the repository; another one is a warning,
  and `make docs` fails on warnings;
- a link to a file of the repository that is no page becomes its path as code: the site has no source browser.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs loads this file alone
import reference

ROOT = Path(__file__).resolve().parents[2]

#: pages that lie at the top of the repository, by their path in the site
TOP = {
    "index.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]*(?:\n[^\]\n]*)?)\]\((?P<target>[^)\s]+)\)")
_log = logging.getLogger("mkdocs.hooks")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of TOP and the generated ones."""
    for uri, path in TOP.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text()))
    for uri, make in reference.PAGES.items():
        files.append(File.generated(config, uri, content=make()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links that are right in the repository into links that are right in the site."""
    source = page.file.src_uri
    here = TOP.get(source, f"docs/{source}")

    def rewritten(match: re.Match[str]) -> str:
        text, target = match["text"], match["target"]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, mark, anchor = target.partition("#")
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
        uri = _page_of(inside)
        found = files.get_file_from_path(uri)
        if found is not None and not found.inclusion.is_excluded():
            there = posixpath.relpath(uri, posixpath.dirname(source) or ".")
            return f"[{text}]({there}{mark}{anchor})"
        if source not in reference.PAGES and os.path.exists(ROOT / inside):
            return text if text.startswith("`") else f"`{inside}`"
        _log.warning("broken link in %s: %s", here, target)
        return match[0]

    return _LINK.sub(rewritten, markdown)


def _page_of(path: str) -> str:
    """The path in the site of a file of the repository."""
    for uri, top in TOP.items():
        if path == top:
            return uri
    return path.removeprefix("docs/")
