"""`vime plugin check`: a line for each check, an exit code, and nothing of the plugin's on stdout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vime.cli.app import main

NUM_GPUS = 0

FILE = '''
from vime.api import hookimpl

def rollout_sample_filter(args, samples):
    """Removes nothing."""

def keyed(args, sample):
    return {args.reward_key: 1.0}

def other(args, samples):
    return None

def ends(args, samples):
    import os
    os._exit(3)

def crashes(args, samples):
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)

class EndsWhenBuilt:
    def __init__(self):
        import os
        os._exit(4)

    @hookimpl
    def rollout_sample_filter(self, samples):
        return None

class Noisy:
    def __init__(self):
        import os
        print("from python")
        os.system("echo from a child")
        raise OSError("no words")

    @hookimpl
    def rollout_sample_filter(self, samples):
        return None

class Fine:
    @hookimpl
    def rollout_sample_filter(self, samples):
        return None
'''


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "filters.py").write_text(FILE)
    return "./filters.py"


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "vime", "plugin", "check", *words], capture_output=True, text=True, check=False, cwd=cwd)


def test_a_function_that_passes(file, capsys) -> None:
    assert main(["plugin", "check", f"{file}:rollout_sample_filter"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].startswith("./filters.py:rollout_sample_filter")
    hooks = next(line for line in lines if "package-hooks" in line)
    assert hooks.startswith("✓ package-hooks")
    assert hooks.endswith("Every hook has a name, a marker and parameters that vime knows, or the arguments of its path flag.")
    assert " passed" in lines[-1] and "failed" not in lines[-1]
    assert err == ""


def test_a_plugin_that_fails_says_what_and_what_it_printed(file, tmp_path) -> None:
    done = run(f"{file}:Noisy", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    after = done.stdout.partition("✗ package-builds")[2].splitlines()[1:]
    assert after[0] == "    plugin './filters.py:Noisy': building Noisy raised OSError: no words"
    assert after[1].startswith("    hint: ")
    assert after[2] == "    it printed:"
    assert {"      from python", "      from a child"} <= set(after)


def test_json_is_alone_on_stdout_whatever_the_plugin_prints(file, tmp_path) -> None:
    done = run(f"{file}:Noisy", "--json", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr, report["passed"]) == (1, "", False)
    assert set(report) == {"target", "passed", "checks"}
    assert all(set(each) == {"id", "status", "message", "hint"} for each in report["checks"])
    assert {each["id"]: each["status"] for each in report["checks"]}["package-builds"] == "fail"


def test_nothing_is_left_in_the_directory(file, tmp_path) -> None:
    run(f"{file}:Fine", cwd=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"filters.py"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such-plugin"], "there is no plugin 'no-such-plugin'"),
        (["./gone.py:f"], "there is no file gone.py"),
        (["./filters.py:other"], "which hook is this function for?"),
        (["./filters.py:other", "--hook", "custom_rn"], "there is no hook 'custom_rn'"),
        (["./filters.py:Fine", "--only", "package-hoks"], "has no check 'package-hoks'"),
        (["./filters.py:Fine", "--timeout", "0"], "--timeout takes a number of seconds above 0"),
        (["./filters.py:Fine", "--arg", "reward-kee=a"], "there is no flag 'reward-kee'"),
        (["./filters.py:Fine", "--arg", "group-rm=perhaps"], "--arg group-rm: expected true or false, got 'perhaps'"),
        (["./filters.py:Fine", "--set", "limit"], "--set: expected key=value, got 'limit'"),
        (["./filters.py:rollout_sample_filter", "--set", "limit=3"], "a function has no settings"),
        (["./filters.py:Fine", "--cases", "gone.jsonl"], "there is no such file"),
    ],
)
def test_what_cannot_run_ends_with_2(file, words, message, capsys) -> None:
    assert main(["plugin", "check", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err


@pytest.mark.parametrize(("name", "how"), [("ends", "exit code 3"), ("crashes", "signal SIGKILL")])
def test_a_plugin_that_ends_the_process_fails_the_check_that_was_running(file, name, how, capsys) -> None:
    assert main(["plugin", "check", f"{file}:{name}", "--hook", "rollout_sample_filter", "--json"]) == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert [(each["id"], each["message"]) for each in checks if each["status"] == "fail"] == [
        ("sample-filter-runs", f"ended the process: {how}")
    ]
    later = [each["message"] for each in checks if each["id"].startswith("sample-filter-")][1:]
    assert later and set(later) == {"not run, because the plugin ended the process in sample-filter-runs"}


def test_a_plugin_that_ends_the_process_while_it_is_built_is_named(file, capsys) -> None:
    assert main(["plugin", "check", f"{file}:EndsWhenBuilt"]) == 2
    assert f"{file}:EndsWhenBuilt: loading it ended the process: exit code 4" in capsys.readouterr().err


def test_one_check_alone(file, capsys) -> None:
    assert main(["plugin", "check", f"{file}:Fine", "--only", "package-hooks", "--json"]) == 0
    assert [each["id"] for each in json.loads(capsys.readouterr().out)["checks"]] == ["package-hooks"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: expected an object, got []"),
        ('{"prompt": "p", "response": "r", "label": "l"}', "line 2: the row has no reward"),
        ('{"prompt": "p", "response": "r", "label": "l", "reward": 1, "rewrd": 2}', "line 2: the row has the unknown key 'rewrd'"),
    ],
)
def test_a_wrong_row_of_cases_is_named(file, row, message, capsys) -> None:
    Path("cases.jsonl").write_text('{"prompt": "p", "response": "r", "label": "l", "reward": 1.0}\n' + row + "\n")
    assert main(["plugin", "check", f"{file}:keyed", "--hook", "custom_rm", "--cases", "cases.jsonl"]) == 2
    assert message in capsys.readouterr().err


def test_settings_and_flags_reach_the_checks(file, tmp_path, capsys) -> None:
    (tmp_path / "settled.py").write_text(
        """
from vime.api import Settings, hookimpl

class Plugin:
    class Settings(Settings):
        limit: int
        '''A limit.'''

    @hookimpl
    def rollout_sample_filter(self, args, samples):
        return None
"""
    )
    only = ["--only", "package-settings", "--json"]
    assert main(["plugin", "check", "./settled.py:Plugin", *only]) == 1
    assert "the setting 'limit' is required" in capsys.readouterr().out
    assert main(["plugin", "check", "./settled.py:Plugin", "--set", "limit=4", *only]) == 0


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
