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

# What announces an answer ("Answer:", "the correct option would be"), and what may stand between it and the letter.
CUE = re.compile(
    r"""\b(?:answer|option|choice)\b[\s*_`"']*
                     (?:(?:(?:is|are|was|be|would|should|must)\b|[:=])[\s*_`"']*)+""",
    re.I | re.X,
)
DECORATION = re.compile(
    r"""(?:[\s*_`"'“”‘’$({\[<] | \\boxed | \\text(?:bf)? | \b(?:the\s+)?(?:option|choice|letter)\b)+""", re.I | re.X
)
# A minus after a word or a bracket is a subtraction, not a sign: "10-5" ends in 5.
NUMBER = re.compile(
    r"""(?<![0-9])(?<![0-9]\.)  (?:(?<![\w)\]])-\$? | \$-?)?
                        (?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9]) | [0-9]+)(?:\.[0-9]+)? | (?<!\.)\.[0-9]+)
                        (?:[eE][+-]?[0-9]{1,2}(?!\w))?""",
    re.X,
)
FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.S | re.M)
CODE_LINE = re.compile(r"^(?:(?:def|async def|from|import|class)\b|@)", re.M)


def normalised(text: str) -> str:
    """Unicode-compatible, case-folded, with single spaces: what texts are compared in."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def find_choice(output: str, choices: Mapping[str, str]) -> str | None:
    """The label in `choices` ({label: text}) that `output` settles on, or None.

    In this order: the last cue ("Answer: X", "the answer is X") that a label or an option's text follows; a line that
    is a label alone; the one label written as "(X)", "X." or "X)"; the one option whose text occurs, in the last line,
    then anywhere. Two different labels at one step, or a hedge ("Answer: A or B"), are no answer.
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
    lines = [
        re.sub(r"^(?:answer|option|choice)\s+", "", line.strip(" \t*_`\"'().[]"), flags=re.I)
        for line in output.splitlines()
        if line.strip()
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
    """The number after the last "####" if there is one, else the last number of `output`, or None.

    Reads thousands commas (also LaTeX's 1{,}000), a currency sign, decimals, a minus sign (also the Unicode one) and
    small exponents; a per cent sign is dropped (25% is 25). "10-5" ends in 5, not in -5.
    """
    text = output
    for written, plain in (("−", "-"), ("{,}", ","), ("\\$", "$"), ("\\,", ""), ("€", "$"), ("£", "$")):
        text = text.replace(written, plain)
    marked = text.rpartition("####")[2] if "####" in text else ""
    for part, pick in ((marked, 0), (text, -1)):
        found = [match[0] for match in NUMBER.finditer(part)]
        if found:
            return Decimal(re.sub(r"[\s$,]", "", found[pick]))
    return None


def find_program(output: str, prompt: str, entry_point: str) -> str | None:
    """The Python program that `output` amounts to as an answer to a HumanEval `prompt`, or None if none parses.

    Takes a fenced block that defines `entry_point` before any other, and plain text where there is no fence. A whole
    function replaces the prompt's (imports and helpers above it stay); anything else is the function's body. Trailing
    lines that do not parse (prose, a function cut off by the token limit) are left out.
    """
    preamble = prompt[: prompt.rindex(f"def {entry_point}(")]
    blocks = FENCE.findall(output) or [output]
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
    return 0, ""


def _answers(node: ast.stmt, entry_point: str) -> bool:
    """Whether `node` defines `entry_point` with more in its body than docstrings, bare names, imports and `pass`."""
    idle = (ast.Pass, ast.Import, ast.ImportFrom)
    if not isinstance(node, ast.FunctionDef) or node.name != entry_point:
        return False
    values = [line.value if isinstance(line, ast.Expr) else line for line in node.body]
    return any(not isinstance(value, (*idle, ast.Constant, ast.Name)) for value in values)
