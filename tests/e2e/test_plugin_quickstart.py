"""docs/plugins/quickstart.md, command by command, in one shell that starts with an empty folder and the built wheels."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plugins" / "quickstart.md"
MODULE = "src/vime_closeness/reward.py"
MARK = "=== end of block "
NUMBER = r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?"


@dataclass
class Step:
    """A block of commands, with what is to be edited before it, and what the page says that it prints."""

    commands: str
    edit: str | None = None
    shown: list[str] = field(default_factory=list)


@dataclass
class Session:
    """The page after it was followed: where, and what each block printed."""

    folder: Path
    steps: list[Step]
    printed: list[str]


def steps_of(page: str) -> list[Step]:
    steps: list[Step] = []
    edit: str | None = None
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL):
        if language == "bash":
            steps.append(Step(block, edit))
            edit = None
        elif language == "python":
            edit = block
        else:
            steps[-1].shown.append(block)
    return steps


def replace_function(path: Path, text: str) -> None:
    """Put the function `text` in the place of the one with the same name in the module at `path`."""
    (wanted,) = ast.parse(text).body
    source = path.read_text(encoding="utf-8")
    (old,) = [node for node in ast.parse(source).body if getattr(node, "name", None) == getattr(wanted, "name", "")]
    lines = source.splitlines(keepends=True)
    path.write_text("".join([*lines[: old.lineno - 1], text, *lines[old.end_lineno :]]), encoding="utf-8")


def as_pattern(shown: str) -> str:
    """What the page shows, as a pattern: any number for a number, any spaces for spaces, `...` for whatever may be there."""
    stands_for = {"any": ".*", "number": NUMBER, "space": r"\s+"}
    lines: list[str] = []
    for line in shown.strip("\n").splitlines():
        if line == "...":
            lines.append(r"(?:.*\n)*?")
            continue
        parts = re.finditer(rf"(?P<any>\.\.\.)|(?P<number>{NUMBER})|(?P<space>\s+)|.", line)
        lines.append("".join(stands_for.get(part.lastgroup or "", re.escape(part.group())) for part in parts) + r"\s*?\n")
    return "".join(lines)


def test_numbers_and_spaces_of_a_shown_output_may_differ() -> None:
    pattern = as_pattern("a -> b  (+0.50)\n...\nend of it: ... /runs\n")
    assert re.search(pattern, "x\na -> b (-12)\n1\n2\nend of it: /tmp /runs\n")
    assert not re.search(pattern, "a -> c (-12)\nend of it: /tmp /runs\n")


@pytest.fixture(scope="module")
def session(as_printed: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("empty")
    steps = steps_of(PAGE.read_text(encoding="utf-8"))
    script = ["exec 2>&1"]
    for number, step in enumerate(steps):
        if step.edit is not None:
            editor = tmp_path_factory.mktemp("editor") / "edit.py"
            call = f"replace_function(Path({MODULE!r}), {step.edit!r})"
            editor.write_text(f"import ast\nfrom pathlib import Path\n\n{inspect.getsource(replace_function)}\n{call}\n", encoding="utf-8")
            script.append(f"{sys.executable} {editor}")
        script += [step.commands, f"echo '{MARK}{number}'"]
    done = subprocess.run(
        ["bash", "-ec", "\n".join(script)],
        cwd=folder,
        env=as_printed,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = re.split(rf"^{MARK}\d+\n", done.stdout, flags=re.MULTILINE)[:-1]
    return Session(folder, steps, printed)


def test_every_command_works_as_printed(session: Session) -> None:
    assert len(session.printed) == len(session.steps) > 5
    assert sum(step.edit is not None for step in session.steps) == 1
    assert "numbers = re.findall" in (session.folder / "closeness" / MODULE).read_text()


def test_the_page_shows_what_is_printed(session: Session) -> None:
    shown = [(expected, printed) for step, printed in zip(session.steps, session.printed, strict=True) for expected in step.shown]
    assert len(shown) >= 4
    for expected, printed in shown:
        assert re.search(as_pattern(expected), printed), f"the page shows\n{expected}\nand the command printed\n{printed}"


def test_the_edited_reward_teaches_the_model(session: Session) -> None:
    scores = re.search(r"^heldout: (\S+) -> (\S+)", session.printed[-1], flags=re.MULTILINE)
    assert scores, session.printed[-1]
    assert float(scores[2]) - float(scores[1]) >= 0.1


KINDS = ("reward", "filter", "buffer-filter", "sample-filter", "rollout", "generate", "post-process")


def test_a_plugin_of_every_kind_trains_unedited(session: Session, as_printed: dict[str, str], tmp_path: Path) -> None:
    """All of them in one run, each from its package."""
    lines = [f"source {session.folder}/.venv/bin/activate"]
    lines += [f"vime plugin new my-{kind} --kind {kind}" for kind in KINDS]
    lines.append("uv pip install " + " ".join(f"./my-{kind}" for kind in KINDS))
    enabled = " ".join(f"--plugin my-{kind}" for kind in KINDS)
    lines.append(f"vime train {enabled} --over-sampling-batch-size 24 --num-rollout 3 --run-dir run")
    done = subprocess.run(
        ["bash", "-ec", "\n".join(lines)],
        cwd=tmp_path,
        env=as_printed,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    metrics: dict[str, float] = {}
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        metrics |= json.loads(line)
    assert metrics["rollout/raw_reward"] > 0.2
    assert metrics["rollout/different_responses"] > 1, "the rollout"
    assert metrics["rollout/dynamic_filter/drop_no_spread"] >= 0, "the filter"
    used = {key.removeprefix("hooks/").removesuffix("_ms") for key in metrics if key.startswith("hooks/")}
    hooks = ("custom_rm", "dynamic_sampling_filter", "buffer_filter", "rollout_sample_filter", "generate_rollout", "custom_generate")
    assert {f"my-{kind}/{hook}" for kind, hook in zip(KINDS, (*hooks, "post_process_rewards"), strict=True)} <= used


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
