"""One spelling for the many ways to write the same mathematics. Text in, text out; nothing is evaluated."""

from __future__ import annotations

import re

_CHARACTERS = {
    "−": "-", "–": "-", "—": "-", "﹣": "-", "－": "-", "＋": "+", "＝": "=", "／": "/", "％": "%", "，": ",", "．": ".",
    "（": "(", "）": ")",
    "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ", "∙": r"\cdot ", "÷": "/", "∕": "/", "⁄": "/",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\neq ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
    "±": r"\pm ", "≈": r"\approx ", "≡": r"\equiv ", "¢": r"\text{ cents}",
    "∅": r"\emptyset ", "π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ", "φ": r"\phi ", "ω": r"\omega ",
    "°": r"^{\circ}", "º": r"^{\circ}",
    "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}", "⅕": r"\frac{1}{5}", "⅛": r"\frac{1}{8}",
    "“": '"', "”": '"', "‘": "'", "’": "'", "′": "'", "…": "...", "\u00a0": " ", "\u2009": r"\,", "\u202f": r"\,", "\u200a": r"\,",
    "\u200b": "", "\u2060": "", "\ufeff": "", "\u2061": "", "\u2062": "",
}  # fmt: skip
_CHARACTERS.update(dict.fromkeys("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069", ""))  # directions
_CHARACTERS.update({chr(0xFF10 + digit): str(digit) for digit in range(10)})
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", strict=True))
_TABLE = str.maketrans({**_CHARACTERS, **{chr(code): " " for code in [*range(32), 127]}})

_SUPERSCRIPT = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|\{([^{}]*)\}|([0-9]+(?:\.[0-9]+)?|[A-Za-z]))")
_THOUSANDS_SPACE = re.compile(r"(?<=[0-9])(?:,?\\[,;:!]\s*|\\ |\s*\{\s*,\s*\}\s*|~)(?=[0-9]{3}(?![0-9]))")
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|nolimits)(?![A-Za-z])\s*\.?")
_SPACES = re.compile(r"(?<!\\)\\(?:[,;:! ]|quad(?![A-Za-z])|qquad(?![A-Za-z])|hspace\{[^{}]*\}|thinspace(?![A-Za-z]))|~")
_SHORT_FRACTION = re.compile(r"\\frac\s*(?:(\{[^{}]*\})|([0-9A-Za-z]))\s*(?:(\{[^{}]*\})|([0-9A-Za-z]))")
_SHORT_ROOT = re.compile(r"\\sqrt\s*(\[[^][{}]{1,20}\])?\s*([0-9A-Za-z])")
_SOLID_POWER = re.compile(r"(?<=[0-9])m(?=[²³])")
_ORDINAL = re.compile(r"(?<=[0-9])\s*\^?\s*\{?\s*\\text\s*\{\s*(?:st|nd|rd|th)\s*\}\s*\}?")
_MATH_INSIDE = re.compile(r"(?<!\\)\$([^$]+)(?<!\\)\$(?![0-9])")
_MATRICES = re.compile(r"\{(?:Bmatrix|smallmatrix)\}")
_CASES = re.compile(r"\\begin\{cases\}([^&]{0,1000}?)\\end\{cases\}")
_CHOOSE = re.compile(r"\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}")
_EMPTY_SET = re.compile(r"\\\{\s*\\\}")
_SYNONYMS = {
    "leqslant": r"\le ", "leq": r"\le ", "geqslant": r"\ge ", "geq": r"\ge ", "ne": r"\neq ", "varnothing": r"\emptyset ",
    "degree": r"^{\circ}", "gt": ">", "lt": "<", "textnormal": r"\text", "lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]",
    "div": "/", "dots": "...", "ldots": "...", "cdots": "...", "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac",
}  # fmt: skip
_SYNONYM = re.compile(rf"\\({'|'.join(_SYNONYMS)})(?![A-Za-z])")
_DEGREES = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))")
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("__", "__"), ("`", "`"), ('"', '"'))
_WRAPPING = tuple({opening[0] for opening, _ in _WRAPPERS})
_STYLE = re.compile(r"^\\(?:textbf|mathbf|boldsymbol|bm|mathit|textit|text|mathrm|textrm|mbox|fbox|boxed)\s*\{")
_MOST_WRAPPINGS = 10
_APPROXIMATELY = re.compile(r"^(?:\\approx|\\simeq|\\sim|\\doteq|=)(?![A-Za-z])\s*")


def clean(text: str) -> str:
    """The answer without its wrapping (math delimiters, bold, trailing punctuation) and in one spelling of LaTeX."""
    text = _SOLID_POWER.sub(r"\\text{ m}", text).translate(_TABLE)
    text = _SUPERSCRIPT.sub(lambda match: "^{" + "".join(_SUPERSCRIPTS[sign] for sign in match.group()) + "}", text)
    text = _ROOT.sub(lambda match: rf"\sqrt{{{match.group(1) or match.group(2) or match.group(3)}}}", text)
    if "\\" in text or "{" in text or "~" in text:
        text = _latex(text)
    text = unwrap(text)
    return unwrap(_MATH_INSIDE.sub(r"\1", text)) if text.count("$") > 1 else text


def _latex(text: str) -> str:
    text = _THOUSANDS_SPACE.sub(",", text)
    text = _SIZES.sub("", text)
    text = _SYNONYM.sub(lambda match: _SYNONYMS[match.group(1)], text)
    text = _SPACES.sub(" ", text)
    text = _DEGREES.sub(r"^{\\circ}", text)
    text = _CHOOSE.sub(r"\\binom{\1}{\2}", text)
    text = _EMPTY_SET.sub(r"\\emptyset ", text)
    text = _SHORT_ROOT.sub(lambda match: rf"\sqrt{match.group(1) or ''}{{{match.group(2)}}}", text)
    text = _SHORT_FRACTION.sub(_braced_fraction, text)
    if r"\text" in text:
        text = _ORDINAL.sub("", text)
    if r"\begin" in text:
        text = _CASES.sub(lambda match: ", ".join(part for part in match.group(1).split(r"\\") if part.strip()), text)
        text = _MATRICES.sub("{pmatrix}", text)
    return text


def unwrap(text: str) -> str:
    """Take off math delimiters, bold, styles around the whole, a leading approximation sign and trailing punctuation."""
    for _ in range(_MOST_WRAPPINGS):
        before = text
        text = text.strip()
        if not text.endswith("..."):
            text = text.rstrip(".,;: \\")
        text = _APPROXIMATELY.sub("", text)
        for opening, closing in _WRAPPERS if text[:1] in _WRAPPING else ():
            inside = text[len(opening) : -len(closing)]
            if len(text) > len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing) and opening not in inside:
                text = inside
        if (style := _STYLE.match(text)) and closing_brace(text, style.end() - 1) == len(text) - 1:
            text = text[style.end() : -1]
        if text == before:
            break
    return text


def without_spaces(text: str) -> str:
    """For comparing two spellings as text. A space between digits stays: `2 1/2` is not `21/2`."""
    return re.sub(r"(?<![0-9]) | (?![0-9])", "", " ".join(text.split()))


def closing_brace(text: str, start: int) -> int:
    """The position of the brace that closes the one at `start`, or -1. Escaped braces do not count."""
    depth = 0
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        if match.group() == "{":
            depth += 1
        elif match.group() == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    return -1


def split_top(text: str, separators: str) -> list[str]:
    """Split at the separators that stand outside all brackets. With brackets that do not match: the whole text."""
    parts, depth, start = [], 0, 0
    for match in re.finditer(rf"\\[{{}}]|(?P<separator>{separators})|\\.|[][(){{}}]", text, re.DOTALL):
        token = match.group()
        if token in ("(", "[", "{", r"\{"):
            depth += 1
        elif token in (")", "]", "}", r"\}"):
            depth -= 1
            if depth < 0:
                return [text]
        elif depth == 0 and match["separator"] is not None:
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]] if depth == 0 else [text]


def _braced_fraction(match: re.Match[str]) -> str:
    above = match.group(1) or f"{{{match.group(2)}}}"
    below = match.group(3) or f"{{{match.group(4)}}}"
    return rf"\frac{above}{below}"
