"""What libraries say goes into the files of a run, and what matters of it to the console too."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap

import pytest

from vime.redact import Redactor
from vime.runtime.chatter import LIBRARIES, Chatter
from vime.runtime.third_party import are_loud

NUM_GPUS = 0


@pytest.fixture
def chatter(tmp_path, monkeypatch):
    """A chatter over loggers of its own, and what it warned of."""
    monkeypatch.setenv("VLLM_CONFIGURE_LOGGING", "1")
    monkeypatch.setattr("vime.runtime.chatter.LIBRARIES", {"vllm": ("zoo-vllm",)})
    warned = []
    made = Chatter(tmp_path / "logs", warned.append, Redactor(["top-secret-1"]))
    yield made, warned, logging.getLogger("zoo-vllm")
    made.close()


def test_a_file_for_each_library_and_the_console_for_what_matters(chatter, tmp_path):
    made, warned, logger = chatter
    child = logger.getChild("worker")
    logger.setLevel(logging.INFO)
    child.info("loading weights")
    child.warning("a word about nothing")
    child.warning("Sequence is preempted, top-secret-1\nsecond line")
    child.error("it broke")
    made.close()
    text = (tmp_path / "logs" / "vllm.log").read_text()
    assert "INFO zoo-vllm.worker: loading weights" in text
    assert "a word about nothing" in text
    assert "preempted, ***\nsecond line" in text
    assert warned == ["vllm: Sequence is preempted, top-secret-1 (all of it in logs/vllm.log)", "vllm: it broke"]  # the console hides


def test_a_librarys_own_handler_of_the_terminal_goes(chatter, capsys):
    made, _, logger = chatter
    logger.addHandler(logging.StreamHandler(sys.stderr))
    with made.captured():
        pass
    made._adopt()
    logger.error("to the file and the console")
    assert capsys.readouterr().err == ""


def test_close_leaves_loggers_as_they_were_and_no_empty_file(chatter, tmp_path):
    made, _, logger = chatter
    logger.setLevel(logging.INFO)
    made.close()
    assert [type(handler).__module__ for handler in logger.handlers if "vime" in type(handler).__module__] == []
    assert not (tmp_path / "logs").exists()


def test_verbose_touches_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("VIME_VERBOSE", raising=False)
    before = {name: list(logging.getLogger(name).handlers) for names in LIBRARIES.values() for name in names}
    loud = Chatter(tmp_path / "logs", lambda text: None, Redactor(), loud=True)
    with loud.captured():
        assert {name: list(logging.getLogger(name).handlers) for names in LIBRARIES.values() for name in names} == before
    loud.close()
    assert list(tmp_path.iterdir()) == []
    assert not are_loud()
    monkeypatch.setenv("VIME_VERBOSE", "1")
    assert are_loud()


@pytest.mark.parametrize(("verbose", "level"), [(False, "ERROR"), (True, None)])
def test_vllm_speaks_in_a_verbose_run_only(verbose, level):
    """Its level is in the environment, where both what quietens libraries and what prepares vLLM write."""
    code = f"""
        import os
        from vime.config.run_config import RunConfig
        from vime.engine.vllm_options import prepare_environment
        from vime.runtime.third_party import quiet_third_parties

        quiet_third_parties(RunConfig(verbose={verbose}))
        prepare_environment()
        print(os.environ.get("VLLM_LOGGING_LEVEL"), os.environ["VLLM_LOGGING_STREAM"])
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("VLLM_", "VIME_"))}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == f"{level} ext://sys.stderr\n"


ALONE = """
    import os, subprocess, sys
    from pathlib import Path
    from vime.redact import Redactor
    from vime.runtime.chatter import Chatter
    from vime.track.console import Console

    console = Console()
    chatter = Chatter(Path(sys.argv[1]), console.warn, Redactor())
    with console.phase("starting"), chatter.captured():
        os.write(1, b"native out\\n")
        os.write(2, b"native err\\n")
        subprocess.run(["sh", "-c", "echo a child >&2"])
        print("python out")
        print("python err", file=sys.stderr)
        console.info("the console")
        if len(sys.argv) > 2:
            os.abort()
    os.write(1, b"later out\\n")
    os.write(2, b"later err\\n")
    print("python out again")
    chatter.close()
"""


def _alone(tmp_path, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(ALONE), str(tmp_path / "logs"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_what_is_written_to_the_descriptors_goes_to_a_file_and_the_console_stays(tmp_path):
    done = _alone(tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "logs" / "native.log").read_text().splitlines() == ["native out", "native err", "a child"]
    assert done.stdout.splitlines() == ["python out", "later out", "python out again"]
    lines = done.stderr.splitlines()
    assert lines[:3] == ["starting ...", "python err", "the console"]
    assert lines[3].startswith("starting: ")
    assert lines[4:] == ["later err"]


def test_a_crash_still_shows_where_it_was(tmp_path):
    done = _alone(tmp_path, "abort")
    assert done.returncode < 0
    assert "Fatal Python error: Aborted" in done.stderr


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
