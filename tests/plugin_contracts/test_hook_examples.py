"""The example of every hook in the hook reference passes the checks of that hook: authors copy it."""

from __future__ import annotations

import doctest
import inspect
import sys
from pathlib import Path

import pytest

from vime.plugins.hookspecs import HOOKS
from vime.testing import check

NUM_GPUS = 0

HEAD = "import asyncio\n\nfrom vime.api import *\nfrom vime.config.run_config import RunConfig\nfrom vime.testing import FakeEngine\n\n\n"


def definitions(hook: str) -> str:
    """What the example defines, without the calls that show it."""
    text = inspect.cleandoc(HOOKS[hook].doc).partition("\nExample:\n")[2]
    sources = [example.source for example in doctest.DocTestParser().get_examples(text)]
    return HEAD + "\n\n".join(source for source in sources if source.startswith(("from ", "import ", "@", "def ", "async ", "class ")))


@pytest.mark.parametrize("hook", HOOKS)
def test_the_example_of_a_hook_passes_its_checks(hook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"example_{hook}"
    (tmp_path / f"{name}.py").write_text(definitions(hook), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        module = __import__(name)
        plugin = next((value for value in vars(module).values() if inspect.isclass(value) and hook in vars(value)), module)
        report = check(plugin, hook=hook)
    finally:
        sys.modules.pop(name, None)
    assert [(result.id, result.message) for result in report.failures] == []
    assert [result for result in report.checks if result.status == "pass"], "nothing was checked"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
