r"""The table of answer pairs with the right verdict, made from the rules of mathematics and notation.

Each pair is (what stands in the last \boxed{}, the label). Verdicts are about the final answer as it is written: a
percentage is a hundredth, a finite decimal is a rational number, brackets of tuples and intervals matter, a set has no
order, a unit may be left out but not changed.
"""

from __future__ import annotations

import pytest

from vime_rm_math import grade

NUM_GPUS = 0

EQUAL: list[tuple[str, object]] = [
    # integers, signs, separators
    ("42", "42"), ("42", 42), ("42.", "42"), ("042", "42"), ("+42", "42"), ("-7", -7), ("−7", "-7"), ("– 7", "-7"), ("- 7", "-7"),
    ("1,234", "1234"), ("1{,}234", "1234"), (r"1\,234", "1234"), (r"1\,234\,567", "1234567"), ("1 234 567", "1,234,567"),
    ("1234567", "1,234,567"), (r"\$1,000", "1000"), ("$42$", "42"), (r"\(42\)", "42"), (r"\[42\]", "42"), ("**42**", "42"),
    (r"\textbf{42}", "42"), (r"\mathbf{42}", "42"), (r"\text{42}", "42"), (r"\displaystyle 42", "42"), ("(42)", "42"), ("{42}", "42"),
    ("42,", "42"), ("４２", "42"), ("-0", "0"),
    # decimals, powers of ten
    ("0.5", "0.50"), (".5", "0.5"), ("5.", "5"), ("5.0", 5), ("0.5", 0.5), ("0.1", 0.1), ("3.14", 3.14), ("1,234.50", "1234.5"),
    ("-.5", "-0.5"), ("1.5e3", "1500"), ("1.5E3", "1500"), ("2e-3", "0.002"), (r"1.5 \times 10^{3}", "1500"), (r"1.5 \cdot 10^3", "1500"),
    ("1.5×10³", "1500"), (r"6.02\times10^{23}", "602000000000000000000000"), ("10^6", "1000000"), (r"2^{10}", "1024"), ("2**10", "1024"),
    ("10^{-2}", "0.01"), ("5 million", "5000000"), (r"2.5 \text{ million}", "2500000"),
    # fractions, mixed numbers, repeating decimals
    (r"\frac{1}{2}", "0.5"), (r"\frac{1}{2}", "1/2"), (r"\dfrac{1}{2}", r"\frac12"), (r"\tfrac{3}{4}", "0.75"), (r"\frac12", "1/2"),
    (r"\frac1{2}", "1/2"), (r"\frac{2}{4}", r"\frac{1}{2}"), ("-1/2", r"-\frac{1}{2}"), (r"\frac{-1}{2}", r"-\frac{1}{2}"),
    (r"\frac{1}{-2}", "-0.5"), (r"-\frac{-1}{2}", "0.5"), (r"\frac{1,000}{3}", "1000/3"), ("4/2", "2"), (r"\frac{10}{5}", "2"),
    ("½", "0.5"), ("0.25", "¼"), ("1⁄2", "0.5"), ("2 1/2", "2.5"), (r"2\frac{1}{2}", "5/2"), (r"2\frac12", r"\frac{5}{2}"),
    (r"-2\frac{1}{2}", "-2.5"), (r"1 \frac{3}{4}", "1.75"), (r"0.\overline{3}", r"\frac{1}{3}"), (r"0.1\overline{6}", "1/6"),
    ("0.333...", "1/3"), (r"0.\overline{9}", "1"), (r"0.\bar{3}", "1/3"),
    # percentages
    ("50%", r"50\%"), (r"50\%", "0.5"), ("50 percent", "0.5"), (r"50\%", r"\frac{1}{2}"), (r"12.5\%", "0.125"),
    (r"33\frac{1}{3}\%", "1/3"), ("100%", "1"),
    # units: left out, the same, or another of the same kind
    (r"5 \text{ cm}", "5"), ("5 cm", "5"), ("5", r"5\text{ cm}"), (r"5\,\mathrm{cm}", "5 cm"), (r"50 \text{ mm}", "5 cm"),
    (r"25\text{ cm}^2", "25"), (r"25 \text{ cm}^{2}", r"25 \text{ square centimeters}"), ("25 cm²", r"25\text{ cm}^2"),
    (r"60 \text{ km/h}", "60"), (r"60 \text{ km/h}", "60 km per hour"), (r"5 \text{ apples}", "5"), (r"\$5", "5 dollars"),
    ("50 cents", r"\$0.50"), (r"90^\circ", "90"), ("90°", r"90^{\circ}"), ("90 degrees", "90°"), (r"90^\circ", r"\frac{\pi}{2}"),
    (r"\pi", r"180^\circ"), (r"2\sqrt{3}\text{ cm}", r"2\sqrt{3}"), (r"2 \text{ hours}", "120 minutes"), ("1.5 kg", "1500 g"),
    ("25 m^2", "25"), ("10 m/s", r"10\text{ m/s}"), ("36 km/h", "10 m/s"), (r"10\pi \text{ cm}", r"10\pi"),
    # names before the value, chains
    ("x = 5", "5"), ("x=5", "5"), ("5", "x = 5"), ("x=5", "x = 5"), (r"\theta = \frac{1}{2}", "0.5"), ("f(2) = 7", "7"), ("x_1 = 3", "3"),
    (r"x = \frac{10}{2} = 5", "5"), ("2+3=5", "5"), (r"\sqrt{16} = 4", "4"), (r"\approx 3.14", "3.14"), ("y = 2x + 1", "2x+1"),
    ("y=2x+1", "y = 1 + 2x"),
    # numerals with a base
    ("100_8", "64"), ("1010_2", "10"), (r"FF_{16}", "255"), ("100_{8}", "100_8"),
    # roots, powers, constants
    (r"\sqrt{4}", "2"), ("√2", r"\sqrt{2}"), ("√(2)", r"\sqrt2"), ("sqrt(2)", r"\sqrt{2}"), (r"\sqrt{8}", r"2\sqrt{2}"),
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"), (r"\sqrt[3]{27}", "3"), (r"2^{\frac{1}{2}}", r"\sqrt{2}"), ("2^0.5", r"\sqrt{2}"),
    (r"3\pi", r"\pi \cdot 3"), ("2π", r"2\pi"), (r"\frac{3\pi}{4}", r"\frac{3}{4}\pi"), ("e^2", "e^{2}"), (r"\ln e", "1"), ("5!", "120"),
    (r"\binom{5}{2}", "10"), ("3+4", "7"), (r"\frac{1+1}{4}", "0.5"), (r"2\cdot 3", "6"), ("2*3", "6"), (r"\infty", "∞"), (r"i^2", "-1"),
    ("2+3i", "3i+2"), (r"\log_2 8", "3"), (r"\sin 30^\circ", "1/2"), (r"\cos(\pi)", "-1"), (r"\pi/2", r"\frac{\pi}{2}"),
    # algebra
    ("x+1", "1+x"), ("(x+1)(x-1)", "x^2-1"), ("(x+1)^2", "x^2+2x+1"), (r"\frac{x^2-1}{x-1}", "x+1"), ("2x", r"x \cdot 2"),
    ("0.5x", r"\frac{x}{2}"), ("x^10", "x^{10}"), (r"\frac{a}{b}", "a/b"), ("3x^2y", "3yx^2"), ("x**2+1", "x^2+1"),
    ("x^2 + y^2 = 25", "y^2 + x^2 = 25"), ("2x - y = 3", "y = 2x - 3"),
    # sets, lists, tuples, intervals, inequalities, matrices
    ("1, 2", "2, 1"), ("1,2,3", r"\{3, 2, 1\}"), (r"\{1, 2\}", r"\{2, 1\}"), (r"\{0.5, 2\}", r"\left\{2, \frac{1}{2}\right\}"),
    (r"\pm 2", "2, -2"), (r"x = \pm 2", r"-2, 2"), (r"1 \pm \sqrt{2}", r"1-\sqrt{2}, 1+\sqrt{2}"), ("x=1 or x=2", "1,2"),
    (r"x = 1 \text{ or } x = 2", r"\{1,2\}"), (r"2 \text{ and } 3", "3, 2"), (r"x \in \{1, 2\}", "1, 2"), (r"\sqrt{4}, 1", "1, 2"),
    ("(1, 2)", "(1,2)"), (r"\left(\frac{1}{2}, -3\right)", "(0.5,-3)"), ("(x, y) = (1, 2)", "(1, 2)"), (r"(\sqrt{4}, 1)", "(2, 1)"),
    ("[0, 1)", r"\left[0,1\right)"), (r"(-\infty, 3)", r"(-∞, 3)"), (r"[0, \frac{1}{2}]", "[0, 0.5]"),
    (r"(-\infty, 1) \cup (2, \infty)", r"(2,\infty) \cup (-\infty,1)"), ("x > 3", "3 < x"), (r"x \ge 2", r"x \geq 2"),
    ("x >= 2", r"x \geqslant 2"), (r"1 < x < 2", "1<x<2"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    (r"\begin{pmatrix} 0.5 \\ 1 \end{pmatrix}", r"\begin{pmatrix} \frac12 \\ 1 \end{pmatrix}"),
    (r"\begin{bmatrix} 1 & 2 \end{bmatrix}", r"\begin{pmatrix} 1 & 2 \end{pmatrix}"),
    # letters, words, clock times, ratios
    ("A", "A"), ("(A)", "A"), (r"\text{A}", "A"), ("A.", "A"), (r"\textbf{(B)}", "B"), ("(C) 12", "C"), (r"\textbf{(B)}\ 12", "12"),
    ("yes", "Yes"), (r"\text{No}", "no"), (r"\text{Monday}", "monday"), (r"\text{no solution}", "No solution"), ("12:30", "12:30"),
    ("3:4", "3 : 4"), ("True", True),
    # several accepted answers, worked solutions as labels
    ("2", ["1", "2"]), ("0.5", ["x", 0.5]), (r"\sqrt{2}", ["7", r"2^{1/2}"]), ("42", "6 * 7 = 42\n#### 42"), ("1200", "#### 1,200"),
    ("4", r"so it is \boxed{4}."),
    # more of all kinds
    ("14", "14.0"), ("3", "3.000"), (r"\frac{3}{4}", "0.75"), ("0.75", "3/4"), (r"-\frac{2}{3}", "-2/3"), (r"$\frac{2}{3}$", "2/3"),
    ("2/3", r"\frac 2 3"), (r"\frac{ 2 }{ 3 }", "2/3"), (r"11\sqrt{2}", r"11\sqrt2"),
    (r"(3,\frac{\pi}{2})", r"\left( 3, \frac{\pi}{2} \right)"), ("p - q", "p-q"), (r"\frac{14}{3}", r"4\frac{2}{3}"),
    ("9", r"9\text{ units}"), (r"\text{Evelyn}", "Evelyn"), (r"42^\circ", "42"), ("27", r"27 \text{ square units}"),
    (r"90^{\circ}", "90"),
    (r"3\sqrt{13}", r"\sqrt{117}"), (r"\frac{3}{56}", "3/56"), ("6-5i", "-5i+6"), ("-50", "-50.0"),
    (r"\frac{\sqrt{6}}{3}", r"\sqrt{\frac{2}{3}}"),
    (r"(-\infty,-7)\cup(-7,3)\cup(3,\infty)", r"(-\infty, -7) \cup (-7, 3) \cup (3, \infty)"), ("x^2-2x+1", "(x-1)^2"),
    ("[2,5)", "[ 2, 5 )"), (r"\text{(A)}", "A"), (r"16.5\%", "0.165"), ("1,2,3", "3,2,1"), (r"\$18.90", "18.90"), ("10{,}080", "10080"),
    ("6 + 9i", "9i + 6"), (r"\begin{pmatrix} -1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} -1\\2\end{pmatrix}"), ("-3 < x < 2", "-3<x<2"),
    ("y = x^2", "x^2"), ("e", "e"), (r"\ln 2", r"\ln(2)"), (r"\log 10", "1"), (r"\log_{10} 100", "2"), ("2^{-1}", "0.5"),
    ("4^{1/2}", "2"),
    ("|{-3}|", "3"), ("|-3|", "3"), (r"\lfloor 2.5 \rfloor", "2"), (r"\lceil 2.5 \rceil", "3"), (r"\frac{dy}{dx} = 2x", "2x"),
    ("f(x) = x^2 + 1", "x^2+1"), ("x = 2, y = 3", "x=2,y=3"), (r"\sqrt{x^2+1}", r"\sqrt{1+x^2}"), (r"\frac{1}{2}x + 3", r"\frac{x}{2}+3"),
    ("n(n+1)/2", r"\frac{n(n+1)}{2}"), ("2n-1", "-1+2n"), (r"5 \times 10^{-3}", "0.005"), ("1{,}000{,}000", "10^6"),
    (r"\sin x \cos x", r"\cos x \sin x"), (r"\sin^2 x + \cos^2 x", "1"), (r"\tan 45^\circ", "1"), ("3:2", "3:2"),
    (r"\frac{3}{2}\pi", r"\frac{3\pi}{2}"), ("1.25", r"1\frac14"), (r"\{ \}", r"\emptyset"), (r"\mathbb{R}", r"\mathbb{R}"),
    (r"7 \pmod{12}", r"7 \pmod{12}"), (r"\overline{AB}", r"\overline{AB}"), (r"\triangle ABC", r"\triangle ABC"),
    (r"6 \text{ inches}", "6"), (r"3 \text{ or } 4", r"4 \text{ or } 3"), (r"\text{June 20}", "June 20"), (r"20 \text{ m}^3", "20 m^3"),
    (r"8\text{ a.m.}", "8 a.m."), ("11:00", "11:00"), (r"2 \cdot 10^3", "2000"), (r"\dfrac{ -1 }{ 3 }", "-1/3"), (r"5\,000", "5000"),
    (r"\frac{x}{y}", "x/y"), (r"\frac{-b}{2a}", r"-\frac{b}{2a}"), (r"x \neq 2", r"x\ne2"), (r"x \leq -1", "x <= -1"),
    (r"\sqrt[4]{16}", "2"), ("8!/6!", "56"), (r"{10 \choose 3}", "120"), (r"\binom{10}{3}", "120"), ("C(10,3)", "C(10,3)"),
    (r"1 + \frac{1}{2}", "1.5"), ("1/3 + 1/6", "1/2"), (r"\left[\frac{1}{2}, 3\right)", "[0.5,3)"), ("-x+3", "3-x"), ("3-x", "3 - x"),
    (r"\frac{\frac{1}{2}}{2}", "0.25"), (r"0.5 \text{ or } \frac{1}{2}", r"\frac12"), (r"t=3\text{ s}", "3"),
    (r"3\text{ seconds}", "t = 3"), (r"\pi r^2", r"r^2 \pi"), ("a_1 = 3", "3"), ("a_n = 2n", "2n"), ("(2, -3)", "(x,y)=(2,-3)"),
    (r"10\%", "0.1"), (r"45\text{ mph}", "45"), ("one", "One"), (r"\text{True}", "true"),
    (r"3.0 \times 10^8 \text{ m/s}", r"3\times10^8 m/s"), ("3e8 m/s", "300000000 m/s"), (r"\vec{v} = (1,2)", "(1,2)"),
    (r"\langle 1, 2 \rangle", r"\langle 1,2\rangle"), ("1+i", "i+1"), (r"\frac{1+i}{2}", "0.5+0.5i"), (r"e^{i\pi}", "-1"),
    ("i", r"\sqrt{-1}"), ("2i^2", "-2"), (r"\frac{5}{\sqrt{5}}", r"\sqrt5"), (r"x \in [1,2]", "[1,2]"), ("[1,2]", r"x \in [1,2]"),
    (r"1 \le x \le 2", r"x \in [1,2]"), (r"x<2 \text{ or } x>3", r"x>3 \text{ or } x<2"), (r"\{x \mid x > 3\}", r"(3,\infty)"),
    (r"k=-2 \text{ and } k = 5", "5,-2"), (r"\text{odd}", "odd"),
    # spellings met in other projects' tests of the same kind
    (r"32,\! 349", "32349"), (r"11,\!111,\! 111", "11111111"), ("14 {, }916", "14916"), (r"x \approx 3.14", "3.14"),
    (r"\frac{\sqrt{3}}{3} \approx 0.577", r"\frac{\sqrt{3}}{3}"), ("1", "|AB| = 1"), ("AB/CD = 2", "2"), (r"x \gt 5", "x > 5"),
    (r"5\textnormal{ miles}", "5 miles"), (r"918\frac{1}{2}", 918.5), (r"\mathrm{E}", "E"), ("f'", "f'"), ("(r+5)(r+5)", "(r+5)^2"),
    ("x = y + 2", "x - (y+2) = 0"), (r"\left[\begin{array}{cc}1 & 2 \\ 3 & 4\end{array}\right]", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    ("x^2 + 2x - (-1)", "x^2+2x+1"),
    ("1,000.99$", "1000.99"), ("1,000.99€", "1000.99"), ("1,000.99 m²", "1000.99"), ("1,000.99m²", "1000.99"), ("28 percentage", r"28\%"),
    ("28 pct", "0.28"), (r"125\textnormal{ miles}", "$125$ miles"), ("4 0/9", "4"), ("1 000 4/9", "9004/9"), ("-4 4/9", "-40/9"),
    ("4 4/9 pct", "40/900"), (r"\sqrt[3]2", r"\sqrt[3]{2}"), (r"\sqrt[3]{8}", "2"), ("(1,000, 2,000)", "(1000, 2000)"),
    ("20:34", "20:34:00"), ("20:34", r"08:34 \text{ P.M.}"), ("12:05 am", "0:05"), ("3:30", "3:30 p.m."), ("f(x) = 2x + 3", "y = 2x + 3"),
    (r"\begin{cases} a+b=\frac12 \\ a-b=2 \end{cases}", r"\begin{cases} a+b=0.5\\ a-b=2\end{cases}"), ("5 = x", "x = 5"), ("5=x", "5"),
    (r"\begin{cases} x=1 \\ y=2 \end{cases}", "x=1, y=2"), (r"4 \pmod{5}", "4"), (r"x \equiv 4 \pmod{5}", r"4 \pmod 5"),
    (r"5^{\text{th}}", "5"), ("100¢", r"\$1"), (r"\begin{Bmatrix}1&2\\3&4\end{Bmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    ("x=1,y=2,z=3", "1, 2, 3"), ("b=2,a=1", "a=1,b=2"), (r"\log_{a^2} x", r"\frac12\log_a x"), (r"\sqrt{x}\sqrt{y}", r"\sqrt{xy}"),
    (r"\sqrt[3]{x^2}", "x^{2/3}"), (r"\sqrt{5+2\sqrt6}", r"\sqrt2+\sqrt3"), ("(x+y+1)^{120}", "(x^2+2xy+y^2+2x+2y+1)^{60}"),
    (r"\cos\frac{\pi}{7}-\cos\frac{2\pi}{7}+\cos\frac{3\pi}{7}", r"\frac12"), (r"\sum_{n=1}^{\infty} \frac{1}{n^2}", r"\frac{\pi^2}{6}"),
    (r"\frac{v_0}{r_0} \frac{1}{(1+r/r_0)^{3/2}}", r"\frac{v_0(\frac{r_0}{r+r_0})^{0.5}}{r+r_0}"), (r"\sec^2 y", r"\tan^2 y + 1"),
    (r"\frac{x}{7}+\frac{2}{7}", r"\frac{x+2}{7}"), ("-34x-45y+20z-100=0", "34x+45y-20z+100=0"), ("x^2/16+y^2/12=1/4", "x^2/4+y^2/3=1"),
    (r"y=-\frac{1}{2}x+\frac{3}{4}", "2x+4y-3=0"), ("-x > -1", "x < 1"), (r"m \in [\sqrt2, +\infty)", r"m \ge \sqrt2"),

      (r"\begin{pmatrix}1&2\\3&4\end{pmatrix} + \begin{pmatrix}5&6\\7&8\end{pmatrix}", r"\begin{pmatrix}6&8\\10&12\end{pmatrix}"),
    ("{-2021, 2021}", r"\pm 2021"), (r"19, 46, \text{ and } 82", "19, 46, and 82"), ("11z^{17}(5+11z^{17})", "11z^17(11z^17+5)"),
    ("i(2-i)", "1+2i"), (r"\sin(90^{\circ}-x)", r"\cos(x)"), ("10 - 10*i**2", "20"), ("3*s**2", "3s^2"),
    (r"7 \sin(\frac{\pi}{5}x)", "7*sin(pi*x/5)"),
    (r"\int_0^7 dx", "7"), (r"\lim_{x \to \infty} \frac{1}{x}", "0"), (r"\gcd(12, 18)", "6"), ("5!7!", "604800"), ("||x||", "|x|"),
    ("033", "33"), (r"\left( 6, -\frac{3}{8} \right)", r"(6, -\frac{3}{8})"), (r"hence \boxed{5}", r"hence \boxed 5"),
]  # fmt: skip

UNEQUAL: list[tuple[str, object]] = [
    # integers, signs, separators
    ("42", "43"), ("42", -42), ("-7", "7"), ("−7", "7"), ("1,234", "1235"), ("1,234", "1.234"), ("12", "1"), ("1", "12"), ("0", "1"),
    ("100", "1000"), ("007", "70"), ("123456789012345678901234567890", "123456789012345678901234567891"), ("-0.0001", "0"),
    # decimals, powers of ten
    ("0.5", "0.51"), ("0.3333333", "0.3333334"), ("0.333333", "1/3"), ("3.14", r"\pi"), ("3.14159265358979", r"\pi"),
    ("1.41421356", r"\sqrt{2}"), ("1.4142135623730951", r"\sqrt{2}"), ("2.718281828", "e"), ("1.5e3", "1.5"), ("1.5e3", "3"),
    (r"1.5 \times 10^{3}", "1.5"), (r"1.5 \times 10^{-3}", "1500"), ("10^6", "10"), ("2^{10}", "210"), ("0.05", "0.5"), ("1e-20", "0"),
    ("5 million", "5"), ("0.99999999999999999999", "1"),
    # fractions
    (r"\frac{1}{2}", r"\frac{2}{1}"), ("1/2", "1"), ("1/2", "2"), (r"\frac{1}{2}", "-0.5"), (r"\frac{1}{3}", "0.33"), ("2 1/2", "21/2"),
    (r"2\frac{1}{2}", "1"), (r"-2\frac{1}{2}", "-1.5"), (r"\frac{1}{0}", "0"), (r"\frac{1}{0}", "1"), (r"\frac{0}{0}", "0"),
    (r"0.\overline{3}", "0.3"), ("0.333...", "0.333"), (r"\frac{12}{34}", "12"), (r"\frac{12}{34}", "34"),
    # percentages
    ("50%", "50"), (r"50\%", "5"), ("50", "50%"), ("0.5%", "0.5"), (r"5\%", "0.5"), ("50%", "51%"),
    # units
    (r"5 \text{ cm}", r"5 \text{ m}"), ("5 cm", "5 kg"), (r"5\text{ cm}", r"5\text{ cm}^2"), (r"25\text{ cm}^2", r"25 \text{ cm}^3"),
    (r"5 \text{ cm}", "6"), (r"5 \text{ cm}", "6 cm"), (r"\$5", "€5"), ("50 cents", r"\$50"), (r"90^\circ", r"\frac{\pi}{3}"),
    (r"90^\circ", r"90 \text{ m}"), (r"60 \text{ km/h}", r"60 \text{ m/s}"), (r"2\sqrt{3}\text{ cm}", r"2\sqrt{3}\text{ m}"),
    (r"5 \text{ apples}", "4"), (r"5 \text{ or } 6", "5"), (r"5 \text{ million}", "5"), ("5x", "5"), ("5 m", "5 s"), ("5m", "5"),
    ("25 m^2", "25 m"), (r"\frac{\pi}{2}", "90"), (r"5 \text{ apples}", "5 oranges"),
    # names before the value, chains
    ("x = 5", "4"), ("x = 5", "y = 5"), ("x=4=5", "5"), ("x=4=5", "4"), ("4 = 5", "5"), ("2+3=6", "6"), (r"\sqrt{16} = 5", "5"),
    ("x = 5", "x = 6"), ("y = 2x + 1", "2x - 1"), ("x + y = 5", "5"),
    # numerals with a base
    ("100_8", "100"), ("1010_2", "1010"), ("100_8", "100_9"), ("19_8", "19"),
    # roots, powers, constants
    (r"\sqrt{4}", "4"), (r"\sqrt{4}", "-2"), (r"\sqrt{2}", "2"), (r"2\sqrt{2}", r"\sqrt{2}"), (r"\sqrt{2}", r"\sqrt{3}"),
    (r"\sqrt[3]{8}", r"\sqrt{8}"), (r"\pi", "3"), (r"2\pi", r"\pi"), ("e", "3"), ("5!", "5"), ("5!", "121"), (r"\infty", r"-\infty"),
    ("i", "1"), ("2+3i", "2-3i"), (r"\sin 30^\circ", r"\frac{\sqrt{3}}{2}"), ("3+4", "8"), ("3-4", "1"), ("e^2", "2e"),
    # algebra
    ("x+1", "x-1"), ("x", "y"), ("2x", "x^2"), ("(x+1)^2", "x^2+1"), ("x^10", "x^{1}0"), (r"\frac{a}{b}", r"\frac{b}{a}"), ("x", "X"),
    ("x^2+1", "1"), ("2x+4", "4"), (r"\sqrt{x^2+1}", "x+1"), ("x^2 + y^2 = 25", "x^2 + y^2 = 24"),
    # sets, lists, tuples, intervals, inequalities, matrices
    ("1, 2", "1"), ("1, 2", "2"), ("1", "1, 2"), ("1, 2", "1, 3"), (r"\{1, 2\}", r"\{1, 2, 3\}"), ("(1, 2)", "(2, 1)"),
    ("(1, 2)", "(1, 3)"), ("(1, 2)", "2"), ("(1, 2)", "[1, 2]"), ("[0, 1)", "(0, 1]"), (r"\pm 2", "2"), ("2", r"\pm 2"),
    (r"(-\infty, 3)", r"(-\infty, 3]"), (r"(-\infty, 1) \cup (2, \infty)", r"(-\infty, 1)"), ("x > 3", "x < 3"), ("x > 3", r"x \ge 3"),
    ("x > 3", "3"), (r"n \geq 5", "5"), (r"1 < x < 2", r"1 < x \le 2"), ("(1, 2, 3)", "(1, 2)"), (r"1 \pm \sqrt{2}", r"1 + \sqrt{2}"),
    (r"\{1,2\}", "(1,2)"), (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix}"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \end{pmatrix}"),
    # letters, words, clock times, ratios
    ("A", "B"), ("(A)", "B"), ("A", "5"), (r"\textbf{(B)}\ 12", "13"), ("(C) 12", "D"), ("yes", "no"), (r"\text{even}", "odd"),
    ("no solution", "0"), ("seven", "8"), ("12:30", "12"), ("12:30", "30"), ("12:30", "12.5"), ("12:30", "12:31"), ("3:4", "3"),
    ("undefined", "0"), ("None", "0"), ("nan", "0"), ("true", False),
    # several accepted answers, worked solutions as labels
    ("3", ["1", "2"]), (r"\sqrt{2}", ["7", r"\sqrt{3}"]), ("6", "6 * 7 = 42\n#### 42"), ("5", r"so it is \boxed{4}, not 5."),
    # more of all kinds
    ("14", "41"), ("3", "3.001"), (r"-\frac{2}{3}", "2/3"), (r"(3,\pi)", r"(\pi,3)"), (r"\text{Evelyn}", "Ann"), ("p-q", "q-p"),
    ("6-5i", "6+5i"), ("[2,5)", "[2,5]"), ("(2,5]", "[2,5]"), (r"\text{(A)}", "C"), ("1,2,3", "1,2"), ("-3<x<2", "-3<x<=2"),
    ("y=x^2", "x^3"), (r"\ln 2", r"\ln 3"), ("|-3|", "-3"), ("2x", "2y"), ("x = 2, y = 3", "x=3,y=2"), ("x=2", "y=2"),
    (r"\frac{1}{2}x+3", r"\frac{1}{2x}+3"), ("3:2", "2:3"), (r"\{ \}", "0"), (r"\mathbb{R}", r"\mathbb{Z}"),
    (r"7 \pmod{12}", r"5 \pmod{12}"), (r"\overline{AB}", r"\overline{CD}"), ("6 inches", "6 feet"), (r"3 \text{ or } 4", "3"),
    ("June 20", "June 21"), ("8 a.m.", "8 p.m."), (r"5\,000", "5"), (r"x \neq 2", "x=2"), (r"x \leq -1", r"x \geq -1"),
    (r"\sqrt[4]{16}", "4"), ("8!/6!", "8"), ("0.1", "10"), (r"10\%", "10"), ("1+i", "1-i"), (r"e^{i\pi}", "1"), ("i", "-i"),
    (r"1 \le x \le 2", "(1,2)"), ("x<2", "x>2"), (r"\{x \mid x>3\}", "3"), (r"k=-2 \text{ and } k=5", "5"), ("2,3", "23"), ("1,2", "1.2"),
    ("(1,234)", "1234"), ("12", "1, 2"), ("x^2", "2x"), ("10^{-2}", "-100"), ("4", "four"), (r"\frac{4}{0}", "4"), ("0", r"\emptyset"),
    (r"3.0 \times 10^8", "3.0"), ("3 m/s", "3 s/m"), ("1", "1, 1, 2"), (r"\pi", r"\pi^2"), (r"\frac{\pi}{6}", r"\frac{\pi}{3}"),
    (r"-\infty", r"\infty"), ("AB", "BC"), (r"\text{no}", r"\text{not}"), (r"2\sqrt{5}", r"5\sqrt{2}"), ("x+y", "xy"), ("x-y", "y-x"),
    (r"\sqrt{x^2}", "x^2"), ("0.1+0.2", "0.30000001"), ("1000000", "1000001"), ("[1,2]", "(1,2)"),
    (r"\langle 1,2\rangle", r"\langle 2,1\rangle"), (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", "1, 2"), ("5^2", "52"), ("2^3", "3^2"),
    (r"\log_2 8", r"\log_8 2"), (r"A \cup B", r"A \cap B"), (r"\sin x", r"\cos x"), ("-(-5)", "-5"), (r"\frac{7}{2}", "7"),
    ("x=1 or x=2", "x=1"), ("8:15", "8.25"), (r"0.\overline{12}", "0.12"), (r"0.1\overline{2}", r"0.\overline{12}"),
    (r"1\frac{1}{2}", r"\frac{1}{2}"), (r"3\frac{1}{2}", r"\frac{3}{2}"), (r"\sqrt{-4}", "2"), ("1/(1/2)", "1/2"), ("2^{2^2}", "4"),
    ("a", r"\alpha"), ("T", "F"), (r"\text{B and C}", "B"), ("(A) 3", "B"),
    # spellings met in other projects' tests of the same kind
    ("32, 349", "32349"), (r"5 \approx 7", "7"), (r"\frac{\sqrt{3}}{3} \approx 0.577", r"\frac{\sqrt{2}}{3}"), ("2", "|AB| = 1"),
    (r"x \gt 5", "x < 5"), (r"\mathrm{E} \cdot 2", "E"), ("5", "5.001"), (r"\sqrt{67},-\sqrt{85}", r"\sqrt{67}"),
    ("x^2+2x+1", "x^3+2x+1"), ("x+2n+1", "x+1"), ("3.14159", "3.1416"), ("75", "0.75"), (r"4\sqrt{2}", "4"), ("1.22", "1,22"),
    (r"0.0833333333333333", r"\frac{1}{12}"), (r"\text{oddd}", "odd"), (r"x = 5 + 5 + 1 = 7 = 11", "11"),
    (r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}"), (r"\frac{1}{2004!}", r"\frac{1}{2006!}"), ("e^{-100}", "e^{-101}"), ("e^{-100}", "0"),
    (r"10^{-12}\sqrt{2}", r"10^{-13}\sqrt{2}"), ("10^{-9}x", "0"), (r"\sqrt{2}+10^{-12}", r"\sqrt2"), (r"\pi^{50}+1", r"\pi^{50}"),
    (r"e^{\pi\sqrt{163}}", "262537412640768744"), ("x>0.3333333", "x>1/3"), ("0.3333333x", "x/3"), (r"355/113", r"\pi"),
    (r"\begin{pmatrix}0.3333333\\1\end{pmatrix}", r"\begin{pmatrix}1/3\\1\end{pmatrix}"), (r"\ln x", r"\ln |x|"), (r"\sqrt{x^2}", "x"),
    (r"\lfloor x \rfloor + 1", r"\lceil x \rceil"), (r"4 \quad 5", "45"), ("4  5", "45"), ("2  1/2", "21/2"), ("(A) or (B)", "A"),
    ("A. or B", "A"), ("(A), (C)", "A"), ("2,1", "a=1,b=2"), ("a=2,b=1", "1,2"), ("3:30 pm", "3:30 am"), ("3:30 pm", "3:30:01"),
    ("15:30", "3:30"), (r"5 \pmod{7}", "4"), ("6=x", "5"), ("5 = x = 6", "5"), ("f(x) = 2x + 3", "y = 2x"), ("g(x) = 2", "f(x) = 2"),
    ("4 4/0", "4"), ("4 0/0", "4"), ("11 6/6", "12"), ("11 7/6", "73/6"), ("11/10 4/9", "139/90"), ("11.0 4/9", "103/9"), ("4 4/9", "4"),
    (r"\begin{cases} x=1 \\ y=2 \end{cases}", "x=2, y=1"), ("1,000, 2,000", "1, 0, 2, 0"), ("12,34", "1234"), ("1234,5678", "12345678"),
    ("-[0,1)", "1"), ("2^{10}.", "2"), ("1, 2, 3, ...", "1, 2, 3"), ("7 = 11a+c", "11a+c"), ("0", "a + 3z = 0"), ("1", "2x + z = 1"),
    (r"\frac{1}{3 \cdot 2^{2006}}", r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}"), (r"1, 3, 5, \ldots, 2n-1", r"1, 2, \ldots, n"),
    (r"Y(x)=A+\frac{B}{x}-x", r"Y(x)=-x+C+\frac{D}{x}"), ("3x+4y+14=0", "3*x-1*y+13=0"), ("1:00", "12:00"),
    ("21, 36, and 82", "19, 46, and 82"),
    (r"1 + \frac{1}{\mathrm{e}}", r"1 - \frac{1}{\mathrm{e}}"), ("(+5)(b+2)", "(a+5)(b+2)"), (r"\frac{1+\sqrt5}{2}", "2"),
    ("1/5120", "1/28800"),
    (r"F_n = \sum_{k=0}^{n-2} F_k F_{n-k-2}", r"F_n = \sum_{k=0}^{n-1} F_k F_{n-k-1}"), ("[x, x+1]", "[x+1, x]"), ("[1, 2)", "[x, y)"),
    (r"\sin(x)=\frac{42}{59}", r"\cos(x)=\frac{42}{59}"), ("e^{x}", "e^{2x}"), (r"10\sqrt{2}", "5*[1+sqrt(2)]"), ("(s, t)", "(s, y)"),
    (r"\frac{x}{10^{12}}", r"\frac{x}{10^{13}}"), (r"4 \text{ if } x > 0", "4"), ("4 + C", "4"), ("at least 4", "4"),
    (r"\text{not } 4", "4"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "label"), EQUAL)
def test_equal(answer: str, label: object) -> None:
    assert grade(rf"So the answer is \boxed{{{answer}}}.", label) == 1.0


@pytest.mark.parametrize(("answer", "label"), UNEQUAL)
def test_unequal(answer: str, label: object) -> None:
    assert grade(rf"So the answer is \boxed{{{answer}}}.", label) == 0.0


@pytest.mark.parametrize("label", [label for _, label in EQUAL if isinstance(label, str) and "boxed" not in label and "####" not in label])
def test_each_label_equals_itself(label: str) -> None:
    assert grade(rf"\boxed{{{label}}}", label) == 1.0


def test_the_table_is_in_balance_and_has_no_doubles() -> None:
    pairs = [str(pair) for pair in EQUAL + UNEQUAL]
    assert len(set(pairs)) == len(pairs)
    assert min(len(EQUAL), len(UNEQUAL)) >= 150


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
