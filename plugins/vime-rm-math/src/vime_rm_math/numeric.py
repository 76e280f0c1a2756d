"""Whether two expressions have one value: at a few points, to more digits than chance explains. For workers only: may hang."""

from __future__ import annotations

from typing import Any

DIGITS = 50
NOISE = 40
"""Values that agree in as many digits are the same: all numbers here are exact, so only the computation is rounded."""
POINTS = 6
ENOUGH = 3
"""Points with real values at which expressions with variables have to agree."""
_NUMERATORS = (3, -5, 11, 7, -2, 13, -17, 19, 1, -23, 29, 10)
_DENOMINATORS = (7, 4, 3, 11, 13, 9, 5)


def same_value(label: Any, answer: Any) -> bool | None:
    """True or False for two expressions (or matrices of one shape) whose values tell; None where they do not.

    Different values at one point are a proof. Equal ones at ENOUGH points, negative and whole ones among them, are taken
    for one: the points are fixed, and no answer is written with them in mind.
    """
    from sympy import Abs, Derivative, Expr, Integral, Limit, MatrixBase, Product, Sum, log

    if isinstance(label, MatrixBase) and isinstance(answer, MatrixBase):
        if label.shape != answer.shape:
            return None
        verdicts = [same_value(one, other) for one, other in zip(label.flat(), answer.flat(), strict=True)]
        return False if False in verdicts else None if None in verdicts else True
    if not isinstance(label, Expr) or not isinstance(answer, Expr):
        return None
    if label.has(*(limits := (Derivative, Integral, Limit, Product, Sum))) or answer.has(*limits):
        label, answer = label.doit(), answer.doit()
        if label.has(*limits) or answer.has(*limits):
            return None
    symbols = sorted(label.free_symbols | answer.free_symbols, key=str)
    if not symbols:
        return _same_at({}, label, answer)
    agreed = 0
    for number in range(POINTS):
        verdict = _same_at({one: _coordinate(place, number) for place, one in enumerate(symbols)}, label, answer)
        if verdict is False:
            return False
        agreed += verdict is True
        if not agreed and number == ENOUGH - 1:
            return None  # no function with real values
    whole_line = label.has(Abs) == answer.has(Abs) or not label.has(log)  # the logarithm of |x| is more than that of x
    return True if agreed >= (ENOUGH if whole_line else POINTS) else None


def _coordinate(place: int, number: int) -> Any:
    from sympy import Rational

    numerator = _NUMERATORS[(5 * place + 3 * number) % len(_NUMERATORS)]
    if number % 3 == 0:
        return Rational(abs(numerator), _DENOMINATORS[(2 * place + number) % len(_DENOMINATORS)])
    return Rational(numerator, 1 if number == POINTS - 2 else _DENOMINATORS[(2 * place + number) % len(_DENOMINATORS)])


def _same_at(point: dict[Any, Any], label: Any, answer: Any) -> bool | None:
    """Whether both have one value at a point; None where one of them has none there, or no real one."""
    try:
        there, here = (one.xreplace(point) for one in (label, answer))
        values = [part for one in (there, here) for part in one.evalf(DIGITS).as_real_imag()]
        if not all(part.is_Float or part.is_Rational for part in values):
            return None
        if point and not (_is_noise(values[1]) and _is_noise(values[3]) and _in_domain(label, point) and _in_domain(answer, point)):
            return None
        apart = [part for part in (there - here).evalf(DIGITS, maxn=4 * DIGITS).as_real_imag() if not _is_noise(part)]
        return bool(not apart or max(map(abs, apart)) <= max(map(abs, values)) / 10**NOISE)
    except (TypeError, ValueError, ArithmeticError, AttributeError, NotImplementedError):
        return None


def _in_domain(expression: Any, point: dict[Any, Any]) -> bool:
    """Whether all even roots and logarithms in a real expression are real at a point."""
    from sympy import Pow, log

    for one in expression.atoms(Pow, log):
        below: Any = one.args[0] if isinstance(one, log) or (one.exp.is_Rational and one.exp.q % 2 == 0) else None
        if below is not None and below.xreplace(point).evalf().is_negative:
            return False
    return True


def _is_noise(part: Any) -> bool:
    """Whether nothing of a computed number is certain, so that it may be zero."""
    return bool(part.is_zero) or getattr(part, "_prec", 53) == 1
