"""What is expected of every kind of causal LM in `tests/sweep.py`: the result, and words of the reason."""

from __future__ import annotations

_KINDS: dict[tuple[str, str], str] = {
    ("equal", ""): """
        afmoe apertus apertus1p5_text arcee aria_text axk1 bart beam bert bert-generation big_bird
        bigbird_pegasus biogpt bitnet blenderbot blenderbot-small bloom camembert codegen cohere cohere2
        cohere2_moe cohere_compass_text ctrl cwm data2vec-text dbrx deepseek_v2 deepseek_v3 diffllama doge dory
        dots1 electra emu3 ernie ernie4_5 ernie4_5_moe exaone exaone4 exaone_moe falcon flex_olmo flint fuyu
        gemma gemma2 gemma3 gemma3_text gemma3n_text gemma4 gemma4_text gemma4_unified gemma4_unified_text git
        glm glm4 glm4_moe glm4_moe_lite got_ocr2 gpt-sw3 gpt2 gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese
        gpt_oss gptj granite granite_swa granitemoe granitemoe_swa granitemoeshared helium hrm_text
        hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax internlm3 iquestcoder jais2 jetmoe kolibri1 laguna
        lfm2 llama llama4 llama4_text longcat_flash marian mbart megatron-bert mellum mimo_v2_flash minicpm3
        minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral mllama modernbert-decoder
        moss_transcribe_diarize mpt mvp nanochat nemotron olmo olmo2 olmo3 olmoe opt pegasus persimmon phi phi3
        phi4_multimodal phimoe plbart qwen2 qwen2_moe qwen3 qwen3_moe rembert roberta roberta-prelayernorm
        roc_bert roformer sarvam_mla sarvam_moe seed_oss smollm3 solar_open stablelm starcoder2 trocr
        vaultgemma whisper xglm xlm-roberta xlm-roberta-xl xmod youtu
    """,
    ("not built", "AttributeError"): """
        blt musicgen musicgen_melody
    """,
    ("not built", "ImportError"): """
        gemma3n
    """,
    ("not built", "ValueError"): """
        gemma4_assistant gemma4_unified_assistant xlstm
    """,
    ("refused", "cannot go on from a cropped"): """
        cpmant prophetnet xlm
    """,
    ("refused", "leaves its sliding window"): """
        moshi
    """,
    ("refused", "recurrent state"): """
        bailing_hybrid bamba deepseek_v4 falcon_h1 falcon_mamba granitemoehybrid inkling2_loop_text
        inkling2_text inkling_text jamba kimi_linear lara_mini lfm2_moe lfm3 mamba mamba2 minimax nemotron_h
        olmo_hybrid qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp qwen4_exp_text
        recurrent_gemma rwkv zamba zamba2 zaya
    """,
    ("refused", "selects keys with an index"): """
        axk2 deepseek_v32 dots3_note dots3_note_text glm_moe_dsa hy_v4
    """,
    ("refused", "takes no key/value cache"): """
        openai-gpt reformer xlnet
    """,
}

# kind -> (result, words that its reason holds)
EXPECTED: dict[str, tuple[str, str]] = {kind: why for why, listed in _KINDS.items() for kind in listed.split()}
