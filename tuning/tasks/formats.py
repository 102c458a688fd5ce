"""Examples of a task, and the readers of the public file formats that they come in.

A reader (`FORMATS[name].parse`) turns one row into the fields that a task's prompt template may use, one dict per user
turn, plus the reference. Rows may carry more fields than a format names: they stay readable in `Example.meta`.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adaptive_pyramid.errors import unknown_name

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Example:
    """One prompt of a task: `turns` are the user's messages in order, `history` is a fixed chat before them.

    `reference` is what the task's scorer compares an output with; `meta` keeps the other fields of the row.
    """

    id: str
    turns: tuple[str, ...]
    reference: Any = None
    system: str | None = None
    history: tuple[dict[str, str], ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)

    def messages(self, replies: Sequence[str] = ()) -> list[dict[str, str]]:
        """The chat whose answer is reply number len(replies): earlier turns alternate with `replies`.

        Raises ValueError when every turn already has its reply.
        """
        if len(replies) >= len(self.turns):
            raise ValueError(f"example {self.id!r} has {len(self.turns)} turn(s), none after {len(replies)} replies")
        chat = [{"role": "system", "content": self.system}] if self.system else []
        chat += [dict(message) for message in self.history]
        for turn, reply in zip(self.turns, replies):
            chat += [{"role": "user", "content": turn}, {"role": "assistant", "content": reply}]
        return chat + [{"role": "user", "content": self.turns[len(replies)]}]


@dataclass(frozen=True)
class Parsed:
    """One row, read: `turns[i]` holds the template's fields for user turn i. `id` None: named after file and line."""

    turns: Sequence[Mapping[str, str]]
    reference: Any
    id: str | None
    meta: Mapping[str, Any]
    system: str | None = None
    history: Sequence[dict[str, str]] = ()


@dataclass(frozen=True)
class Format:
    """A public file format: the template fields that it offers, and the function that reads one row."""

    fields: tuple[str, ...]
    parse: Callable[[Row], Parsed]


def _text(row: Row, key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected {key!r} to be a non-empty string, got {value!r}")
    return value


def _texts(row: Row, key: str) -> list[str]:
    values = row.get(key)
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise ValueError(f"expected {key!r} to be a non-empty list of strings, got {values!r}")
    for value in values:
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"expected every entry of {key!r} to be a non-empty string, got {value!r}")
    return list(values)


def _rest(row: Row, *used: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in used}


def _id(row: Row, *keys: str) -> str | None:
    return next((str(row[key]) for key in keys if row.get(key) not in (None, "")), None)


def parse_csqa(row: Row) -> Parsed:
    """CommonsenseQA: `choices` as {label: [...], text: [...]} (hub) or the original `question.stem/choices[]`."""
    question = row.get("question")
    if isinstance(question, Mapping):
        stem, listed = _text(question, "stem"), question.get("choices")
        if not isinstance(listed, Sequence) or not all(isinstance(choice, Mapping) for choice in listed):
            raise ValueError(f"expected 'question.choices' to be a list of objects with label and text, got {listed!r}")
        labels, texts = [_text(choice, "label") for choice in listed], [_text(choice, "text") for choice in listed]
        meta = {**_rest(question, "stem", "choices"), **_rest(row, "id", "question", "answerKey")}
    else:
        stem, listed = _text(row, "question"), row.get("choices")
        if not isinstance(listed, Mapping):
            raise ValueError(f"expected 'choices' to be an object with the lists label and text, got {listed!r}")
        labels, texts = _texts(listed, "label"), _texts(listed, "text")
        meta = _rest(row, "id", "question", "choices", "answerKey")
    if len(labels) != len(texts) or len(set(labels)) != len(labels) or len(labels) < 2:
        raise ValueError(f"expected two or more choices, distinct labels and a text for each, got {labels}, {texts}")
    if row.get("answerKey") not in labels:
        raise ValueError(
            f"expected 'answerKey' to be one of {', '.join(labels)}, got {row.get('answerKey')!r}"
            " (the public test split has no answers: use the validation split)"
        )
    lines = "\n".join(f"{label}. {text}" for label, text in zip(labels, texts))
    return Parsed(
        [{"question": stem, "choices": lines}],
        row["answerKey"],
        _id(row, "id"),
        {**meta, "choices": dict(zip(labels, texts))},
    )


def parse_gsm8k(row: Row) -> Parsed:
    """GSM8K: `question`, and `answer` = worked steps and, after ####, the final number."""
    answer = _text(row, "answer")
    steps, mark, final = answer.rpartition("####")
    if not mark or not final.strip():
        raise ValueError(f"expected 'answer' to end with '#### <number>', got {answer[-60:]!r}")
    return Parsed(
        [{"question": _text(row, "question")}],
        final.strip(),
        _id(row, "id"),
        {**_rest(row, "id", "question", "answer"), "steps": steps.strip()},
    )


def parse_humaneval(row: Row) -> Parsed:
    """HumanEval: `prompt` (signature and docstring), `test` (defines check(candidate)), `entry_point`."""
    if f"def {_text(row, 'entry_point')}(" not in _text(row, "prompt"):
        raise ValueError(f"expected 'prompt' to define the entry point {row['entry_point']!r}")
    return Parsed([{"prompt": row["prompt"]}], _text(row, "test"), _id(row, "task_id"), _rest(row, "task_id", "test"))


def parse_spec_bench(row: Row) -> Parsed:
    """Spec-Bench: `question_id`, `category`, `turns`. Its optional `reference` stays in meta: it is not scored."""
    meta = {**_rest(row, "question_id", "turns"), "category": _text(row, "category")}
    return Parsed([{"text": turn} for turn in _texts(row, "turns")], None, _id(row, "question_id"), meta)


def parse_long_context(row: Row) -> Parsed:
    """LongBench: `context`, `input` (the question; `question` is read too), `answers` (any of them counts)."""
    key = "input" if "input" in row else "question"
    return Parsed(
        [{"context": _text(row, "context"), "question": _text(row, key)}],
        _texts(row, "answers"),
        _id(row, "_id", "id"),
        _rest(row, "context", key, "answers", "_id", "id"),
    )


def parse_prompts(row: Row) -> Parsed:
    """A prompt of one's own: exactly one of `prompt`, `text`, `messages`; `reference`, `system`, `id` are optional."""
    given = [key for key in ("prompt", "text", "messages") if key in row]
    if len(given) != 1:
        raise ValueError(f"expected exactly one of 'prompt', 'text' and 'messages', got {given or sorted(row)}")
    system = _text(row, "system") if row.get("system") is not None else None
    history: list[dict[str, str]] = []
    turns = [] if given == ["messages"] else [_text(row, given[0])]
    if not turns:
        system, history, turns = _chat(row["messages"], system)
    return Parsed(
        [{"text": turn} for turn in turns],
        row.get("reference"),
        _id(row, "id"),
        _rest(row, "id", "reference", "system", *given),
        system,
        history,
    )


def _chat(messages: Any, system: str | None) -> tuple[str | None, list[dict[str, str]], list[str]]:
    """(system, history, turns). With assistant messages, the last user message is the turn and the rest its history."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise ValueError(f"expected 'messages' to be a non-empty list of {{role, content}}, got {messages!r}")
    for message in messages:
        if not isinstance(message, Mapping) or message.get("role") not in ("system", "user", "assistant"):
            raise ValueError(f"expected a message with role system, user or assistant, got {message!r}")
        _text(message, "content")
    chat = [{"role": message["role"], "content": message["content"]} for message in messages]
    if chat[0]["role"] == "system":
        if system is not None:
            raise ValueError("expected one system message, got both the field 'system' and a message of that role")
        system, chat = chat[0]["content"], chat[1:]
    if not chat or chat[-1]["role"] != "user":
        raise ValueError("expected the last message to be the user's (an expected reply belongs in 'reference')")
    if all(message["role"] == "user" for message in chat):
        return system, [], [message["content"] for message in chat]
    return system, chat[:-1], [chat[-1]["content"]]


FORMATS = {
    "csqa": Format(("question", "choices"), parse_csqa),
    "gsm8k": Format(("question",), parse_gsm8k),
    "humaneval": Format(("prompt",), parse_humaneval),
    "long_context": Format(("context", "question"), parse_long_context),
    "prompts": Format(("text",), parse_prompts),
    "spec_bench": Format(("text",), parse_spec_bench),
}


def check_template(template: str, fields: Sequence[str]) -> None:
    """Raise ValueError unless `template` is a format string that uses fields of `fields` only, and at least one."""
    try:
        used = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ValueError(f"prompt is no valid template ({error}); write literal braces as {{{{ and }}}}") from None
    for name in used:
        if name not in fields:
            raise ValueError(unknown_name("field in prompt", name, fields))
    if not used:
        raise ValueError(f"prompt uses none of its fields ({', '.join(fields)}): every example would read the same")


def read_file(path: Path, format_name: str) -> Iterator[tuple[str, Row]]:
    """Yield (where, row) for every non-blank line; a .txt of format `prompts` has one prompt per line.

    Raises FileNotFoundError for a missing file, ValueError (file, line, what was expected) for a malformed line.
    """
    if not path.is_file():
        raise FileNotFoundError(f"data file {str(path)!r} does not exist or is no file (expected {format_name} format)")
    plain = format_name == "prompts" and path.suffix == ".txt"
    for number, raw in enumerate(path.read_bytes().split(b"\n"), start=1):
        where = f"{path}, line {number}"
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            row = {"text": line} if plain else json.loads(line) if line else {}
        except UnicodeDecodeError as error:
            raise ValueError(f"{where}: expected UTF-8 text ({error})") from None
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{where}: expected one JSON object per line ({error}), got {line[:60]!r}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{where}: expected a JSON object, got {line[:60]!r}")
        if line:
            yield where, row


def build_examples(
    rows: Iterable[tuple[str, Row]],
    format_name: str,
    template: str,
    source: str,
    system: str | None = None,
    fewshot: Sequence[dict[str, str]] = (),
) -> list[Example]:
    """The examples of `rows` ((where, row) pairs), with `template` filled in for every turn.

    `system` holds where a row brings none; the messages `fewshot` come before a row's own history. Rows without an id
    are called `source`-1, `source`-2, ...

    Raises ValueError naming `where` for a row that does not fit the format, for an id that occurs twice, and for none.
    """
    examples: list[Example] = []
    seen: dict[str, str] = {}
    for where, row in rows:
        try:
            parsed = FORMATS[format_name].parse(row)
        except ValueError as error:
            raise ValueError(f"{where}: {error} (format {format_name})") from None
        name = parsed.id or f"{source}-{len(examples) + 1}"
        if name in seen:
            raise ValueError(f"{where}: expected a new id, got {name!r}, which {seen[name]} has")
        seen[name] = where
        turns = tuple(template.format(**fields) for fields in parsed.turns)
        examples.append(
            Example(name, turns, parsed.reference, parsed.system or system, (*fewshot, *parsed.history), parsed.meta)
        )
    if not examples:
        raise ValueError(f"{source}: expected at least one example in {format_name} format, got none")
    return examples
