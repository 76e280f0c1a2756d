r"""Compares the verdicts of this package with those of math-verify alone, over the table in tests/test_answers.py.

    python plugins/vime-rm-math/agreement.py            prints the table
    python plugins/vime-rm-math/agreement.py --write    and writes it to ANSWERS.md beside this file

math-verify alone is `verify(parse(label), parse(response))` with its defaults, the label between dollar signs and the
answer in a `\boxed{}`.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from vime_rm_math import grade

HERE = Path(__file__).resolve().parent
TABLE = HERE / "tests" / "test_answers.py"

WHY = {
    "integers, signs, separators": "A typographic minus, a thin space, a full-width digit and an escaped dollar sign are notation; "
    "`1,234` is a number with a thousands separator and not 1.234.",
    "decimals, powers of ten": "A finite decimal is a rational number: 0.3333333 is not 0.3333334, and 3.14159265358979 is not pi. "
    "`1.5e3` is scientific notation.",
    "fractions, mixed numbers, repeating decimals": "`2 1/2` is two and a half, `½` one half, `0.333...` one third.",
    "fractions": "Nothing equals a division by zero, a mixed number is not a product, and a rounded decimal is not the fraction.",
    "percentages": "50% is one half, and not 50.",
    "units: left out, the same, or another of the same kind": "A unit may be left out, and 50 mm are 5 cm.",
    "units": "A unit may be left out, but it may not be changed: 5 cm are not 5 m, and `5x` is not 5.",
    "names before the value, chains": "A name before the value says nothing else, but every member of a chain has to be equal: "
    "`x=4=5` is no answer. Two names are two things.",
    "numerals with a base": "100 in base 8 is 64, and a numeral with a digit that its base does not have is none.",
    "roots, powers, constants": "Plain-text notation (√2, sqrt(2), 2**10, i for the imaginary unit) is read; a function of something else "
    "is another number.",
    "algebra": "Both sides are the same polynomial, fraction or curve, or they are not. Capital letters are other variables.",
    "sets, lists, tuples, intervals, inequalities, matrices": "A list has no order and a tuple has; brackets say whether an end belongs to "
    "an interval; `±2` is two numbers; one number is not a list of two; a row is not a column.",
    "letters, words, clock times, ratios": "A letter stands for a choice, words are compared as words, and 12:30 is neither 12 nor 30.",
    "several accepted answers, worked solutions as labels": "One of several labels is enough, and a worked solution stands for its answer.",
    "more of all kinds": "As above: notation does not matter, order and brackets of tuples and intervals, names and units do.",
    "spellings met in other projects' tests of the same kind": "A thousands separator with a thin space is one number, with a space it is "
    "a list; what follows `\\approx` does not make a wrong value right; all members of a chain have to be equal. Numbers are compared as "
    "they are, however small, and functions where both are real.",
}
"""Why the verdict of the table is right, by the section of the table that a pair stands in."""


@dataclass(frozen=True)
class Pair:
    """One row of the table, with the comment that it stands under."""

    section: str
    answer: str
    label: Any
    equal: bool


def pairs() -> Iterator[Pair]:
    """The table in order. Sections are the comments in it."""
    spec = spec_from_file_location("test_answers", TABLE)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    source = TABLE.read_text(encoding="utf-8")
    for name, equal in (("EQUAL", True), ("UNEQUAL", False)):
        table: list[tuple[str, Any]] = getattr(module, name)
        body = source[source.index(f"\n{name}: list") :].partition("]  # fmt: skip")[0]
        parts = re.split(r"^    # (.*)$", body, flags=re.MULTILINE)[1:]
        rows = iter(table)
        for section, text in zip(parts[::2], parts[1::2], strict=True):
            for _ in eval(f"[{text}]"):  # the literals of this repository's own table
                answer, label = next(rows)
                yield Pair(section, answer, label, equal)
        assert next(rows, None) is None


def alone(answer: str, label: Any) -> str:
    """What math-verify alone says: "equal", "unequal", or the name of the exception that it raises."""
    from math_verify import parse, verify

    try:
        given = parse(rf"So the answer is \boxed{{{answer}}}.")
        labels = label if isinstance(label, list) else [label]
        found = [verify(parse(f"${one}$" if isinstance(one, str) and "boxed" not in one else str(one)), given) for one in labels]
    except Exception as error:  # noqa: BLE001 - whatever it raises is its verdict
        return type(error).__name__
    return "equal" if any(found) else "unequal"


def page() -> str:
    """The whole of ANSWERS.md."""
    logging.disable(logging.CRITICAL)
    counts: dict[str, list[int]] = {}
    differ: list[tuple[Pair, str]] = []
    wrong = 0
    for pair in pairs():
        ours = grade(rf"So the answer is \boxed{{{pair.answer}}}.", pair.label) == 1.0
        wrong += ours != pair.equal
        theirs = alone(pair.answer, pair.label)
        agrees = theirs == ("equal" if ours else "unequal")
        count = counts.setdefault(pair.section, [0, 0])
        count[0] += 1
        count[1] += agrees
        if not agrees:
            differ.append((pair, theirs))
    total, same = (sum(count[place] for count in counts.values()) for place in (0, 1))
    all_of_them = "all of them" if not wrong else f"all but {wrong} of them"
    lines = [
        "# Where the math rewards and math-verify alone differ",
        "",
        "Written by `python plugins/vime-rm-math/agreement.py --write`, from the table in `tests/test_answers.py`. Its verdicts",
        f"follow from the rules of mathematics and notation; this package gives {all_of_them}. math-verify alone, with its defaults,",
        f"gives {same} of {total} ({100 * same / total:.0f}%).",
        "",
        "| part of the table | pairs | math-verify alone agrees |",
        "|---|---|---|",
        *(f"| {section} | {count[0]} | {count[1]} |" for section, count in counts.items()),
        f"| all | {total} | {same} |",
    ]
    for section in counts:
        rows = [(pair, theirs) for pair, theirs in differ if pair.section == section]
        if rows:
            lines += ["", f"## {section[0].upper()}{section[1:]}", "", WHY[section], ""]
            lines += ["| answer | label | here | math-verify alone |", "|---|---|---|---|"]
            lines += [f"| {code(one.answer)} | {code(one.label)} | {'' if one.equal else 'un'}equal | {theirs} |" for one, theirs in rows]
    return "\n".join(lines) + "\n"


def code(value: Any) -> str:
    """A text as code in a cell of a table."""
    text = value if isinstance(value, str) else repr(value)
    text = text.replace("\n", " ").replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


if __name__ == "__main__":
    text = page()
    sys.stdout.write(text)
    if "--write" in sys.argv:
        (HERE / "ANSWERS.md").write_text(text, encoding="utf-8")
