"""What a chat model's output answers: a choice's letter, a number, a Python program. None where it does not say.

Small models hedge, restate the options or stop half-way. The parsers prefer None (counted as unparsed, scored as wrong)
to a guess that could be right by luck.
"""

from __future__ import annotations

import ast
import re
import textwrap
import unicodedata
import warnings
from collections.abc import Mapping
from decimal import Decimal

# What announces an answer ("Answer:", "the correct option would be", LaTeX's box), and what may stand between it and
# the letter.
CUE = re.compile(
    r"""\b(?:answer|option|choice)\b[\s*_`"']*
                     (?:(?:(?:is|are|was|be|would|should|must)\b|[:=])[\s*_`"']*)+
        | \\boxed\s*\{""",
    re.I | re.X,
)
DECORATION = re.compile(
    r"""(?:[\s*_`"'“”‘’$({\[<] | \\boxed | \\text(?:bf)? | \b(?:the\s+)?(?:option|choice|letter)\b)+""", re.I | re.X
)
# What stands between thousands: commas, the spaces of ISO 31-0 (no-break, narrow, thin, figure, plain), apostrophes
# (Swiss), underscores (Python). One number keeps to one of them.
THOUSANDS = ",\u00a0\u202f\u2009\u2007 '’_"
# A minus after a word or a bracket is a subtraction, not a sign: "10-5" ends in 5. Points separate thousands only where
# there are two of them: "1.000" is one, to three decimals.
NUMBER = re.compile(
    rf"""(?<![0-9])(?<![0-9]\.)  (?:(?<![\w)\]])-\$? | \$-?)?
                        (?:[1-9][0-9]{{0,2}}(?:\.[0-9]{{3}}){{2,}}(?![0-9.,])
                          | (?:[1-9][0-9]{{0,2}}(?P<mark>[{THOUSANDS}])[0-9]{{3}}(?:(?P=mark)[0-9]{{3}})*(?![0-9])
                               | [0-9]+)(?:\.[0-9]+)?
                          | (?<!\.)\.[0-9]+)
                        (?:[eE][+-]?[0-9]{{1,2}}(?!\w))?""",
    re.X,
)
BOX = re.compile(r"\\boxed\s*\{([^\n]*)")
# Markdown's two kinds of fence; the closing one is as long as the opening one.
FENCE = re.compile(
    r"(?:(?P<ticks>`{3,})[^\n`]*|^[ \t]*(?P<tildes>~{3,})[^\n]*)\n(?P<code>.*?)"
    r"(?:^[ \t]*(?(ticks)(?P=ticks)|(?P=tildes))|\Z)",
    re.S | re.M,
)
CODE_LINE = re.compile(r"^(?:(?:def|async def|from|import|class)\b|@)", re.M)


def normalised(text: str) -> str:
    """Unicode-compatible, case-folded, with single spaces: what texts are compared in."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def find_choice(output: str, choices: Mapping[str, str]) -> str | None:
    """The label in `choices` ({label: text}) that `output` settles on, or None.

    In this order: the last cue ("Answer: X", "the answer is X", "\\boxed{X}") that a label or an option's text follows;
    a line that is a label alone, also as an item of a list ("1. X", "- X"); the one label written as "(X)", "X." or
    "X)"; the one option whose text occurs, in the last line, then anywhere. Two different labels at one step, or a hedge
    ("Answer: A or B"), are no answer.
    """
    output = unicodedata.normalize("NFKC", output)
    labels = "|".join(re.escape(label) for label in sorted(choices, key=len, reverse=True))
    hedge = re.compile(rf"(?:{labels})[)\]]?\s*(?:,|/|&|\bor\b|\band\b)\s*[(\[]?(?:option\s+)?(?:{labels})\b")
    for cue in reversed(list(CUE.finditer(output))):
        tail = output[cue.end() :]
        decoration = DECORATION.match(tail)
        tail = tail[decoration.end() :] if decoration else tail
        if hedge.match(tail):
            return None
        found = _leading_text(tail, choices) or _leading_label(tail, choices, labels)
        if found:
            return found
    # Where labels are numbers, "1. B" may as well be option 1.
    item = r"[-•>#]+\s*" if any(label[0].isdigit() for label in choices) else r"(?:[-•>#]+|[0-9]{1,2}[.):])\s*"
    lines = [
        re.sub(rf"^(?:{item})?[\s*_`\"'(\[]*(?:(?:answer|option|choice)\s+)?", "", line, flags=re.I)
        for line in (line.strip(" \t*_`\"'().[]") for line in output.splitlines())
        if line
    ]
    marked = re.findall(rf"\(({labels})\)", output) + re.findall(
        rf"(?:^|(?<=[\s*\"'`]))({labels})(?:[.:](?=\s|\*|$)|\))", output, re.M
    )
    for candidates in (
        [line for line in lines if line in choices],
        marked,
        _texts_in(lines[-1] if lines else "", choices),
        _texts_in(output, choices),
    ):
        if candidates:
            return candidates[0] if len(set(candidates)) == 1 else None
    return None


def _leading_label(tail: str, choices: Mapping[str, str], labels: str) -> str | None:
    """The label at the start of `tail`; a small letter counts only when it stands alone (not the article "a")."""
    match = re.match(rf"({labels})(?![\w'’-])", tail)
    if match:
        return match[1]
    match = re.match(rf"({labels})[)\].:*_\"'`}}$]*\s*(?:\n|$)", tail, re.I)
    return next((label for label in choices if match and label.lower() == match[1].lower()), None)


def _leading_text(tail: str, choices: Mapping[str, str]) -> str | None:
    """The option whose text, an article aside, is the rest of the line ("Answer: A kitchen." with option kitchen)."""
    line = normalised(tail.splitlines()[0] if tail.strip() else "").strip(" *_`\"'().,!:;")
    found = [
        label
        for label, text in choices.items()
        if line in {f"{article}{normalised(text)}" for article in ("", "a ", "an ", "the ")}
    ]
    return found[0] if len(found) == 1 else None


def _texts_in(output: str, choices: Mapping[str, str]) -> list[str]:
    """Labels of the options whose text occurs; the longest option wins the words it shares ("park" in "state park")."""
    texts = {label: normalised(text) for label, text in choices.items()}
    rest, found = normalised(output), []
    for text in sorted(set(texts.values()), key=len, reverse=True):
        rest, count = re.subn(rf"(?<!\w){re.escape(text)}(?!\w)", "\0", rest)
        found += [label for label in texts if count and texts[label] == text]
    return found


def find_number(output: str) -> Decimal | None:
    """The number after the last "####" if there is one, else in the last \\boxed{}, else the last of `output`, or None.

    Reads thousands in groups of three (1,000, 1 000 with any of the spaces that typesetters use, 1'000, 1_000,
    1.000.000, LaTeX's 1{,}000), a currency sign, decimals, a minus sign (also the Unicode one) and small exponents; a
    per cent sign is dropped (25% is 25). "10-5" ends in 5, not in -5. Not read: decimal commas ("3,5" ends in 5),
    fractions ("1/2" ends in 2), numbers in words.
    """
    text = output
    for written, plain in (("−", "-"), ("{,}", ","), ("\\$", "$"), ("\\,", "\u2009"), ("€", "$"), ("£", "$")):
        text = text.replace(written, plain)
    marked = text.rpartition("####")[2] if "####" in text else ""
    boxes = BOX.findall(text)
    for part, pick in ((marked, 0), (_until_brace(boxes[-1]) if boxes else "", -1), (text, -1)):
        found = [match[0] for match in NUMBER.finditer(part)]
        if found:
            plain = found[pick].replace(".", "") if found[pick].count(".") > 1 else found[pick]
            return Decimal(re.sub(rf"[$\s{THOUSANDS}]", "", plain))
    return None


def _until_brace(text: str) -> str:
    """`text` up to the brace that closes what was opened before it."""
    depth = 1
    for index, char in enumerate(text):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if not depth:
            return text[:index]
    return text


def find_program(output: str, prompt: str, entry_point: str) -> str | None:
    """The Python program that `output` amounts to as an answer to a HumanEval `prompt`, or None if none parses.

    Takes a block fenced by ``` or ~~~ that defines `entry_point` before any other, and plain text where there is no
    fence. A whole function replaces the prompt's (imports and helpers above it stay), and so does a `class Solution`
    with a method of that name; anything else is the function's body. Trailing lines that do not parse (prose, a
    function cut off by the token limit) are left out. Not read: methods of classes of another name, `lambda`s.
    """
    preamble = prompt[: prompt.rindex(f"def {entry_point}(")]
    blocks = [match["code"] for match in FENCE.finditer(output)] or [output]
    definition = re.compile(rf"^[ \t]*def {re.escape(entry_point)}\(", re.M)
    whole = [textwrap.dedent(block) for block in blocks if definition.search(block)]
    if whole:
        code = whole[0]
        starts = [0, *(match.start() for match in CODE_LINE.finditer(code))]  # prose may come before the code
        attempts = [(preamble, code[start:]) for start in starts]
    else:
        body = blocks[0].strip("\n")
        attempts = [(prompt.rstrip() + "\n", form) for form in (body, textwrap.indent(body, "    "), "    " + body)]
    programs = [_longest_parsing(before, code, entry_point) for before, code in attempts]
    kept, program = max(programs, key=lambda found: found[0])
    return program if kept else None


def _longest_parsing(before: str, code: str, entry_point: str) -> tuple[int, str]:
    """(lines kept, program) for the longest prefix of `code` in lines that answers with `entry_point`; else (0, "")."""
    lines = code.splitlines()
    for kept in range(len(lines), 0, -1):
        program = before + "\n".join(lines[:kept]) + "\n"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(program)
                compile(tree, "<answer>", "exec")  # also refuses what parses, such as a return outside a function
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if any(_answers(node, entry_point) for node in tree.body):
            return kept, program
        solutions = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Solution")
        if any(_answers(method, entry_point) for solution in solutions for method in solution.body):
            return kept, f"{program}\n{entry_point} = Solution().{entry_point}\n"
    return 0, ""


def _answers(node: ast.stmt, entry_point: str) -> bool:
    """Whether `node` defines `entry_point` with more in its body than docstrings, names, imports, definitions, `pass`."""
    idle = (ast.Pass, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    if not isinstance(node, ast.FunctionDef) or node.name != entry_point:
        return False
    values = [line.value if isinstance(line, ast.Expr) else line for line in node.body]
    return any(not isinstance(value, (*idle, ast.Constant, ast.Name)) for value in values)
