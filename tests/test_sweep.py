"""Every causal LM of transformers, tiny: equal to `generate` in every way of decoding, or refused when the pyramid is made.

`python -m tests.sweep` is the long form. A kind that the table does not know yet must be one or the other, too, if it can be
made tiny from its defaults; one that the installed transformers lacks is skipped.
"""

from __future__ import annotations

import pytest
import torch

from tests.sweep import outcome
from tests.sweep_table import EXPECTED
from tests.tiny_kinds import kinds

torch.set_num_threads(1)


@pytest.mark.parametrize("kind", sorted({*EXPECTED, *kinds()}))
def test_kind(kind: str) -> None:
    if kind not in kinds():
        pytest.skip(f"this transformers has no {kind}")
    found = outcome(kind, new_tokens=10, prompts=1)
    if kind not in EXPECTED:
        if found.result == "not built":
            pytest.skip(f"{kind} is new and cannot be made tiny from its defaults: {found.reason}")
        assert found.result in ("equal", "refused"), found.reason
        return
    result, reason = EXPECTED[kind]
    assert found.result == result and reason in found.reason, found
