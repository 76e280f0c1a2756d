"""Packages with one mistake each: in their metadata, in what importing them does, in settings, construction and state."""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vime.plugins.discovery import discover
from vime.testing.checks import packaging
from vime.testing.report import Report
from zoo.base import Wrong

PACKAGE_CHECKS = [each.id for each in packaging.CHECKS]

METADATA = {
    "Summary": "Removes nothing",
    "Requires-Python": ">=3.11",
    "License-Expression": "Apache-2.0",
    "Requires-Dist": "vime>=0.1,<0.2",
}

GOOD = """
from vime.api import hookimpl

@hookimpl
def rollout_sample_filter(samples):
    return None
"""

WITH_CLASS = """
from vime.api import Settings, hookimpl

class Plugin:
    class Settings(Settings):
        limit: int = 5
        '''Answers above this length are removed.'''

{body}
    @hookimpl
    def rollout_sample_filter(self, samples):
        return None
"""


def class_with(body: str, *, above: str = "") -> str:
    """A good plugin class with this in its body, and this above it."""
    return textwrap.dedent(above) + WITH_CLASS.format(body=textwrap.indent(textwrap.dedent(body), "    "))


@dataclass(frozen=True)
class WrongPackage(Wrong):
    """A distribution as pip would leave it: its target is the name of its plugin."""

    source: str = GOOD
    entry: str = "{module}"
    """The target of its entry point."""
    changes: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    """Headers of its metadata that are not those of a good package; None leaves one out."""
    copies: int = 1
    """How many distributions claim the name."""

    @property
    def module(self) -> str:
        return "zoo_" + str(self.target).replace("-", "_").removeprefix("zoo_")

    @property
    def label(self) -> str:
        return f"plugin {self.target!r} (vime-{self.target} 1.0)"

    def install(self, site: Path) -> None:
        """Write the distribution into `site`."""
        for number in range(self.copies):
            distribution = f"vime-{self.target}" + (f"-{number + 1}" if number else "")
            info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
            info.mkdir()
            headers = {"Metadata-Version": "2.4", "Name": distribution, "Version": "1.0", **METADATA, **self.changes}
            text = "".join(f"{name}: {value}\n" for name, value in headers.items() if value is not None)
            (info / "METADATA").write_text(text + "\nA package of the zoo.\n")
            (info / "entry_points.txt").write_text(f"[vime.plugins]\n{self.target} = {self.entry.format(module=self.module)}\n")
        (site / f"{self.module}.py").write_text(self.source)

    def report(self, **options: Any) -> Report:
        """What the kit says; the package has to be installed, and its site on sys.path."""
        return super().report(catalog=discover(), only=PACKAGE_CHECKS, **options)

    def refused_with(self) -> str:
        """The exact message, with the names of this package in it."""
        return self.message.format(label=self.label, module=self.module)


METADATA_ZOO = (
    WrongPackage(
        "two distributions claim its name",
        "zoo-clash",
        "package-name",
        "plugin 'zoo-clash' is claimed by vime-zoo-clash 1.0 (target zoo_clash) and vime-zoo-clash-2 1.0 (target zoo_clash)",
        core="is claimed by",
        copies=2,
    ),
    WrongPackage(
        "the module is not in the wheel",
        "zoo-gone",
        "package-entry-point",
        "{label}: its entry point names 'zoo_moved.filter', and there is no module 'zoo_moved'",
        core="there is no module 'zoo_moved'",
        entry="zoo_moved.filter",
    ),
    WrongPackage(
        "the class has another name",
        "zoo-renamed",
        "package-entry-point",
        "{label}: its entry point names 'zoo_renamed:Plugn', and zoo_renamed has no 'Plugn'",
        core="has no 'Plugn'",
        source=class_with(""),
        entry="{module}:Plugn",
    ),
    WrongPackage(
        "no licence and no summary",
        "zoo-anonymous",
        "package-metadata",
        "vime-zoo-anonymous 1.0: its metadata has no Summary and no licence",
        changes={"Summary": None, "License-Expression": None},
    ),
    WrongPackage(
        "vime is not among its requirements",
        "zoo-alone",
        "package-requires",
        "vime-zoo-alone 1.0 does not require vime",
        changes={"Requires-Dist": "numpy>=1"},
    ),
    WrongPackage(
        "any later vime will do",
        "zoo-unbounded",
        "package-requires",
        "vime-zoo-unbounded 1.0 requires vime>=0.1 without an upper bound",
        changes={"Requires-Dist": "vime>=0.1"},
    ),
    WrongPackage(
        "made for another vime",
        "zoo-future",
        "package-requires",
        "{label}: needs vime <10,>=9, and this is vime 0.1.0",
        core="needs vime <10,>=9",
        changes={"Requires-Dist": "vime>=9,<10"},
    ),
)

IMPORT_ZOO = (
    WrongPackage(
        "importing it fails",
        "zoo-raises",
        "package-import",
        "{label}: importing zoo_raises raised FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/words.txt'",
        core="raised FileNotFoundError",
        source="WORDS = open('/nowhere/words.txt').read()\n" + GOOD,
    ),
    WrongPackage(
        "importing it runs a main function that exits",
        "zoo-exits",
        "package-import",
        "{label}: importing zoo_exits raised SystemExit: 2",
        core="raised SystemExit",
        source=GOOD + "\nraise SystemExit(2)\n",
    ),
    WrongPackage(
        "importing it ends the process",
        "zoo-ends",
        "package-import",
        "{label}: importing it ended the process: exit code 3",
        source=GOOD + "\nimport os\nos._exit(3)\n",
    ),
    WrongPackage(
        "importing it crashes the interpreter",
        "zoo-crashes",
        "package-import",
        "{label}: importing it ended the process: signal SIGSEGV",
        source=GOOD + "\nimport os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
    ),
    WrongPackage(
        "a heavy library at the top of the module",
        "zoo-heavy",
        "package-import-light",
        "importing it loads torch in zoo_heavy.py:2",
        source="try:\n    import torch\nexcept ImportError:\n    torch = None\n" + GOOD,
        also=("package-import-fast",) if importlib.util.find_spec("torch") else (),
    ),
    WrongPackage(
        "a table is computed at import",
        "zoo-slow",
        "package-import-fast",
        "importing it takes 0.6 s of processor time, more than 0.3 s",
        source="import time\nEND = time.process_time() + 0.57\nwhile time.process_time() < END:\n    pass\n" + GOOD,
    ),
    WrongPackage(
        "it waits for a server at import",
        "zoo-waits",
        "package-import-fast",
        "importing it sleeps or waits for 0.6 s, more than 0.3 s",
        source="import time\ntime.sleep(0.61)\n" + GOOD,
    ),
    WrongPackage(
        "a print that was left behind",
        "zoo-chatty",
        "package-import-quiet",
        "importing it prints 'loaded zoo!'",
        source=GOOD + "\nprint('loaded zoo!')\n",
    ),
    WrongPackage(
        "it sets the environment of the whole run",
        "zoo-environment",
        "package-import-harmless",
        "importing it sets the environment variable TOKENIZERS_PARALLELISM",
        source="import os\nos.environ['TOKENIZERS_PARALLELISM'] = 'zoo'\n" + GOOD,
    ),
    WrongPackage(
        "it configures the log of the whole run",
        "zoo-logging",
        "package-import-harmless",
        "importing it configures the root logger",
        source="import logging\nlogging.basicConfig(level=logging.DEBUG)\n" + GOOD,
    ),
    WrongPackage(
        "it seeds the random numbers of the whole run",
        "zoo-seed",
        "package-import-harmless",
        "importing it seeds the random numbers of the module `random`",
        source="import random\nrandom.seed(0)\n" + GOOD,
    ),
    WrongPackage(
        "it silences the warnings of the whole run",
        "zoo-silence",
        "package-import-harmless",
        "importing it silences all warnings",
        source="import warnings\nwarnings.filterwarnings('ignore')\n" + GOOD,
    ),
)

CLASS_ZOO = (
    WrongPackage(
        "the marker was forgotten",
        "zoo-unmarked",
        "package-hooks",
        "{label}: rollout_sample_filter has the name of a hook but no marker, so it would never be called",
        core="no marker",
        source="def rollout_sample_filter(samples):\n    return None\n",
    ),
    WrongPackage(
        "a parameter that no hook passes",
        "zoo-parameter",
        "package-hooks",
        "{label}: rollout_sample_filter has the parameter 'groups', which this hook does not pass",
        core="has the parameter 'groups'",
        source=GOOD.replace("(samples)", "(args, groups)"),
    ),
    WrongPackage(
        "a setting without a word about it",
        "zoo-undocumented",
        "package-settings",
        "the settings limit have no description",
        source=class_with("").replace("'''Answers above this length are removed.'''", ""),
        entry="{module}:Plugin",
    ),
    WrongPackage(
        "a default of the wrong type",
        "zoo-default",
        "package-settings",
        "{label}: setting 'limit': Input should be a valid integer, unable to parse string as an integer, got 'five'",
        core="setting 'limit'",
        source=class_with("").replace("= 5", "= 'five'"),
        entry="{module}:Plugin",
    ),
    WrongPackage(
        "a setting that is another one in a worker process",
        "zoo-json",
        "package-settings",
        "the settings limit do not come back from JSON",
        source=class_with("", above="from typing import Any\n").replace("limit: int = 5", "limit: Any = (1, 2)"),
        entry="{module}:Plugin",
    ),
    WrongPackage(
        "the constructor needs a file that only the author has",
        "zoo-home",
        "package-builds",
        "{label}: building Plugin raised FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/words.txt'",
        core="building Plugin raised FileNotFoundError",
        source=class_with("def __init__(self):\n    self.words = open('/nowhere/words.txt').read()\n"),
        entry="{module}:Plugin",
    ),
    WrongPackage(
        "a default that is the time of day",
        "zoo-clock",
        "package-reload",
        "the default of the setting started differs from load to load",
        source=class_with("", above="import time\nfrom pydantic import Field\n").replace(
            "limit: int = 5", "started: float = Field(default_factory=time.time)"
        ),
        entry="{module}:Plugin",
    ),
    WrongPackage(
        "settings are kept in the class",
        "zoo-shared",
        "package-instances",
        "building it a second time changes the class attribute limit of the first",
        source=class_with("limit = 5\n\ndef __init__(self, settings):\n    Plugin.limit = settings.limit\n"),
        entry="{module}:Plugin",
    ),
    WrongPackage(
        "settings are kept in a global",
        "zoo-global",
        "package-instances",
        "building it a second time changes the global LIMIT of the first",
        source=class_with("def __init__(self, settings):\n    global LIMIT\n    LIMIT = settings.limit\n", above="LIMIT = 5\n"),
        entry="{module}:Plugin",
    ),
    WrongPackage(
        "the state is written and never read",
        "zoo-state",
        "package-state",
        "load_state_dict({{'draws': 1}}) has no effect: state_dict() still gives {{'draws': 0}}",
        source=class_with(
            """
            draws = 0

            def state_dict(self):
                return {'draws': self.draws}

            def load_state_dict(self, state):
                self.drawn = state['draws']
            """
        ),
        entry="{module}:Plugin",
    ),
    WrongPackage(
        "the state is not JSON",
        "zoo-set",
        "package-state",
        "{label}: its state_dict() is not plain JSON data: Object of type set is not JSON serializable",
        core="is not plain JSON data",
        source=class_with("def state_dict(self):\n    return {'seen': {1}}\n\ndef load_state_dict(self, state):\n    pass\n"),
        entry="{module}:Plugin",
    ),
)

PACKAGING_ZOO: tuple[WrongPackage, ...] = (*METADATA_ZOO, *IMPORT_ZOO, *CLASS_ZOO)
