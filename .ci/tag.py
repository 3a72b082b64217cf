"""Refuse a release whose tag is not the version, or whose changelog has no date: `python .ci/tag.py v0.1.0`."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def refusal(tag: str, source: str, changelog: str) -> str | None:
    """Why ``tag`` may not be released, in words; None if it may."""
    version = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    if version is None or tag != f"v{version[1]}":
        return f"the tag is {tag}, and the version {version[1] if version else 'missing'}: a tag is v and the version"
    if not re.search(rf"^## \[{re.escape(version[1])}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        return f"CHANGELOG.md has no line «## [{version[1]}] - YEAR-MONTH-DAY»"
    return None


def main(tag: str) -> int:
    source = (ROOT / "src" / "spectralgrad" / "__init__.py").read_text(encoding="utf-8")
    found = refusal(tag, source, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    if found:
        print(f"release: {found}.", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if sys.argv[1:] else ""))
