"""A machine full of broken plugins: each is a row of the list, and each refuses a run that names it in one line."""

from __future__ import annotations

import json
import re

import pytest

from vime.cli import ready

NUM_GPUS = 0

HOOK = "from vime.api import hookimpl\n\n@hookimpl\ndef custom_rm(sample):\n    return 1.0\n"

BY_METADATA = {
    "gone": "its entry point names 'zoo_gone', and there is no module 'zoo_gone'",
    "gone-part": "there is no module 'zoo_gone_part.inner'",
    "no-target": "its entry point 'no-target =' is not of the form name = module or name = module:Class",
    "bad-target": "its entry point 'bad-target = zoo_bad_target:' is not of the form",
    "odd name!": "its name 'odd name!' has other characters than ASCII letters, digits",
    "latin": "its metadata cannot be read: 'utf-8' codec can't decode byte 0xe9",
    "no-metadata": "its metadata has no Name and no Version",
    "no-version": "its metadata has no Version",
    "bad-requires": "its metadata has the requirement 'vime >>> 3', which is none",
    "future": "needs vime >=99, and this is vime",
}
"""What can be told without importing anything, by plugin name."""
MODULES = {
    "syntax": ("def f(:\n", "importing zoo_syntax raised SyntaxError: invalid syntax"),
    "raises": ("raise RuntimeError('no licence')\n", "importing zoo_raises raised RuntimeError: no licence"),
    "raises-oddly": (
        "class Odd(Exception):\n    def __str__(self):\n        raise ValueError\nraise Odd\n",
        "importing zoo_raises_oddly raised Odd: (its message raised ValueError)",
    ),
    "exits": ("import sys\nprint('bye')\nsys.exit(0)\n", "importing zoo_exits raised SystemExit: 0"),
    "interrupts": ("raise KeyboardInterrupt\n", "importing it raised KeyboardInterrupt"),
    "needs-more": ("import zoo_not_installed\n", "raised ModuleNotFoundError: No module named 'zoo_not_installed'"),
    "no-hooks": ("", "module zoo_no_hooks implements no hook"),
    "misspelt": (HOOK.replace("custom_rm", "custom_rn"), "there is no hook 'custom_rn'"),
    "misspelt-param": (HOOK.replace("(sample)", "(smple)"), "custom_rm has the parameter 'smple', which this hook does not pass"),
    "twice": (HOOK + "\n@hookimpl(specname='custom_rm')\ndef other(sample):\n    return 2.0\n", "both implement custom_rm"),
    "wrapper": (HOOK.replace("@hookimpl", "@hookimpl(tryfirst=True)"), "custom_rm is marked @hookimpl(tryfirst=True)"),
    "unmarked": ("def custom_rm(sample):\n    return 1.0\n", "custom_rm has the name of a hook but no marker"),
    "no-attribute": (HOOK, "and zoo_no_attribute has no 'Clas'"),
    "function": (HOOK, "its entry point names 'zoo_function:custom_rm', a function"),
    "quits": ("import os\nprint('bye', flush=True)\nos._exit(0)\n", "importing it ended the process: exit code 0; it printed: bye"),
    "crashes": ("import ctypes\nctypes.string_at(0)\n", "importing it ended the process: signal SIG"),
}
"""Modules that are refused when they are imported, and how."""
TARGETS = {"no-attribute": "zoo_no_attribute:Clas", "function": "zoo_function:custom_rm"}
RUDE = {
    "prints": "import os, sys\nprint('rubbish')\nos.write(1, b'caf\\xe9\\n')\nsys.stdout.buffer.write(b'\\xff[]\\n')\n" + HOOK,
    "closes": "import os, sys\nsys.stdout.close()\nos.close(1)\n" + HOOK,
    "replaces": "import sys\nsys.stdout = None\n" + HOOK,
    "moves": "import os\nos.chdir('/')\n" + HOOK,
    "thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n" + HOOK,
    "child": "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n" + HOOK,
    "bad-version": HOOK,
}
"""Modules that work, and disturb their surroundings."""


@pytest.fixture(scope="module")
def crowd(shared_zoo):
    """One plugin that works, and one of every kind that does not."""
    add = shared_zoo.add
    add("fine")
    add("gone", None)
    add("gone-part", "", target="zoo_gone_part.inner")
    add("no-target", entry_points=b"[vime.plugins]\nno-target =\n")
    add("no-name", entry_points=b"[vime.plugins]\n= zoo_no_name\n")
    add("bad-target", target="zoo_bad_target:")
    add("odd-name", entry_points=b"[vime.plugins]\nodd name! = zoo_odd_name\n")
    add("latin", metadata=b"Metadata-Version: 2.1\nName: vime-zoo-latin\nVersion: 1.0\nSummary: caf\xe9\n")
    add("no-metadata", metadata=b"")
    add("no-version", metadata=b"Metadata-Version: 2.1\nName: vime-zoo-no-version\n")
    add("bad-requires", requires="vime >>> 3")
    add("future", requires="vime>=99")
    add("twin1", entry_points=b"[vime.plugins]\nTwin.Rm = zoo_twin1\n")
    add("twin2", entry_points=b"[vime.plugins]\ntwin_rm = zoo_twin2\n")
    add("self-twin", entry_points=b"[vime.plugins]\nself-twin = zoo_self_twin\nSelf_Twin = zoo_fine\n")
    for name, (source, _) in MODULES.items():
        add(name, source, target=TARGETS.get(name))
    for name, source in RUDE.items():
        metadata = b"Metadata-Version: 2.1\nName: vime-zoo-bad-version\nVersion: one\n" if name == "bad-version" else None
        add(name, source, metadata=metadata)
    add("hangs", "import time\nprint('waiting', flush=True)\ntime.sleep(1000)\n")
    return shared_zoo


def by_name(rows: dict[str, dict]) -> dict[str, dict]:
    return {row["name"]: row for row in rows.values()}


def test_the_list_has_a_row_with_its_fault_for_each(crowd):
    rows = by_name(crowd.rows())
    assert rows["fine"] == {
        "name": "fine",
        "distribution": "vime-zoo-fine",
        "version": "1.0",
        "target": "zoo_fine",
        "enabled": False,
        "status": "ok",
        "detail": None,
    }
    for name, fault in BY_METADATA.items():
        assert rows[name]["status"] == ("incompatible" if name == "future" else "broken") and fault in rows[name]["detail"], name
        assert "\n" not in rows[name]["detail"]
    assert "'= zoo_no_name' is not of the form" in rows[""]["detail"]
    assert rows["Twin.Rm"]["status"] == rows["twin_rm"]["status"] == "conflict"
    assert rows["Twin.Rm"]["detail"] == "the name is also claimed by vime-zoo-twin2 1.0"
    assert rows["self-twin"]["detail"] == "the name is also claimed by vime-zoo-self-twin 1.0"
    assert rows["no-metadata"]["version"] == rows["latin"]["version"] == "1.0"
    assert {rows[name]["status"] for name in (*MODULES, *RUDE, "hangs")} == {"ok"}


def test_probe_adds_what_importing_shows(crowd):
    rows = by_name(crowd.rows("--probe", "--import-timeout", "4"))
    for name, (_, fault) in MODULES.items():
        assert (rows[name]["status"], rows[name]["hooks"]) == ("broken", []) and fault in rows[name]["detail"], name
    for name in ("fine", *RUDE):
        assert (rows[name]["status"], rows[name]["hooks"], rows[name]["detail"]) == ("ok", ["custom_rm"], None), name
    assert rows["hangs"]["detail"] == "importing it takes longer than 4 s"
    assert rows["gone"]["hooks"] == [] and rows["future"]["status"] == "incompatible"


def refused(done, name: str, fault: str) -> None:
    """One line that names plugin, distribution and version, one hint, and nothing else."""
    assert done.returncode == 2 and done.stdout == "", (done.returncode, done.stdout, done.stderr)
    message, *rest = done.stderr.splitlines()
    assert re.match(rf"error: plugin '{re.escape(name)}' \(vime[-_]zoo[-_]\S+ 1\.0\): ", message) and fault in message
    assert len(rest) == 1 and rest[0].startswith("  hint: ")


def fault_of(name: str) -> str:
    return BY_METADATA[name] if name in BY_METADATA else MODULES[name][1]


@pytest.mark.parametrize("name", ["gone", "exits", "quits", "crashes"])
def test_the_whole_command(crowd, name):
    refused(crowd.vime("train", "--plugin", name), name, fault_of(name))


@pytest.mark.parametrize("name", [*BY_METADATA, *MODULES])
def test_a_run_that_names_it_is_refused(crowd, name):
    refused(crowd.vime_here("train", "--plugin", name), name, fault_of(name))


@pytest.mark.parametrize("command", [["show"], ["explain", "--plugin"]])
@pytest.mark.parametrize("name", [*BY_METADATA, "raises", "interrupts", "misspelt", "quits", "crashes"])
def test_show_and_explain_give_the_same_fault(crowd, command, name):
    refused(crowd.vime_here("plugin", *command, name), name, fault_of(name))


@pytest.mark.parametrize("command", [["show"], ["explain", "--plugin"]])
def test_an_import_that_takes_for_ever_has_a_limit(crowd, command):
    refused(crowd.vime_here("plugin", *command, "hangs", "--import-timeout", "1"), "hangs", "importing it takes longer than 1 s")


@pytest.mark.parametrize("command", [["show"], ["explain", "--plugin"]])
@pytest.mark.parametrize("name", RUDE)
def test_what_a_plugin_does_to_its_process_is_not_in_the_answer(crowd, command, name):
    done = crowd.vime_here("plugin", *command, name)
    assert done.returncode == 0 and "rubbish" not in done.stdout and f"{name} (" in " ".join(done.stdout.split())
    assert ("rubbish" in done.stderr) == (name == "prints")


@pytest.mark.parametrize("name", ["twin-rm", "TWIN_RM"])
def test_two_distributions_with_one_name(crowd, name):
    done = crowd.vime_here("train", "--plugin", name)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"error: plugin '{name}' is claimed by vime-zoo-twin1 1.0 (target zoo_twin1) and vime-zoo-twin2 1.0 (target zoo_twin2)",
        "  hint: uninstall one of them: pip uninstall vime-zoo-twin2",
    ]
    own = crowd.vime_here("plugin", "show", "self-twin")
    assert own.stderr.splitlines()[1] == "  hint: vime-zoo-self-twin declares the name twice: report it to its authors"


@pytest.mark.parametrize("text", [b"[vime.plugins]\nno-equals\n", b"[vime.plugins]\n# caf\xe9\nno-equals = zoo_no_equals\n"])
def test_entry_points_that_python_itself_cannot_read(zoo, text):
    """The list still works; a run would fail in vLLM, which lists its own entry points."""
    zoo.add("fine")
    zoo.add("no-equals", entry_points=text)
    listed = zoo.vime("plugin", "list", "--json")
    rows = {row["name"]: row for row in json.loads(listed.stdout)}
    assert rows["fine"]["status"] == "ok" and (b"=" in text or rows["no-equals"]["status"] == "broken")
    assert zoo.vime("plugin", "explain", "--plugin", "fine").returncode == 0


def test_a_run_beside_such_entry_points_is_refused(zoo, monkeypatch):
    zoo.add("fine")
    zoo.add("no-equals", entry_points=b"[vime.plugins]\nno-equals\n")
    monkeypatch.setattr(ready, "require_training_extra", lambda: None)
    done = zoo.vime_here("train", "--plugin", "fine")
    message, hint = done.stderr.splitlines()
    assert done.returncode == 2
    assert message.startswith("error: distribution vime-zoo-no-equals 1.0: Python cannot read its entry_points.txt (")
    assert hint == "  hint: pip uninstall vime-zoo-no-equals, or report it to its authors"


def test_the_traceback_of_the_other_process_comes_when_asked_for(crowd):
    done = crowd.vime_here("train", "--plugin", "raises", "--traceback")
    assert done.returncode == 2 and "zoo_raises.py" in done.stderr and "RuntimeError: no licence" in done.stderr


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
