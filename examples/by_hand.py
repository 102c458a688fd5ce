"""Blocks by hand: another config for every block, chosen from what the last one showed; and a vertical cascade.

    python examples/by_hand.py [--family smollm2-135m] [--tokens 60]

A vertical cascade as in Cascade Speculative Drafting (arXiv 2312.11462) needs no code of its own: a lookup under a small
model under the target is the route (0, 1, 2).
"""

from __future__ import annotations

import argparse

from adaptive_pyramid import AdaptivePyramid, PyramidConfig
from adaptive_pyramid.request import GenerationRequest

PROMPT = [{"role": "user", "content": "List the days of the week, then list them again in reverse order."}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=60)
    options = parser.parse_args()
    if options.tokens < 1:
        parser.error(f"--tokens must be at least 1, got {options.tokens}")

    pyramid = AdaptivePyramid.from_family(options.family)
    text = pyramid.tokenizer.apply_chat_template(PROMPT, add_generation_prompt=True, tokenize=False)
    prompt = pyramid.tokenizer(text, add_special_tokens=False)["input_ids"]
    request = GenerationRequest(
        tuple(prompt), max_new_tokens=options.tokens, eos=frozenset([pyramid.tokenizer.eos_token_id])
    )

    # The cascade: every tier drafts for the one above it. As long as all is accepted, ask for more at a time.
    config = PyramidConfig.simple([4] * (len(pyramid.decoder.tiers) - 1))
    blocks = pyramid.decoder.blocks(request, config, method="polybasic")
    ids, block = [], next(blocks)
    while block is not None:
        ids += block.tokens
        top = block.stats.stages[-1]
        print(f"{config.label:>16}  {block.stats.tokens} tokens  drafted by tier {block.stats.origins}")
        length = min(16, config.l_Q + 2) if not top.rejected else max(2, config.l_Q // 2)
        config = config.with_stage(config.target, length=length)
        try:
            block = blocks.send(config)
        except StopIteration:
            block = None
    print(pyramid.tokenizer.decode(ids, skip_special_tokens=True))


if __name__ == "__main__":
    main()
