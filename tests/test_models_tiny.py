"""The helpers of `tiny` keep what they promise; many other tests stand on them."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoTokenizer

from tests.tiny import ARCHITECTURES, EOS, agreement, graded_family, greedy_text, perturbed, tiny_model, tiny_tokenizer


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_neighbours_of_a_graded_family_agree_often_but_not_always(arch):
    for seed in range(3):
        family = graded_family(arch, seed=seed)
        ids = greedy_text(family[-1], 30)
        assert len(set(ids[0, 4:].tolist())) >= 6, "greedy output collapsed"
        for below, above in zip(family, family[1:]):
            assert 0.2 <= agreement(below, above, ids) <= 0.95, (arch, seed)


def test_perturbed_leaves_the_source_alone_and_is_repeatable():
    model = tiny_model("llama")
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    one, other = perturbed(model, 0.1, seed=3), perturbed(model, 0.1, seed=3)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name])
        assert torch.equal(one.get_parameter(name), other.get_parameter(name))
    assert not torch.equal(one.lm_head.weight, model.lm_head.weight)


def test_tiny_model_is_seeded_and_leaves_the_global_random_state_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(tiny_model("gpt2", seed=1).lm_head.weight, tiny_model("gpt2", seed=1).lm_head.weight)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("size", [52, 64, 300])
def test_tiny_tokenizer_has_the_size_asked_for_and_keeps_text_and_template(size, tmp_path):
    tokenizer = tiny_tokenizer(size)
    assert len(tokenizer) == size
    text = "the rain, in 1984: (soft) isn't here.\nno?"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert max(tokenizer("the rain in the tea").input_ids) < size
    assert all(tokenizer.decode([i]) for i in range(size))
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    chat = [{"role": "user", "content": "hello"}]
    for one in (tokenizer, again):
        assert one.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) == (
            "<bos>user: hello\nassistant: "
        )
        assert one(text).input_ids == tokenizer(text).input_ids
        assert one.eos_token_id == EOS
    with pytest.raises(ValueError, match="vocab_size"):
        tiny_tokenizer(10)
