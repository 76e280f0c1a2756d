"""Write pr-test.yml from pr-test.yml.j2.

uv run python .github/workflows/generate_github_workflows.py              write pr-test.yml
uv run python .github/workflows/generate_github_workflows.py --register   first bring the template's test lists up to date
uv run python .github/workflows/generate_github_workflows.py --check      exit 1 where pr-test.yml is stale
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import jinja2
from changed_tests import GPUS_OF_AN_UNDECLARED_FILE, ROOT, declared_gpus, test_files

HERE = Path(__file__).resolve().parent
TEMPLATE = HERE / "pr-test.yml.j2"
GENERATED = HERE / "pr-test.yml"


def render(template: str) -> str:
    """The workflow. Jinja's marks are `<% %>`, `<< >>` and `<# #>`, since `{{ }}` belongs to GitHub's expressions."""
    environment = jinja2.Environment(
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
    )
    return environment.from_string(template).render()


def register(template: str, root: Path) -> str:
    """The template with a row for every test file of the tree, in `cpu_unittest` or `gpu_test` by its NUM_GPUS."""
    gpus: dict[str, int] = {}
    for path in test_files(root):
        declared = declared_gpus((root / path).read_text(encoding="utf-8"))
        gpus[path] = GPUS_OF_AN_UNDECLARED_FILE if declared is None else declared
    lists = {
        "cpu_unittest": {path: number for path, number in gpus.items() if number == 0},
        "gpu_test": {path: number for path, number in gpus.items() if number > 0},
    }
    for name, rows in lists.items():
        body = "".join(f"    {{'test_file': '{path}', 'num_gpus': {number}}},\n" for path, number in rows.items())
        template, found = re.subn(
            rf"(?ms)^(<% set {name} = \[\n).*?^(\] %>)$", lambda match, body=body: match[1] + body + match[2], template
        )
        if found != 1:
            raise SystemExit(f"{TEMPLATE.name}: expected one list `set {name} = [ ... ]`, found {found}")
    return template


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--register", action="store_true", help="bring the template's test lists up to date first")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where pr-test.yml is stale")
    options = parser.parse_args()
    if options.register:
        TEMPLATE.write_text(register(TEMPLATE.read_text(encoding="utf-8"), ROOT), encoding="utf-8")
    workflow = render(TEMPLATE.read_text(encoding="utf-8"))
    if options.check:
        stale = not GENERATED.exists() or GENERATED.read_text(encoding="utf-8") != workflow
        print(f"{GENERATED.name} is {'stale: run ' + Path(__file__).name if stale else 'up to date'}")
        return int(stale)
    GENERATED.write_text(workflow, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
