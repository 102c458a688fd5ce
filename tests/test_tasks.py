"""Tasks: the YAML files, the readers of public formats, subsets and splits."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml

from tuning.tasks.formats import Example
from tuning.tasks.task import FOLDER, load_task, split, task_names

NAMES = ["csqa", "gsm8k", "humaneval", "long_context", "prompts", "spec_bench"]


def jsonl(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def own_task(folder: Path, **changes: object) -> Path:
    spec = {"name": "mine", "format": "prompts", "scorer": "agreement", "data": "mine.jsonl", **changes}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in spec.items() if value is not None}), encoding="utf-8")
    return path


CSQA = {
    "id": "q1",
    "question": "Where do boats sail?",
    "question_concept": "boat",
    "choices": {"label": ["A", "B"], "text": ["lake", "attic"]},
    "answerKey": "A",
}
ORIGINAL = {
    "id": "q1",
    "answerKey": "A",
    "question": {
        "stem": "Where do boats sail?",
        "question_concept": "boat",
        "choices": [{"label": "A", "text": "lake"}, {"label": "B", "text": "attic"}],
    },
}


def test_every_shipped_task_loads_and_says_that_it_is_a_sample():
    assert task_names() == NAMES
    for name in NAMES:
        task = load_task(name)
        assert task.is_sample and "sample" in task.label and "not the benchmark" in task.label
        assert len({example.id for example in task.examples}) == len(task.examples)
        assert all(example.messages()[-1]["role"] == "user" for example in task.examples)


def test_sizes_of_the_samples():
    sizes = {name: len(load_task(name).examples) for name in NAMES}
    assert sizes["csqa"] >= 80 and sizes["gsm8k"] >= 24 and sizes["humaneval"] >= 12 and sizes["spec_bench"] >= 24


def test_csqa_sample_is_five_way_and_its_letters_are_balanced():
    examples = load_task("csqa").examples
    letters = [example.reference for example in examples]
    assert {letters.count(letter) for letter in "ABCDE"} == {len(examples) // 5}
    for example in examples:
        assert list(example.meta["choices"]) == list("ABCDE") and len(set(example.meta["choices"].values())) == 5
    assert len({example.turns for example in examples}) == len(examples)


def test_spec_bench_sample_covers_the_thirteen_categories_and_has_second_turns():
    examples = load_task("spec_bench").examples
    assert {example.meta["category"] for example in examples} == {
        "writing",
        "roleplay",
        "reasoning",
        "math",
        "coding",
        "extraction",
        "stem",
        "humanities",
        "translation",
        "summarization",
        "qa",
        "math_reasoning",
        "rag",
    }
    assert {len(example.turns) for example in examples} == {1, 2}


def test_long_contexts_are_long_varied_and_state_their_answer():
    for example in load_task("long_context").examples:
        words = example.turns[0].split()
        eights = [tuple(words[i : i + 8]) for i in range(len(words) - 7)]
        assert len(words) > 1550 and len(set(eights)) > 0.85 * len(eights)
        assert any(answer in example.turns[0] for answer in example.reference)


def test_csqa_reads_both_public_nestings_alike(tmp_path):
    flat = load_task("csqa", data=jsonl(tmp_path / "flat.jsonl", CSQA)).examples
    nested = load_task("csqa", data=jsonl(tmp_path / "nested.jsonl", ORIGINAL)).examples
    assert flat == nested
    assert flat[0].turns == ("Where do boats sail?\nA. lake\nB. attic",)
    assert flat[0].meta == {"question_concept": "boat", "choices": {"A": "lake", "B": "attic"}}


def test_data_given_is_not_called_a_sample(tmp_path):
    task = load_task("csqa", data=jsonl(tmp_path / "dev.jsonl", CSQA))
    assert not task.is_sample and task.label == "CommonsenseQA (dev.jsonl)"


def test_gsm8k_takes_the_number_after_the_hashes(tmp_path):
    row = {"question": "How many?", "answer": "2 * 600 = 1200\n#### 1,200"}
    example = load_task("gsm8k", data=jsonl(tmp_path / "g.jsonl", row)).examples[0]
    assert example.reference == "1,200" and example.meta["steps"] == "2 * 600 = 1200" and example.id == "gsm8k-1"


def test_multi_turn_chat_grows_with_the_replies():
    example = Example("x", ("first", "second"), system="be brief")
    system, first = {"role": "system", "content": "be brief"}, {"role": "user", "content": "first"}
    assert example.messages() == [system, first]
    assert example.messages(["yes"]) == [
        system,
        first,
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "second"},
    ]
    with pytest.raises(ValueError, match="2 turn"):
        example.messages(["yes", "no"])


def test_prompts_from_text_has_one_prompt_per_line(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_bytes("\ufefffirst {braces}\r\n\n  second\u2028still second \n".encode())
    assert [example.turns for example in load_task("prompts", data=path).examples] == [
        ("first {braces}",),
        ("second\u2028still second",),
    ]


def test_prompts_from_jsonl(tmp_path):
    user = {"role": "user", "content": "hello"}
    reply, again = {"role": "assistant", "content": "hi"}, {"role": "user", "content": "again"}
    path = jsonl(
        tmp_path / "p.jsonl",
        {"prompt": "a", "id": 7},
        {"text": "b", "tag": 1},
        {"messages": [{"role": "system", "content": "s"}, user, reply, again]},
        {"messages": [user, again]},
    )
    a, b, chat, turns = load_task("prompts", data=path).examples
    assert (a.id, a.turns, b.turns, dict(b.meta)) == ("7", ("a",), ("b",), {"tag": 1})
    assert chat.messages() == [{"role": "system", "content": "s"}, user, reply, again]
    assert turns.turns == ("hello", "again")


@pytest.mark.parametrize(
    "task, line, expected",
    [
        ("csqa", "{not json", "one JSON object per line"),
        ("csqa", "[1, 2]", "a JSON object"),
        ("csqa", json.dumps({**CSQA, "answerKey": ""}), "'answerKey' to be one of A, B"),
        ("csqa", json.dumps({**CSQA, "choices": ["lake"]}), "'choices' to be an object"),
        ("csqa", json.dumps({**CSQA, "choices": {"label": ["A", "A"], "text": ["x", "y"]}}), "distinct labels"),
        ("gsm8k", json.dumps({"question": "How many?", "answer": "12"}), "#### <number>"),
        ("gsm8k", json.dumps({"answer": "#### 12"}), "'question' to be a non-empty string"),
        ("humaneval", json.dumps({"prompt": "def f(x):", "entry_point": "g", "test": "t"}), "entry point 'g'"),
        ("spec_bench", json.dumps({"question_id": 1, "category": "qa", "turns": []}), "'turns' to be a non-empty list"),
        ("long_context", json.dumps({"context": "c", "input": "q", "answers": [""]}), "'answers' to be a non-empty"),
        ("prompts", json.dumps({"prompt": "a", "text": "b"}), "exactly one of"),
        ("prompts", json.dumps({"messages": [{"role": "assistant", "content": "x"}]}), "last message"),
        ("prompts", json.dumps({"messages": [{"role": "tool", "content": "x"}]}), "role system, user or assistant"),
    ],
)
def test_a_malformed_line_is_named_with_file_line_and_what_was_expected(tmp_path, task, line, expected):
    path = tmp_path / "bad.jsonl"
    path.write_text("\n" + line + "\n", encoding="utf-8")
    with pytest.raises(ValueError) as caught:
        load_task(task, data=path)
    assert f"{path}, line 2: " in str(caught.value) and expected in str(caught.value)


def test_missing_empty_and_undecodable_data(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.jsonl.*csqa format"):
        load_task("csqa", data=tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(ValueError, match="at least one example"):
        load_task("csqa", data=tmp_path / "empty.jsonl")
    (tmp_path / "latin.txt").write_bytes(b"fine\n\xff\xfe\n")
    with pytest.raises(ValueError, match="line 2: expected UTF-8"):
        load_task("prompts", data=tmp_path / "latin.txt")
    with pytest.raises(ValueError, match="line 2: expected a new id, got 'q1', which .*line 1"):
        load_task("csqa", data=jsonl(tmp_path / "twice.jsonl", CSQA, CSQA))


def test_limit_takes_the_first_of_a_seeded_permutation():
    ids = [
        [example.id for example in load_task("csqa", limit=k, seed=s).examples]
        for k, s in ((10, 0), (20, 0), (10, 0), (10, 1), (10_000, 0))
    ]
    ten, twenty, again, other, everything = ids
    assert ten == again == twenty[:10] == everything[:10] and ten != other
    assert sorted(everything) == [example.id for example in load_task("csqa").examples]
    for limit, error in ((0, ValueError), (2.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="limit"):
            load_task("csqa", limit=limit)


def test_split_is_disjoint_seeded_and_complete():
    task = load_task("gsm8k")
    calibration, held_out = split(task, 0.25, seed=3)
    ids = [{example.id for example in part} for part in (calibration, held_out)]
    assert not ids[0] & ids[1] and ids[0] | ids[1] == {example.id for example in task.examples}
    assert len(calibration) == round(0.25 * len(task.examples))
    assert split(task, 0.25, seed=3)[0] == calibration != split(task, 0.25, seed=4)[0]
    for fraction in (0.0, 1.0, 0.001):
        with pytest.raises(ValueError, match="calibration"):
            split(task, fraction)


def test_a_task_of_ones_own_is_one_yaml_with_data_beside_it(tmp_path, monkeypatch):
    jsonl(tmp_path / "mine.jsonl", {"prompt": "2 + 2?", "reference": 4})
    shot = {"user": "1 + 1?", "assistant": "2"}
    path = own_task(
        tmp_path, scorer="number", prompt="Sum: {text} {{n}}", system="Add.", fewshot=[shot], max_new_tokens=9
    )
    monkeypatch.chdir(FOLDER)
    task = load_task(str(path))
    assert task.examples[0].messages() == [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "Sum: 2 + 2? {n}"},
    ]
    assert (task.label, task.max_new_tokens, task.is_sample) == ("mine (mine.jsonl)", 9, False)
    assert task.score(["It is 4."]).value == 1.0


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"promt": "{text}"}, ValueError, "did you mean 'prompt'"),
        ({"scorer": "choise"}, ValueError, "did you mean 'choice'"),
        ({"format": "gsm8"}, ValueError, "did you mean 'gsm8k'"),
        ({"prompt": "{txt}"}, ValueError, "did you mean 'text'"),
        ({"prompt": "{text"}, ValueError, "no valid template"),
        ({"prompt": "no field"}, ValueError, "uses none of its fields"),
        ({"format": "csqa"}, ValueError, "lacks 'prompt'"),
        ({"scorer": None}, ValueError, "lacks 'scorer'"),
        ({"scorer": "choice"}, ValueError, "format csqa"),
        ({"scorer": "contains"}, ValueError, "expected a reference"),
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens must be at least 1"),
        ({"sample": "yes"}, TypeError, "sample must be true or false"),
        ({"label": 3}, TypeError, "label must be text"),
        ({"hub": {"path": "x", "splt": "y"}}, ValueError, "did you mean 'split'"),
        ({"fewshot": [{"user": "a", "asistant": "b"}]}, ValueError, "did you mean 'assistant'"),
        ({"data": None}, ValueError, "names no data"),
    ],
)
def test_mistakes_in_a_yaml_are_named(tmp_path, changes, error, message):
    jsonl(tmp_path / "mine.jsonl", {"prompt": "hello"})
    with pytest.raises(error, match=message):
        load_task(own_task(tmp_path, **changes))


def test_unknown_names_and_files(tmp_path):
    with pytest.raises(ValueError, match="unknown task 'csqq'; did you mean 'csqa'"):
        load_task("csqq")
    with pytest.raises(FileNotFoundError, match="gone.yaml"):
        load_task(tmp_path / "gone.yaml")
    (tmp_path / "list.yaml").write_text("- a\n")
    with pytest.raises(ValueError, match="must be a mapping with name, label"):
        load_task(tmp_path / "list.yaml")


def test_hub_goes_through_datasets(monkeypatch):
    calls = []

    def load_dataset(path, name, split):
        calls.append((path, name, split))
        return [{"question": "How many?", "answer": "#### 3"}, {"question": "And now?", "answer": "#### 4"}]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    task = load_task("gsm8k", data="hub")
    assert calls == [("openai/gsm8k", "main", "test")]
    assert [example.reference for example in task.examples] == ["3", "4"] and not task.is_sample


def test_hub_without_datasets_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"adaptive-pyramid\[hub\]"):
        load_task("csqa", data="hub")
    with pytest.raises(ValueError, match="names no hub dataset"):
        load_task("spec_bench", data="hub")


def test_tasks_import_no_torch():
    code = "import sys, tuning.tasks; tuning.tasks.load_task('csqa'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parents[2]).returncode == 0
