"""The plugin `math`: labels, event loops, threads, processes, light import."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction

import pytest
from pydantic import ValidationError

from vime.api import Sample
from vime_rm_math import Grader, grade
from vime_rm_math.grader import decide
from vime_rm_math.math import Math

NUM_GPUS = 0


def thousand_answers() -> list[tuple[str, object]]:
    """1,000 answers, right and wrong in turns, 100 of which need a worker."""
    answers: list[tuple[str, object]] = []
    for i in range(1000):
        wrong = i // 5 % 2
        kinds = [
            (rf"\boxed{{{i + wrong}}}", i),
            (f"The answer is {i}.{wrong}", f"{i}.0"),
            (rf"\boxed{{\frac{{{i}}}{{7}}}}", f"{2 * i + wrong}/14"),
            (f"#### {i + wrong:,}", str(i)),
            (rf"\boxed{{{i + 2 + wrong}\sqrt{{8}}}}", rf"{2 * (i + 2)}\sqrt{{2}}")
            if i % 20 in (4, 19)
            else (rf"\boxed{{{50 + wrong}\%}}", 0.5),
        ]
        answers.append(kinds[i % 5])
    return answers


def verdicts(answers: list[tuple[str, object]]) -> list[float]:
    return [grade(response, label) for response, label in answers]


@pytest.mark.timeout(600)
def test_verdicts_are_the_same_from_threads_and_processes() -> None:
    answers = thousand_answers()
    expected = [1.0 - i // 5 % 2 for i in range(1000)]
    assert sum(decide(*pair)[0] is None for pair in answers) == 100
    assert verdicts(answers) == expected
    with ThreadPoolExecutor(8) as threads:
        parts = list(threads.map(verdicts, [answers[i::8] for i in range(8)]))
    assert all(part == expected[i::8] for i, part in enumerate(parts))
    with multiprocessing.get_context("spawn").Pool(4) as processes:  # whose workers are daemonic
        assert processes.starmap(grade, answers, chunksize=125) == expected


FORKING = r"""
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from vime_rm_math import grade
answers = [(r"\boxed{4}", "4"), (r"\boxed{\sqrt{16}}", "4"), (r"\boxed{x+1}", "1+x"), (r"\boxed{\sqrt{8}}", "2"), ("", "1")]
expected = [grade(*pair) for pair in answers]
with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as processes:
    assert list(processes.map(grade, *zip(*answers))) == expected == [1.0, 1.0, 1.0, 0.0, 0.0], expected
"""


def test_verdicts_are_the_same_from_forked_processes() -> None:
    # In a process of its own: this one may hold the threads of other tests, which a fork does not survive.
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKING], check=True, timeout=100)


def test_case_b1_a_thread_that_is_not_the_main_one() -> None:
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.extend([grade(r"\boxed{4}", "4"), grade(r"\boxed{\sqrt{16}}", "4")]))
    thread.start()
    thread.join()
    assert found == [1.0, 1.0]


def test_custom_rm_on_an_event_loop() -> None:
    plugin = Math(Math.Settings())
    assert inspect.iscoroutinefunction(plugin.custom_rm)
    samples = [Sample(index=i, response=rf"\boxed{{{i}}}", label=str(i % 3)) for i in range(6)]
    samples += [Sample(index=6, response=r"\boxed{\sqrt{8}}", label=r"2\sqrt{2}"), Sample(index=7, response="", label="1")]

    async def run() -> list[float]:
        return await asyncio.gather(*(plugin.custom_rm(sample) for sample in samples))

    for _ in range(2):  # from a second loop too
        assert asyncio.run(run()) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    plugin.grader.pool.close()


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (None, r"sample 12 has no label.*--label-key"),
        ("", "sample 12 has the label '', which holds no answer"),
        ("  ", "sample 12 has the label '  ', which holds no answer"),
        ("$$", "sample 12 has the label .* holds no answer"),
        (r"\boxed{}", r"sample 12 has the label .* holds no answer"),
        ([], "sample 12 has an empty list as its label"),
        (["4", None], "sample 12 has no label"),
        (float("nan"), "sample 12 has the label nan, which is not a finite number"),
        (float("inf"), "not a finite number"),
        ({"answer": 4}, "sample 12 has a label of type dict"),
        (b"4", "sample 12 has a label of type bytes"),
    ],
)
def test_a_label_that_is_none_is_an_error(label: object, message: str) -> None:
    plugin = Math(Math.Settings())
    with pytest.raises(ValueError, match=message):
        asyncio.run(plugin.custom_rm(Sample(index=12, response=r"\boxed{4}", label=label)))


@pytest.mark.parametrize(
    "label", ["4", 4, 4.0, Decimal("4.00"), Fraction(8, 2), ["5", 4], ("4",), "2 + 2 = 4\n#### 4", r"hence \boxed{4}", "$4$"]
)
def test_labels_of_all_types(label: object) -> None:
    assert grade(r"\boxed{4}", label) == 1.0
    assert grade(r"\boxed{7}", label) == 0.0


def test_labels_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    for label in (numpy.int64(4), numpy.float32(4.0), numpy.array([3, 4]), numpy.array(["4", "x"])):
        assert grade(r"\boxed{4}", label) == 1.0
        assert grade(r"\boxed{7}", label) == 0.0


def test_floats_are_what_they_print() -> None:
    assert grade(r"\boxed{0.1}", 0.1) == 1.0
    assert grade(r"\boxed{0.3}", 0.1 + 0.2) == 0.0
    assert grade(r"\boxed{10^{22}}", 1e22) == 1.0


@pytest.mark.parametrize("settings", [{"timeout": 0}, {"workers": 0}, {"time": 1}])
def test_settings_are_checked(settings: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Math.Settings(**settings)
    pool = Math(Math.Settings(timeout=5, workers=3)).grader.pool
    assert (pool.processor_timeout, pool.workers) == (5, 3)


def test_plain_answers_start_no_worker() -> None:
    grader = Grader()
    assert grader.grade(r"\boxed{1,234}", "1234") == 1.0
    assert grader.grade("no idea", "1234") == 0.0
    assert grader.pool._running is None


def test_the_import_is_light() -> None:
    source = "import sys, vime_rm_math; print([m for m in ('torch', 'numpy', 'sympy', 'math_verify', 'pebble') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout == "[]\n"
    source = source.replace("vime_rm_math;", "vime_rm_math.math;")
    assert subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("how", ["stdin", "-c"])
def test_scripts_without_a_main_guard(how: str) -> None:
    source = "from vime_rm_math import grade\nprint(grade(r'\\boxed{\\sqrt{8}}', r'2\\sqrt{2}'))\n"
    command = ["-"] if how == "stdin" else ["-c", source]
    done = subprocess.run([sys.executable, *command], check=False, input=source, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1.0\n", "")


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
