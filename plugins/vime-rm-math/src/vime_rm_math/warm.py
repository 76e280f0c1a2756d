"""Imported once by the fork server of the reward's workers, and by nothing else: fills math-verify's parser caches.

The first expression costs the parser a few tenths of a second. Workers that are forked afterwards have paid it already,
so it does not count against the limit of an answer.
"""

from vime_rm_math.worker import symbolic_equal

for _answer, _label in (
    (r"\sqrt{8}", r"2\sqrt{2}"),
    (r"\frac{x+1}{2}", r"\frac{x}{2}+\frac{1}{2}"),
    (r"(-\infty,3)\cup[4,5]", r"x<3"),
    ("x<3", "3>x"),
):
    symbolic_equal(_answer, _label)
