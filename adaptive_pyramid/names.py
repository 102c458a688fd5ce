"""The names of methods, rules and divergences, for what must know them without loading torch."""

from __future__ import annotations

METHOD_NAMES = ("ar", "sd", "fsd", "psd_a", "psd_f", "polybasic", "pyramid")
RULE_NAMES = ("exact", "match", "fuzzy", "relaxed")
DIVERGENCE_NAMES = ("js", "tv", "kl", "kl_rev", "logit_gap", "topk_1", "topk_5", "topk_20")
