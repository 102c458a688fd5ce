"""Logits processors with a state of their own: watermarks that count their calls, grammars that are advanced per call.

`generate` calls a processor once per token. A verifier asks for several positions at once, some of them behind a token
that is refused, and every tier that draws asks as well. Here each of these calls goes to a copy that has been called for
exactly the tokens before it, and the state that counts follows the verified text.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.generation import logits_process as hf

# The other processors in transformers.generation give the same scores for the same ids, however often they are called
# (but for one of Dia's, an encoder-decoder).
_STATEFUL_IN_TRANSFORMERS = (
    hf.SynthIDTextWatermarkLogitsProcessor,
    hf.UnbatchedClassifierFreeGuidanceLogitsProcessor,
)


def declared(processor: Any) -> bool | None:
    """Whether `processor` keeps a state that its calls change; None = not known.

    A processor says so itself with an attribute `stateful`, True or False; transformers' own are known.
    """
    own = getattr(processor, "stateful", None)
    if own is not None:
        return bool(own)
    if isinstance(processor, _STATEFUL_IN_TRANSFORMERS):
        return True
    if type(processor).__module__.startswith("transformers.generation.") or isinstance(
        processor, (FunctionType, MethodType)
    ):
        return False
    return None


def observed(processor: Any, ids: torch.Tensor, scores: torch.Tensor) -> bool:
    """Whether a second call with the same input gives other scores or leaves other attributes; asked of a copy.

    Not every state shows in this way (one outside the object does not), so `stateful` is the sure way. A processor that
    cannot be copied is taken for one without a state.
    """
    try:
        trial = _copy(processor)
        # What is set up once, at the first call, is no state: compared are the first and the second.
        seen = [(trial(ids, scores.clone()), _attributes(trial)) for _ in range(2)]
    except Exception:
        return False
    (first, before), (second, after) = seen
    return not torch.equal(first, second) or before != after


class StatefulProcessor:
    """One processor through one decoding. The object given stays as it was: each row of a batch starts from the same.

    Raises:
        TypeError: a processor that cannot be copied.
    """

    def __init__(self, processor: Any) -> None:
        try:
            self._at_verified = _copy(processor)  # called for every verified token, not yet for the next one
        except Exception as error:
            raise TypeError(
                f"logits processor {type(processor).__name__} is stateful and cannot be copied ({error}); a copy is needed "
                "for every proposed token: give it a __deepcopy__"
            ) from error
        self._verified: int | None = None
        # Ids behind the verified text -> a copy that has been called there, too. Of several tiers that look at the same
        # text the last counts, and that is the one nearest to the target: what it accepts, it has called for itself.
        self._called: dict[tuple[int, ...], Any] = {}

    def scores(
        self, text: Sequence[int], verified: int, end: int, ids: torch.Tensor, row: torch.Tensor
    ) -> torch.Tensor:
        """The processor's scores [1, V] for the token after `text[:end]`.

        Args:
            text: ids without padding, the first `verified` of them final. ids: what the processor sees, long [1, n].
            row: scores [1, V]; may be written to.
        """
        self._follow(text, verified)
        behind = tuple(text[verified:end])
        state = _copy(self._called[behind[:-1]] if behind else self._at_verified)
        scores = state(ids, row)
        self._called[behind] = state
        return scores

    def _follow(self, text: Sequence[int], verified: int) -> None:
        """Move the state along with the verified text."""
        if self._verified is None:
            self._verified = verified
        if verified > self._verified:
            self._at_verified = self._called[tuple(text[self._verified : verified - 1])]
            self._called.clear()
            self._verified = verified


def wrapped(
    processor: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ids: torch.Tensor, scores: torch.Tensor
) -> StatefulProcessor | None:
    """`processor` with its states kept apart, if it has any; `ids` [1, n] and `scores` [1, V] are those of its first call."""
    known = declared(processor)
    if known is None:
        known = observed(processor, ids, scores)
    return StatefulProcessor(processor) if known else None


def _copy(processor: Any) -> Any:
    # Models and tokenizers are read and not changed: copying them would cost their memory at every token. Nor are
    # SynthID's own tables, half a megabyte: its state is an object beside them.
    kinds = (torch.nn.Module, PreTrainedTokenizerBase)
    if type(processor) is hf.SynthIDTextWatermarkLogitsProcessor:
        kinds += (torch.Tensor,)
    values = getattr(processor, "__dict__", {}).values()
    return copy.deepcopy(processor, {id(value): value for value in values if isinstance(value, kinds)})


def _attributes(processor: Any) -> bytes | None:
    """The processor's attributes in a form that can be compared; None where there is none."""
    values = {
        name: value
        for name, value in getattr(processor, "__dict__", {}).items()
        if not isinstance(value, (torch.nn.Module, PreTrainedTokenizerBase))
    }
    try:
        return pickle.dumps(values)
    except Exception:
        return None
