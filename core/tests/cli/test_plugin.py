"""`vime plugin list` and `vime plugin show`, with a plugin that works."""

from __future__ import annotations

import contextlib
import json

import pytest

from vime.plugins.discovery import discover
from vime.plugins.probe import probe_all

NUM_GPUS = 0

FINE = '''
"""Scores by length."""
from typing import Annotated, Literal
from pydantic import Field
from vime.api import Settings, hookimpl

class Length:
    """Scores by length.

        Indented."""

    class Settings(Settings):
        limit: int = Field(default=5, ge=1, lt=100)
        """Answers above this length score nothing."""
        url: str
        """Where to ask."""
        how: Literal["soft", "hard"] = "soft"
        words: list[Annotated[str, Field(min_length=2)]] = []
        weights: dict[str, float] | None = None

    @hookimpl
    def custom_rm(self, sample, args):
        """1.0 for a short answer.

        Second paragraph."""
        return 1.0

    @hookimpl
    def shape_reward(self, sample):
        return None

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass
'''


@pytest.fixture(scope="module")
def shop(shared_zoo):
    shared_zoo.add("ruler", FINE, target="zoo_ruler:Length", requires="vime>=0.1")
    shared_zoo.add("plain")
    shared_zoo.add("future", requires="vime>=99")
    shared_zoo.add("do.t", FINE, target="zoo_ruler:Length")
    return shared_zoo


def enabled(shop, *words: str, **env: str) -> set[str]:
    return {row["name"] for row in shop.rows(*words, **env).values() if row["enabled"]}


def test_the_list_knows_what_a_run_enables(shop):
    file = shop.site.parent / "run.yaml"
    file.write_text("plugin: [plain, future]\n")
    by_file = ["--config", str(file)]
    assert enabled(shop) == set()
    assert enabled(shop, VIME_PLUGINS="Ruler, plain") == {"ruler", "plain"}
    assert enabled(shop, *by_file) == {"plain", "future"}
    assert enabled(shop, *by_file, VIME_PLUGINS="ruler") == {"ruler"}
    assert enabled(shop, *by_file, "--plugin", "RULER", "do-t", VIME_PLUGINS="plain") == {"ruler", "do.t"}
    assert enabled(shop, *by_file, "--no-plugin", "Plain") == {"future"}


def test_an_enabled_plugin_that_is_not_installed_is_said(shop):
    done = shop.vime_here("plugin", "list", VIME_PLUGINS="rulr")
    assert done.returncode == 0 and "rulr" not in done.stdout
    assert done.stderr == "warning: plugin 'rulr' is enabled and not installed, so a run would be refused: did you mean --plugin ruler?\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--no-plugin", "nosuch"], "error: --no-plugin nosuch: there is no plugin of this name"),
        (["--prob"], "error: unknown flag --prob"),
        (["--import-timeot", "3"], "error: unknown flag --import-timeot"),
        (["--probe", "--import-timeout", "soon"], "error: --import-timeout: expected a number of seconds above 0, got 'soon'"),
        (["--config", "none.yaml"], "error: --config none.yaml: No such file or directory"),
    ],
)
def test_refusals_of_the_list(shop, words, message):
    done = shop.vime_here("plugin", "list", *words)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.splitlines()[0] == message
    if "unknown flag" in message:
        assert "did you mean --probe?" in done.stderr or "did you mean --import-timeout?" in done.stderr


def test_probe_does_not_depend_on_the_current_directory(shop, tmp_path):
    for name in ("random", "json", "types"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('hidden')\n")
    with contextlib.chdir(tmp_path), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", shop.pythonpath)
        (outcome,) = probe_all([entry for entry in discover([str(shop.site)]).entries if entry.name == "plain"]).values()
    assert outcome.hooks == ("custom_rm",) and outcome.error is None


def test_the_list_as_text(shop):
    done = shop.vime_here("plugin", "list", "--plugin", "ruler")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["name", "distribution", "enabled", "status", "detail"]
    (line,) = [line for line in lines if line.startswith("future")]
    assert "vime-zoo-future 1.0" in line and "incompatible" in line and "needs vime >=99" in line
    (line,) = [line for line in lines if line.startswith("ruler")]
    assert line.split() == ["ruler", "vime-zoo-ruler", "1.0", "yes", "ok"]
    assert "\x1b" not in done.stdout


def test_show(shop):
    done = shop.vime_here("plugin", "show", "RULER")
    assert done.returncode == 0, done.stderr
    for part in (
        "ruler  (vime-zoo-ruler 1.0)\n  Scores by length.\n\n  Indented.\n",
        "enable    vime train --plugin ruler",
        "target    zoo_ruler:Length",
        f"found in  {shop.site}",
        "requires  vime >=0.1",
        "state     in every checkpoint (state_dict, load_state_dict)",
        "custom_rm(sample, args)\n      1.0 for a short answer.\n      several may be enabled: the rm_type of a sample",
        "shape_reward(sample)\n      all enabled plugins are called, in the user's order",
        "limit: int  (at least 1, below 100, default 5)    --set ruler.limit=...\n      Answers above this length score nothing.",
        "url: str  (required)",
        'how: Literal["soft", "hard"]  (default "soft")',
        "words: list[str]  (each at least 2 long, default [])",
        "weights: dict[str, float] | None  (default null)",
    ):
        assert part in done.stdout, (part, done.stdout)
    assert "--set do-t.limit=..." in shop.vime_here("plugin", "show", "do.t").stdout


def test_show_of_a_module_without_settings_and_state(shop):
    shown = shop.vime_here("plugin", "show", "plain").stdout
    assert "settings: none" in shown and "state     none" in shown and "requires  vime (any version)" in shown


def test_show_as_json(shop):
    shown = json.loads(shop.vime_here("plugin", "show", "ruler", "--json").stdout)
    assert shown["stateful"] is True
    hook = shown["hooks"][0]
    assert (hook["name"], hook["params"], hook["kind"]) == ("custom_rm", ["sample", "args"], "one")
    assert hook["doc"] == "1.0 for a short answer.\n\nSecond paragraph."
    assert shown["settings"][0] == {
        "name": "limit",
        "type": "int",
        "constraints": ["at least 1", "below 100"],
        "required": False,
        "default": 5,
        "doc": "Answers above this length score nothing.",
    }


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["rulr"], "did you mean --plugin ruler?"),
        (["vime-zoo-ruler"], "vime-zoo-ruler is a distribution; --plugin takes the names of its plugins: ruler"),
        (["future"], "pip install --upgrade vime-zoo-future vime"),
        (["ruler", "--import-timeout", "0"], None),
    ],
)
def test_refusals_of_show(shop, words, hint):
    done = shop.vime_here("plugin", "show", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.removeprefix("  hint: ") for line in done.stderr.splitlines()[1:]] == ([hint] if hint else [])


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
