"""Write docs/hooks.md, the reference of all hooks, from the hook specs of vime.plugins.

uv run python docs/generate_hooks.py          write hooks.md
uv run python docs/generate_hooks.py --check  write nothing; exit 1 where hooks.md is stale
"""

from __future__ import annotations

import argparse
import doctest
import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from vime.plugins.hookspecs import EVAL_PATH_FLAG, HOOKS, HookSpecInfo, VimeSpec
from vime.plugins.manager import ROUTED

PAGE = Path(__file__).resolve().parent / "hooks.md"

KINDS = {"one": "one plugin claims it", "agree": "all plugins must agree", "all": "all plugins are called"}
PARTS = ("Called", "Arguments", "Returns", "Several plugins")
WIDTH = 100

HEAD = """\
# Hooks

Every hook of vime, in the order in which a training step meets them.
This page is generated from the hook specs by `uv run python docs/generate_hooks.py`.

A plugin implements a hook under exactly its name, with the marker `@hookimpl`, and takes any subset of its arguments, by name
and in any order ([Plugins](plugins.md)). A path flag names one function for a hook, which is called positionally, whatever it
calls its parameters ([functions by path](plugins.md#functions-by-path)).

`args` is the configuration of the run, frozen; [Sample](sample.md) has a page of its own. In the signatures a `Number` is a
float, int or bool, a `Reward` a Number or a dict of them, a `RolloutOutput` a RolloutFnTrainOutput or a RolloutFnEvalOutput.

"""

PRELUDE = """\
The examples run as they stand after this:

```python
import asyncio

from vime.api import Sample
from vime.config.run_config import RunConfig
from vime.testing import FakeEngine


class Prompts:
    def get_samples(self, n):
        return [[Sample(group_index=i, index=2 * i + k, prompt="1+1=", label="2") for k in range(2)] for i in range(n)]


run = asyncio.run
args = RunConfig(rollout_batch_size=2, n_samples_per_prompt=2)
engine = FakeEngine()
data_source = Prompts()
```
"""


@dataclass(frozen=True)
class HookDoc:
    """A spec's docstring in its parts."""

    summary: str
    parts: dict[str, str]
    example: str
    """Statements without prompts; the value of an expression follows it as a comment."""


def parse(info: HookSpecInfo) -> HookDoc:
    """Take the docstring of a hook apart. Raises ValueError, naming the hook, for a part that is missing."""
    text, _, code = info.doc.partition("\nExample:\n")
    summary, _, rest = text.strip("\n").partition("\n\n")
    pieces = re.split(rf"^({'|'.join(PARTS)}): ", rest, flags=re.MULTILINE)
    parts = {name: _joined(body) for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}
    missing = [name for name in PARTS if name not in parts] + ([] if code.strip() else ["Example"])
    if missing:
        raise ValueError(f"the docstring of {info.name} lacks {', '.join(missing)}")
    return HookDoc(_joined(summary), parts, _without_prompts(code))


def _joined(text: str) -> str:
    return " ".join(text.split())


def _without_prompts(code: str) -> str:
    """A doctest as a plain script, with two blank lines after its imports and around its definitions, as formatters have it."""
    lines: list[str] = []
    was_block = False
    for example in doctest.DocTestParser().get_examples(code):
        source = example.source.rstrip("\n")
        is_import, is_block = source.startswith(("import ", "from ")), source.startswith(("@", "class ", "def ", "async def "))
        if lines and not is_import and (is_block or was_block or lines[-1].startswith(("import ", "from "))):
            lines += ["", ""] if is_block or was_block else [""]
        lines += _spaced(source.splitlines())
        lines += [f"# {line}" for line in example.want.splitlines()]
        was_block = is_block
    return "\n".join(lines)


def _spaced(source: list[str]) -> list[str]:
    """A statement's lines, with a blank one between the methods of a class."""
    spaced: list[str] = []
    for line in source:
        if spaced and line.startswith(("    def ", "    async def ", "    @")) and not spaced[-1].startswith(("class ", "    @")):
            spaced.append("")
        spaced.append(line)
    return spaced


def signature(info: HookSpecInfo) -> str:
    """`name(param: type, ...) -> type`, over several lines where one would be too long."""
    spec = inspect.signature(getattr(VimeSpec, info.name))
    params = [str(param).replace("'", "") for name, param in spec.parameters.items() if name != "self"]
    returns = str(spec.return_annotation)
    line = f"{info.name}({', '.join(params)}) -> {returns}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{info.name}(", *(f"    {param}," for param in params), f") -> {returns}"])


def kind(info: HookSpecInfo) -> str:
    """How several plugins combine, in a few words."""
    return "the rm_type of a sample chooses" if info.name == ROUTED else KINDS[info.kind]


def flags(info: HookSpecInfo) -> list[str]:
    """The path flags of the hook as they are typed."""
    found = [] if info.flag is None else [info.flag]
    return [*found, "--" + EVAL_PATH_FLAG.replace("_", "-")] if info.name == "generate_rollout" else found


def _path_line(info: HookSpecInfo) -> str:
    if info.flag is None:
        return "- **Path flag:** none"
    what = "class(args)" if info.name == "make_data_source" else f"function({', '.join(info.path_args)})"
    line = f"- **Path flag:** `{info.flag}`" + (", which may be repeated" if info.repeatable else "") + f"; called as `{what}`"
    if info.name == ROUTED:
        line += ", and as `function(args, samples)` under `--group-rm`"
    if info.path_keywords:
        names = " and ".join(f"`{name}`" for name in info.path_keywords)
        line += f". {names} {'go' if len(info.path_keywords) > 1 else 'goes'} by keyword, to functions with such a parameter"
    if info.name == "generate_rollout":
        line += f". `{flags(info)[1]}` names another function for evaluations only"
    return line + "."


def section(info: HookSpecInfo) -> str:
    """The part of the page about one hook."""
    doc = parse(info)
    lines = [f"## {info.name}", "", doc.summary, "", "```text", signature(info), "```", ""]
    lines += [f"- **{name}:** {_sentence(doc.parts[name])}" for name in PARTS]
    return "\n".join([*lines, _path_line(info), "", "```python", doc.example, "```", ""])


def _sentence(text: str) -> str:
    """With a capital, and its flags as code."""
    return text[0].upper() + re.sub(r"(?<![`\w-])--[a-z][a-z-]+", r"`\g<0>`", text[1:])


def page() -> str:
    """The whole page."""
    table = ["| hook | what it does | several plugins | path flag |", "|---|---|---|---|"]
    for info in HOOKS.values():
        named = ", ".join(f"`{flag}`" for flag in flags(info)) or "-"
        table.append(f"| [`{info.name}`](#{info.name}) | {parse(info).summary} | {kind(info)} | {named} |")
    return "\n".join([HEAD + "\n".join(table), "", PRELUDE, *map(section, HOOKS.values())])


def main() -> int:
    """The command; the exit status says whether the page was stale under --check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where hooks.md is stale")
    is_check = parser.parse_args().check
    text = page()
    if is_check:
        stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text
        sys.stdout.write(f"hooks.md is {'stale: uv run python docs/generate_hooks.py' if stale else 'up to date'}\n")
        return int(stale)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
