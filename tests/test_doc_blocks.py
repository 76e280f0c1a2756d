"""Every block of code and of commands on every page is run by a test: here, or by the one that is named here.

A new block fails until it is run or listed. What no test can run is in NOT_RUN, with the reason, and counted.
"""

from __future__ import annotations

import concurrent.futures
import http.server
import json
import os
import re
import shlex
import tomllib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from vime.cli.app import main
from vime.config.run_config import RunConfig

NUM_GPUS = 0

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("docs/**", "plugins/*", "examples/*", "core")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted({page for folder in FOLDERS for page in ROOT.glob(f"{folder}/*.md")})]
DISTRIBUTIONS = {
    tomllib.loads(path.read_text())["project"]["name"] for path in [*ROOT.glob("plugins/*/pyproject.toml"), ROOT / "core/pyproject.toml"]
}

WHEELS = "tests/test_wheels.py"
PLUGIN_QUICKSTART = "tests/e2e/test_plugin_quickstart.py"
AGENTS = "tests/e2e/test_agents.py"
DOCS = "tests/test_docs.py"
EVAL = "core/tests/cli/test_eval.py"
NODES = "tests/ray/test_nodes.py"
QUICKSTART = "tests/e2e/test_quickstart.py"

RUN_ELSEWHERE = {
    ("README.md", "pip install uv && uv run vime train --plugin math"): QUICKSTART,
    ("docs/quickstart.md", "pip install uv && uv run vime train --plugin math"): QUICKSTART,
    ("README.md", "uv run pytest"): ".ci/run",
    ("docs/install.md", "echo 'torch==2.13.0' | uv pip install 'vime[cpu]' vime-rm-math --override -"): WHEELS,
    ("docs/install.md", "uv pip install 'vime[gpu]' vime-rm-math"): WHEELS,
    ("core/README.md", "echo 'torch==2.13.0' | uv pip install 'vime[cpu]' vime-rm-math --override -     # on a CPU"): WHEELS,
    ("core/README.md", "uv pip install 'vime[gpu]' vime-rm-math                                         # on an NVIDIA GPU"): WHEELS,
    ("docs/plugins/cookbook.md", "uv pip install ./examples/cookbook"): WHEELS,
    ("examples/cookbook/README.md", "uv pip install ./examples/cookbook"): WHEELS,
    ("docs/plugins/publishing.md", "uv build --wheel"): PLUGIN_QUICKSTART,
    ("docs/plugins/publishing.md", "uv pip install dist/vime_closeness-0.1.0-py3-none-any.whl"): PLUGIN_QUICKSTART,
    ("examples/smollm2/README.md", "uv run python examples/smollm2/prepare.py"): "tests/e2e/test_smollm2.py",
    (
        "plugins/vime-rm-remote/README.md",
        "vime plugin check remote --arg rm-url=http://judge:8000/score",
    ): "plugins/vime-rm-remote/tests/test_contract.py",
    ("docs/evaluation.md", "vime eval --plugin math --checkpoints runs/2026-11-30-quickstart"): EVAL,
    (
        "docs/evaluation.md",
        "vime eval --plugin math --checkpoints BASE runs/a/checkpoints/step_20 runs/b/checkpoints --eval-config eval.yaml",
    ): EVAL,
    ("docs/quickstart.md", "vime eval --plugin math --checkpoints runs/2026-11-29-quickstart"): EVAL,
    ("docs/doctor.md", "vime doctor --config run.yaml --ray-address auto --runtime ray --json"): NODES,
}
"""Lines of commands, by page, with the test that runs them."""
ELSEWHERE_WHOLE = {"docs/plugins/quickstart.md": PLUGIN_QUICKSTART}
"""Pages all of whose blocks are run by one test, one after the other."""
PYTHON_ELSEWHERE = {"README.md": DOCS, "core/README.md": DOCS, "examples/calculator/README.md": AGENTS}
"""Pages outside docs/ whose Python a test of theirs runs; that of docs/ is run by tests/test_docs.py."""

SHOWN = {
    ("README.md", "eval heldout         0.303"): "the form is that of tests/e2e/test_quickstart.py; the numbers are of one run",
    ("docs/quickstart.md", "eval heldout         0.303"): "the same",
    (
        "docs/data.md",
        "error: sums.jsonl, line 1: it has no key 'prompt'; the keys that are there: 'question', 'answer'",
    ): "core/tests/data/test_dataset.py",
    (
        "docs/troubleshooting.md",
        "error: sums.jsonl, line 1: it has no key 'prompt'; the keys that are there: 'question', 'answer'",
    ): "the same",
    ("docs/evaluation.md", "# evaluation dataset competition"): DOCS,
    ("docs/evaluation.md", "checkpoint  dataset         reward  pass@1  truncated  length"): EVAL,
    (
        "docs/plugins/testing.md",
        "✗ package-import-light     Importing it loads none of torch, vllm, deepspeed and ray.",
    ): "tests/plugin_contracts/test_zoo_packaging.py",
    ("docs/rollout.md", "      data source                 buffer"): "a drawing",
    ("examples/calculator/README.md", "Ann has <calc>4+9</calc> = 13 pens."): "tests/test_examples.py",
}
"""Blocks that show what is printed or drawn, by their first line, with where that is compared."""

NOT_RUN = {
    (
        "docs/install.md",
        "uv pip install 'vime[cpu]' vime-rm-math --torch-backend cpu",
    ): "asks PyTorch's own index, which not every machine reaches",
    ("docs/plugins/publishing.md", "uv build"): "builds whatever is in the folder; uv build --wheel is run",
    ("docs/plugins/publishing.md", "uv publish"): "would publish",
    (
        "docs/plugins/publishing.md",
        "uv pip install 'vime-rm-chess @ git+https://git.example.com/team/vime-rm-chess@v0.1.0'",
    ): "an invented address",
    ("docs/scaling.md", "ray start --head --node-ip-address=10.0.0.1"): "a cluster of several machines",
    ("docs/scaling.md", "ray start --address=10.0.0.1:6379"): "the same",
    ("docs/scaling.md", "vime train --config run.yaml --runtime ray --ray-address auto"): "the same; tests/ray/test_nodes.py has two nodes",
}


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    text: str

    @property
    def first(self) -> str:
        return self.text.splitlines()[0]

    @property
    def lines(self) -> list[str]:
        return [line for line in self.text.splitlines() if line.strip() and not line.startswith("#")]


def blocks() -> list[Block]:
    found: list[Block] = []
    for page in PAGES:
        for match in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL):
            text = re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE)
            found.append(Block(str(page.relative_to(ROOT)), match[2], text))
    return found


def of_language(*languages: str) -> list[Block]:
    return [block for block in blocks() if block.language in languages and block.page not in ELSEWHERE_WHOLE]


def command_lines() -> list[tuple[str, str]]:
    """Every line of commands that is run here, once, with the first page that has it."""
    skipped = {*RUN_ELSEWHERE, *NOT_RUN}
    pages: dict[str, str] = {}
    for block in of_language("bash"):
        for line in block.lines:
            if (block.page, line) not in skipped:
                pages.setdefault(line, block.page)
    return [(page, line) for line, page in pages.items()]


def test_every_block_says_what_it_is() -> None:
    assert len(blocks()) > 100
    assert [block for block in blocks() if block.language not in {"python", "bash", "text", "toml", "yaml", "json"}] == []


def test_every_list_here_is_of_blocks_that_are_there() -> None:
    lines = {(block.page, line) for block in blocks() if block.language == "bash" for line in block.lines}
    firsts = {(block.page, block.first) for block in blocks() if block.language == "text"}
    assert {*RUN_ELSEWHERE, *NOT_RUN} - lines == set()
    assert set(SHOWN) - firsts == set()
    named = {
        *RUN_ELSEWHERE.values(),
        *ELSEWHERE_WHOLE.values(),
        *PYTHON_ELSEWHERE.values(),
        *(where for where in SHOWN.values() if where.endswith(".py")),
    }
    assert [test for test in named if not (ROOT / test).exists()] == []
    assert len(NOT_RUN) == 7, "a command that no test runs is the exception: say why, and count it here"


def test_every_output_that_is_shown_is_listed() -> None:
    signatures = "docs/hooks.md"  # generated from the specs, which tests/test_docs.py compares
    assert [
        (block.page, block.first) for block in of_language("text") if block.page != signatures and (block.page, block.first) not in SHOWN
    ] == []


def python_of(page: str) -> str:
    (block,) = [block for block in of_language("python") if block.page == page]
    return block.text


def test_the_values_that_the_page_of_math_shows_are_those_that_come() -> None:
    names: dict[str, Any] = {}
    lines = python_of("plugins/vime-rm-math/README.md").splitlines()
    exec("\n".join(line for line in lines if "#" not in line), names)
    shown = [line.partition("  # ")[::2] for line in lines if "#" in line]
    assert len(shown) == 4
    assert [(code, eval(code, names)) for code, _ in shown] == [(code, float(value.partition(":")[0])) for code, value in shown]


def test_the_judge_that_the_page_of_remote_shows_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    servers: list[http.server.HTTPServer] = []

    def started(server: http.server.HTTPServer) -> None:
        servers.append(server)

    monkeypatch.setattr(http.server.HTTPServer, "serve_forever", started)
    monkeypatch.setattr(http.server.HTTPServer, "request_queue_size", 5)  # the page sets it, for the whole process
    source = python_of("plugins/vime-rm-remote/README.md")
    assert source.count("8000") == 1
    exec(source.replace("8000", "0"), {"__name__": "shown"})
    (server,) = servers
    monkeypatch.setattr(server.RequestHandlerClass, "log_message", lambda *_: None)
    with server, concurrent.futures.ThreadPoolExecutor(1) as pool:
        served = pool.submit(server.handle_request)
        body = json.dumps({"response": "It is 4.", "label": "4"}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/score", body, timeout=10) as reply:
            assert json.load(reply) == 1.0
        served.result()


def test_every_page_with_python_is_known() -> None:
    run_here = {"plugins/vime-rm-math/README.md", "plugins/vime-rm-remote/README.md", "CONTRIBUTING.md"}
    outside = {block.page for block in of_language("python") if not block.page.startswith("docs/")}
    assert outside == {*PYTHON_ELSEWHERE, *run_here}
    assert "raise SystemExit(pytest.main([__file__]))" in python_of(
        "CONTRIBUTING.md"
    )  # tests/test_workflow_matrix.py asks it of every file


@pytest.mark.parametrize("block", of_language("json", "toml", "yaml"), ids=lambda block: f"{block.page}-{block.language}")
def test_data_can_be_read(block: Block) -> None:
    if block.language == "json":
        assert all(isinstance(json.loads(line), dict) for line in block.lines)
    elif block.language == "toml":
        points = tomllib.loads(block.text)["project"]["entry-points"]["vime.plugins"]
        assert all(re.fullmatch(r"[a-z][a-z0-9-]*", name) for name in points)
    else:
        keys = set(yaml.safe_load(block.text))
        assert keys <= {*RunConfig.model_fields, "defaults", "datasets"}, keys


# Commands


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with what the pages say is there: functions, files of data, finished runs, and the cookbook installed."""
    here = tmp_path_factory.mktemp("reader")
    (here / "examples").symlink_to(ROOT / "examples")
    reward = "def score(args, sample):\n    if sample.label is None:\n        raise ValueError('no label')\n"
    reward += "    return float(sample.response.strip() == str(sample.label))\n"
    keep = "def keep(args, samples):\n    return len({s.get_reward_value(args) for s in samples if s.reward is not None}) > 1\n"
    for name in ("my_rewards.py", "my_reward.py"):
        (here / name).write_text(reward)
    (here / "my_filters.py").write_text(keep)
    (here / "my_package").mkdir()
    (here / "my_package" / "__init__.py").touch()
    (here / "my_package" / "filters.py").write_text(keep.replace("def keep", "def by_length"))
    (here / "agent.py").symlink_to(ROOT / "examples" / "http_agent" / "agent.py")
    (here / "calculator.py").symlink_to(ROOT / "examples" / "calculator" / "calculator.py")
    (here / "use.py").write_text("from calculator import Calculator\n\nboxes = Calculator()\n")
    for name in ("2026-11-29-quickstart", "2026-11-30-quickstart", "quickstart", "quickstart-a", "quickstart-b"):
        run = here / "runs" / name
        run.mkdir(parents=True)
        rows = [{"step": step, "time": 1.0 + step, "rollout/raw_reward": 0.1 * step} for step in range(3)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (run / "config.yaml").write_text("name: quickstart\nnum_rollout: 3\n")
    with pytest.MonkeyPatch.context() as patch:
        install_cookbook(here / "site", patch)
        yield here


def install_cookbook(site: Path, patch: pytest.MonkeyPatch) -> None:
    """The cookbook as an installed distribution, as far as its plugins need it."""
    source = ROOT / "examples" / "cookbook"
    points = tomllib.loads((source / "pyproject.toml").read_text())["project"]["entry-points"]["vime.plugins"]
    info = site / "vime_cookbook-0.1.0.dist-info"
    info.mkdir(parents=True)
    (site / "vime_cookbook").symlink_to(source / "src" / "vime_cookbook")
    (info / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: vime-cookbook\nVersion: 0.1.0\nSummary: Ten plugins\nLicense-Expression: Apache-2.0\n"
        "Requires-Python: >=3.11\nRequires-Dist: vime>=0.1,<0.2\n\nTen plugins.\n"
    )
    (info / "entry_points.txt").write_text("[vime.plugins]\n" + "".join(f"{name} = {target}\n" for name, target in points.items()))
    patch.syspath_prepend(str(site))
    patch.setenv("PYTHONPATH", os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])]))


@pytest.mark.parametrize(("page", "line"), command_lines(), ids=lambda part: part[:60])
def test_a_command_of_a_page_works(
    page: str, line: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.delenv("VIME_PLUGINS", raising=False)
    words = shlex.split(line)
    for start in (["uv", "run"], ["uv"]):
        words = words[len(start) :] if words[: len(start)] == start else words
    match words:
        case ["venv"] | ["source", ".venv/bin/activate"]:
            pass  # every test of commands in a new environment begins with these two
        case ["pip", "install", *names]:
            assert set(names) <= DISTRIBUTIONS
        case ["vime", "train" | "eval", *flags]:
            # What a run does with these flags up to its start: the configuration is resolved, the plugins are loaded and bound.
            assert main(["plugin", "explain", *flags]) == 0, capsys.readouterr().err
        case ["vime", *rest]:
            assert main(rest) == 0, capsys.readouterr().err
        case _:
            pytest.fail(f"{page}: nothing runs this line: {line}")


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
