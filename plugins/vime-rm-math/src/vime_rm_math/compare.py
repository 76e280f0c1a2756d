"""Compare two answers: by text, by exact arithmetic, by structure, and with mathematics only at the leaves that are left.

Everything here is three-valued: True, False, or None for "needs mathematics". The same functions run in the calling
thread, where None ends the matter for the moment, and in the worker, where `symbolic` decides the leaves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

from vime_rm_math import notation, wording
from vime_rm_math.exact import GROUPED, PLAIN, exact_number
from vime_rm_math.guard import MOST_CHARACTERS, is_deep
from vime_rm_math.units import Unit, is_angle, split_unit

Symbolic = Callable[[str, str], bool]
"""Decides two expressions in LaTeX."""

MOST_MEMBERS = 64
_VARIABLE = re.compile(
    r"(?:[A-Za-z]|\\[a-z]+)'{0,3}(?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9,]{1,12}\}))?(?:\([A-Za-z0-9,+\- ]{1,12}\))?"
    r"|\\(?:vec|mathbf|hat|bar|overline|angle|operatorname)\s*\{?[A-Za-z]{1,3}\}?|\\frac\{d[A-Za-z]?\}\{d[A-Za-z]\}"
    r"|\|[A-Z]{1,3}\||[A-Z]{1,3}\s*[:/]\s*[A-Z]{1,3}|\\frac\{[A-Z]{2,3}\}\{[A-Z]{2,3}\}"
    r"|\\text\{[^{}]{1,40}\}|[A-Za-z]{2,20}|\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])+\s*\)"
)
_EQUALS = r"(?<![<>!:])=(?!=)|\\equiv(?![A-Za-z])"
_AND_OR = r"\\text\s*\{\s*,?\s*(?:and|or)\s*\}|\s(?:and|or)\s|\\(?:lor|vee|land|wedge)(?![A-Za-z])"
_LIST = ",|;|" + _AND_OR
_OPEN = re.compile(r"[A-DF-HJ-Za-df-hj-z]")
"""A letter that can be a variable: any but e and i."""
_COMMANDS = re.compile(rf"{wording.TEXT.pattern}|\\[A-Za-z]+")
_NUMERAL_WITH_SUBSCRIPT = re.compile(r"[0-9}]\s*_")
_SET_BUILDER = re.compile(r"\\\{\s*[A-Za-z]\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?:\\mid|\\vert|\||:)\s*([^{}]*(?:[<>]|\\[lg]e)[^{}]*)\\\}")
_THOUSANDS = re.compile(r"[0-9],[0-9]{3}(?![0-9])")
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])\s*")


@dataclass(frozen=True)
class Leaf:
    """One quantity: cleaned text without unit, its exact value where it is a plain number, its unit where it has one."""

    text: str
    value: Fraction | None
    unit: Unit | None


@dataclass(frozen=True)
class Chain:
    """`a = b = c`: every member claims to be the answer."""

    members: tuple[Term, ...]


@dataclass(frozen=True)
class Collection:
    """Members between `opening` and `closing`. Those between "{" and "}" have no order; "=" has a name and its value."""

    opening: str
    closing: str
    members: tuple[Term, ...]


Term = Leaf | Chain | Collection


def same_answer(answer: str, label: str, symbolic: Symbolic | None = None) -> bool | None:
    """Whether a raw answer says the same as a raw label; None where `symbolic` would be needed and is not given.

    Text of more than MOST_CHARACTERS, or with deeply nested brackets, is compared as text and as a plain number only.
    """
    if PLAIN.fullmatch(answer) and PLAIN.fullmatch(label):
        return Fraction(answer) == Fraction(label)
    cleaned_answer, cleaned_label = _alike(_exactly(notation.clean(answer)), _exactly(notation.clean(label)))
    if not cleaned_answer or not cleaned_label:
        return False
    quick = wording.same_text(cleaned_answer, cleaned_label)
    if quick is not None:
        return quick
    if any(len(text) > MOST_CHARACTERS or is_deep(text) for text in (cleaned_answer, cleaned_label)):
        values = exact_number(cleaned_answer), exact_number(cleaned_label)
        return values[0] is not None and values[0] == values[1]
    answer_variable, answer_body = _take_variable(cleaned_answer)
    label_variable, label_body = _take_variable(cleaned_label)
    if label_variable and answer_variable and not _same_name(answer_variable, label_variable):
        return (
            False
            if _is_number(_term(answer_body)) or _is_number(_term(label_body))
            else _same(_leaf(cleaned_answer), _leaf(cleaned_label), symbolic)
        )
    if label_variable and not answer_variable and _is_equation(cleaned_answer):
        label_body = cleaned_label  # the answer may be the same equation in another form
    if answer_variable and not label_variable and _is_equation(cleaned_label):
        answer_body = cleaned_answer
    return _same(_term(answer_body), _term(label_body), symbolic)


def is_list(text: str) -> bool:
    """Whether a raw label is a list or a set of two or more."""
    if PLAIN.fullmatch(text) or len(text) > MOST_CHARACTERS or is_deep(text):
        return False
    term = _term(_take_variable(notation.clean(text))[1])
    return isinstance(term, Collection) and term.opening == "{" and len(term.members) > 1


def _exactly(text: str) -> str:
    r"""Without the approximation that follows an exact value; behind a name it is the value: `x \approx 3.14` is `x = 3.14`."""
    if r"\approx" not in text:
        return text
    exact, *rest = notation.split_top(text, r"\\approx(?![A-Za-z])")
    if not rest:
        return text
    return f"{exact}={rest[0]}" if _VARIABLE.fullmatch(exact.strip()) else exact


def _alike(answer: str, label: str) -> tuple[str, str]:
    """Without the modulus of a residue, where one side leaves it out."""
    if (r"\pmod" in answer) == (r"\pmod" in label):
        return answer, label
    return answer.partition(r"\pmod")[0].rstrip(" ("), label.partition(r"\pmod")[0].rstrip(" (")


def _same_name(one: str, other: str) -> bool:
    """Whether two names stand for one thing: themselves, or `y` and a function of x."""
    return one == other or ("y" in (one, other) and re.fullmatch(r"[A-Za-z]\(x\)", other if one == "y" else one) is not None)


def _take_variable(text: str) -> tuple[str | None, str]:
    r"""Split `x = 5` and `x \in S` into the name and what it is; anything else gives (None, text)."""
    parts = notation.split_top(text, rf"{_EQUALS}|\\in(?![A-Za-z])")
    if len(parts) < 2 or len(notation.split_top(text, _LIST)) > 1:
        return None, text
    name, body = parts[0].strip(), text[len(parts[0]) :].lstrip()
    if len(parts) == 2 and r"\in" not in text and not _is_name(name) and _is_name(parts[1].strip()) and not _OPEN.search(name):
        return notation.without_spaces(parts[1]), name  # `5 = x`
    if not _is_name(name):
        return None, text
    return notation.without_spaces(name), body.removeprefix("=").removeprefix(r"\equiv").removeprefix(r"\in").strip()


def _is_name(text: str) -> bool:
    return _VARIABLE.fullmatch(text) is not None and text not in (r"\pi", "e", "i")


def _is_equation(text: str) -> bool:
    return len(notation.split_top(text, _EQUALS)) > 1 and len(notation.split_top(text, _LIST)) == 1


def _term(text: str) -> Term:
    """Read cleaned text as a chain of equalities, a collection, or one quantity."""
    text = notation.unwrap(text)
    if builder := _SET_BUILDER.fullmatch(text):
        text = builder.group(1)  # the condition says which numbers are in the set
    if _is_equation(text):
        members = notation.split_top(text, _EQUALS)
        closed = len(members) <= MOST_MEMBERS and not any(_OPEN.search(_COMMANDS.sub(" ", member)) for member in members)
        return Chain(tuple(_term(member) for member in members)) if closed else Leaf(text, None, None)
    leaf = _leaf(text)
    return leaf if leaf.value is not None else _collection(text) or leaf


def _collection(text: str) -> Collection | None:
    inside = _brackets(text)
    if inside is not None:
        opening, content, closing = inside
        members = _split_members(content, ",|;")
        if (len(members) > 1 or opening == "{") and content.strip() and len(members) <= MOST_MEMBERS and r"\mid" not in content:
            return Collection(opening, closing, _members(members))
        return None
    members = [part for part in _split_members(text, _LIST) if part.strip()]
    if 1 < len(members) <= MOST_MEMBERS:
        return Collection("{", "}", _members(members))
    signs = _PLUS_MINUS.findall(text)
    if len(signs) == 1:
        plus, minus = _PLUS_MINUS.sub("+", text), _PLUS_MINUS.sub("-", text)
        return Collection("{", "}", (_term(plus.removeprefix("+")), _term(minus)))
    return None


def _split_members(text: str, separators: str) -> list[str]:
    """Split a list at its commas, which are not those of thousands where others have a space behind: `1,000, 2,000`."""
    if _THOUSANDS.search(text) and re.search(r",\s", text):
        parts = notation.split_top(text, separators.replace(",", r",(?=\s)", 1))
        if all("," not in part or GROUPED.fullmatch(part.strip()) for part in parts):
            return parts
    return notation.split_top(text, separators)


def _brackets(text: str) -> tuple[str, str, str] | None:
    """Opening bracket, content and closing bracket, where one pair of brackets encloses the whole text."""
    for opening in (r"\{", "{", "(", "["):
        if text.startswith(opening):
            for closing in (r"\}", "}", ")", "]"):
                if text.endswith(closing) and len(text) >= len(opening) + len(closing):
                    content = text[len(opening) : -len(closing)]
                    if _balanced(content):
                        return opening[-1], content, closing[-1]
    return None


def _balanced(text: str) -> bool:
    depth = 0
    for match in re.finditer(r"\\[{}]|[][(){}]", text):
        depth += 1 if match.group()[-1] in "([{" else -1
        if depth < 0:
            return False
    return depth == 0


def _members(texts: list[str]) -> tuple[Term, ...]:
    """Read the members of a collection. One name for all is dropped (`x=1 or x=2`), different ones stay (`x=1, y=2`)."""
    pairs = [_take_variable(text.strip()) for text in texts]
    if len({name for name, _ in pairs if name}) <= 1:
        return tuple(_term(body) for _, body in pairs)
    return tuple(Collection("=", "=", (_leaf(name), _term(body))) if name else _term(body) for name, body in pairs)


def _leaf(text: str) -> Leaf:
    value = exact_number(text)
    if value is not None:
        return Leaf(text, value, None)
    head, unit = split_unit(text)
    return Leaf(head, exact_number(head), unit) if unit else Leaf(text, None, None)


def _is_number(term: Term) -> bool:
    return isinstance(term, Leaf) and term.value is not None


def _same(answer: Term, label: Term, symbolic: Symbolic | None) -> bool | None:
    if isinstance(label, Chain):
        return _same(answer, label.members[-1], symbolic)
    if isinstance(answer, Chain):
        return _all(_same(member, label, symbolic) for member in answer.members)
    if isinstance(answer, Collection) and isinstance(label, Collection):
        return _same_collection(answer, label, symbolic)
    if isinstance(answer, Leaf) and isinstance(label, Leaf):
        return _same_leaf(answer, label, symbolic)
    single, other = (answer, label) if isinstance(answer, Collection) else (label, answer)
    assert isinstance(single, Collection) and isinstance(other, Leaf)
    if single.opening == "=":
        return _same(single.members[1], other, symbolic)
    if other.value is not None:
        return _all(_same(member, other, symbolic) for member in single.members) if single.opening == "{" else False
    return _ask(symbolic, _text(answer), _text(label))


def _same_collection(answer: Collection, label: Collection, symbolic: Symbolic | None) -> bool | None:
    if (answer.opening, answer.closing) != (label.opening, label.closing):
        return False
    if answer.opening != "{":
        return _in_order(answer, label, symbolic)
    if plain := _plain_values(answer, label):
        return plain[0] == plain[1]
    if _has_names(answer) != _has_names(label):  # `a=1, b=2` and `1, 2`: the order says which is which
        return _in_order(answer, label, symbolic)
    there = _all(_among(one, label, symbolic) for one in answer.members)
    if there is False:
        return False
    return _all((there, _all(_among(one, answer, symbolic) for one in label.members)))


def _in_order(answer: Collection, label: Collection, symbolic: Symbolic | None) -> bool | None:
    if len(answer.members) != len(label.members):
        return False
    return _all(_same(one, other, symbolic) for one, other in zip(answer.members, label.members, strict=True))


def _among(one: Term, others: Collection, symbolic: Symbolic | None) -> bool | None:
    """Whether a member is equal to one of the others. What needs no mathematics is tried first."""
    verdicts = [_same(one, other, None) for other in others.members]
    if True in verdicts:
        return True
    if symbolic is None:
        return None if None in verdicts else False
    return _any(_same(one, other, symbolic) for other, verdict in zip(others.members, verdicts, strict=True) if verdict is None)


def _plain_values(answer: Collection, label: Collection) -> tuple[set[Fraction], set[Fraction]] | None:
    """The values of both, where all are plain numbers without units."""
    values: list[set[Fraction]] = []
    for side in (answer, label):
        if not all(isinstance(one, Leaf) and one.value is not None and one.unit is None for one in side.members):
            return None
        values.append({one.value for one in side.members if isinstance(one, Leaf) and one.value is not None})
    return values[0], values[1]


def _has_names(collection: Collection) -> bool:
    return any(isinstance(one, Collection) and one.opening == "=" for one in collection.members)


def _same_leaf(answer: Leaf, label: Leaf, symbolic: Symbolic | None) -> bool | None:
    if answer.unit and label.unit:
        if answer.unit.dimensions != label.unit.dimensions:
            return False
        ratio = answer.unit.factor / label.unit.factor
    else:
        ratio = Fraction(1)
    if answer.value is not None and label.value is not None:
        return answer.value * ratio == label.value
    one, other = answer.text, label.text
    if is_angle(answer.unit) and not is_angle(label.unit) and r"\pi" in other:
        one = rf"({one})\cdot\frac{{\pi}}{{180}}"
    elif is_angle(label.unit) and not is_angle(answer.unit) and r"\pi" in one:
        other = rf"({other})\cdot\frac{{\pi}}{{180}}"
    elif ratio != 1:
        one = rf"({one})\cdot\frac{{{ratio.numerator}}}{{{ratio.denominator}}}"
    elif notation.without_spaces(one) == notation.without_spaces(other):
        return True
    if _is_equation(one) != _is_equation(other):
        return False
    if _NUMERAL_WITH_SUBSCRIPT.search(one) or _NUMERAL_WITH_SUBSCRIPT.search(other):
        return False  # not a numeral of that base, so not a number
    return _ask(symbolic, one, other)


def _ask(symbolic: Symbolic | None, answer: str, label: str) -> bool | None:
    return None if symbolic is None else symbolic(answer, label)


def _text(term: Term) -> str:
    if isinstance(term, Leaf):
        return term.text
    if isinstance(term, Chain):
        return _text(term.members[-1])
    opening, closing = (rf"\{term.opening}", rf"\{term.closing}") if term.opening == "{" else (term.opening, term.closing)
    return opening + ",".join(_text(member) for member in term.members) + closing


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    unknown = False
    for verdict in verdicts:
        if verdict is False:
            return False
        unknown |= verdict is None
    return None if unknown else True


def _any(verdicts: Iterable[bool | None]) -> bool | None:
    unknown = False
    for verdict in verdicts:
        if verdict:
            return True
        unknown |= verdict is None
    return None if unknown else False
