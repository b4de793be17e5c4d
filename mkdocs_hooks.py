"""Called by mkdocs: puts the pages' Markdown beside the built site, where llms.txt links to it."""

import shutil
from pathlib import Path
from typing import Any


def on_post_build(config: Any, **_: Any) -> None:
    """Copy every page as it was written."""
    for page in Path(config.docs_dir).glob("*.md"):
        shutil.copy(page, config.site_dir)
