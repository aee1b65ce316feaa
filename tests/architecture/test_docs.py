"""The documents say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dlc.core import env

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_the_readme_lists_the_environment_variables():
    rows = re.findall(r"^\| `(DLC_\w+)` \| (.*) \|$", (ROOT / "README.md").read_text(), re.M)
    found = [(name, meaning.replace("`", "")) for name, meaning in rows]
    assert found == [(variable.name, variable.meaning) for variable in env.VARIABLES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    local = [target for target in targets if "://" not in target]
    assert not [target for target in local if not (page.parent / target).exists()]
