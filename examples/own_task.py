"""A task of your own: write its YAML file and its prompts, tune decoding for it, and use the profile that comes out.

    python examples/own_task.py FOLDER [--family smollm2-135m] [--trials 12] [--questions 6] [--tokens 24]

FOLDER receives capitals.yaml (the task; docs/tasks.md lists its keys), capitals.jsonl (its prompts), and what tuning writes:
the profile, the trials as a table, a report, and the study, from which the same command continues.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from adaptive_pyramid import AdaptivePyramid
from tuning import search

TASK = """\
name: capitals
description: Name the capital.
format: prompts
data: capitals.jsonl
prompt: "What is the capital of {text}? Answer with one word."
scorer: contains
max_new_tokens: 16
"""
CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Portugal": "Lisbon",
    "Germany": "Berlin",
    "Austria": "Vienna",
    "Poland": "Warsaw",
    "Greece": "Athens",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Finland": "Helsinki",
    "Ireland": "Dublin",
    "Japan": "Tokyo",
    "Peru": "Lima",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Cuba": "Havana",
    "Canada": "Ottawa",
}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", type=Path, metavar="FOLDER")
parser.add_argument("--family", default="smollm2-135m", help="a family's name or YAML file")
parser.add_argument("--trials", type=int, default=12, help="configs to try (default: %(default)s)")
parser.add_argument("--questions", type=int, default=6, help="prompts per trial (default: %(default)s)")
parser.add_argument("--tokens", type=int, default=24, help="tokens timed per prompt (default: %(default)s)")
options = parser.parse_args()

options.folder.mkdir(parents=True, exist_ok=True)
task, profile = options.folder / "capitals.yaml", options.folder / "profile.yaml"
task.write_text(TASK, encoding="utf-8")
lines = [json.dumps({"prompt": country, "reference": capital}) for country, capital in CAPITALS.items()]
(options.folder / "capitals.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

# The same as `python -m tuning.search --task capitals.yaml --out profile.yaml ...`
arguments = {
    "--task": task,
    "--out": profile,
    "--family": options.family,
    "--trials": options.trials,
    "--questions": options.questions,
    "--max-new-tokens": options.tokens,
}
code = search.main([str(word) for pair in arguments.items() for word in pair])
if code:
    sys.exit(code)

pyramid = AdaptivePyramid.from_family(options.family, profile=profile)
chat = [{"role": "user", "content": "What is the capital of Belgium? Answer with one word."}]
out = pyramid.generate(chat, max_new_tokens=options.tokens)
print(out.text)
print(out.stats)
