"""Your own models, draft first and target last: the pyramid's output is the target's, and how much sooner it was there.

    python examples/own_models.py DRAFT [QUALIFIER] TARGET [--dtype bfloat16] [--tokens 100]

Each is a directory or the name of a model on the hub; all of them must share one tokenizer. The target alone runs first, with
Hugging Face `generate`, as the reference.
"""

from __future__ import annotations

import argparse
import time

from transformers import AutoModelForCausalLM, AutoTokenizer

from adaptive_pyramid import AdaptivePyramid

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("models", nargs="+", help="directories or hub names, draft first, target last")
parser.add_argument("--dtype", default="float32", help="of the weights (default: %(default)s)")
parser.add_argument("--tokens", type=int, default=100, help="longest answer (default: %(default)s)")
parser.add_argument("--prompt", default="The quick brown fox jumps over the lazy dog, and then")
options = parser.parse_args()

models = [AutoModelForCausalLM.from_pretrained(name, dtype=options.dtype).eval() for name in options.models]
tokenizer = AutoTokenizer.from_pretrained(options.models[-1])
encoded = tokenizer(options.prompt, return_tensors="pt")
target = models[-1]

started = time.perf_counter()
reference = target.generate(**encoded.to(target.device), max_new_tokens=options.tokens, do_sample=False)
seconds = time.perf_counter() - started

pyramid = AdaptivePyramid(models, tokenizer)
out = pyramid.generate(options.prompt, max_new_tokens=options.tokens)
print(out.text)
print(out.stats)
print(f"target alone: {(reference.shape[1] - encoded['input_ids'].shape[1]) / seconds:.1f} tokens/s")
print("same ids as the target alone:", out.sequences.tolist() == reference.tolist())
