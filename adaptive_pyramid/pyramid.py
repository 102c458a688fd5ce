"""AdaptivePyramid: models in, text out. Everything else lives behind it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from .call_options import CallOptions, read_keywords
from .config import PyramidConfig
from .control.controller import Controller, StartStepController
from .control.factory import CONTROLS, Pool, default_config, make_controller
from .control.warm_start import WarmStart
from .decoding.decoder import PyramidDecoder
from .decoding.method import Method, resolve
from .errors import shown, unknown_name
from .generation import DecodingOptions, Generation, OnBlock
from .models import calibration, families
from .models.quantize import forward_bytes
from .output import BatchOutput, Detokenizer, PyramidOutput, StopText, padded_batch
from .profile import Profile
from .prompts import Prompt, matching_tokenizer, read_prompts, unpadded
from .request import GenerationRequest, build_request, prepared_requests
from .throughput import Acceptance
from .wrappers import unwrapped

_CALL_KEYWORDS = ("method", "config", "control", "drift_budget")


class AdaptivePyramid:
    """Pyramid speculative decoding around one target model.

    Args:
        models: from draft to target (models, `PromptLookup()`, candidate generators), or a Family.
        tokenizer: for text; default: the family's, or the one saved beside the target.
        method: "pyramid" (control chooses the route), "ar", "sd", "fsd", "psd_a", "psd_f", "polybasic" or a Method.
        profile: a Profile, or the path of one: config, method and taus found by tuning.
        config: lengths, taus and route to start from (default: the profile's, else short lengths over all tiers).
        control: "auto" (adapts for method "pyramid", else fixed), "fixed", the name of a bandit policy, or a
            Controller. Learned state is kept across calls.
        drift_budget: mean drift allowed per token; None = the output is the target's (for lossless methods).

    Raises:
        ValueError: different tokenizers, models that cannot be decoded with, a profile for another number of tiers.
    """

    def __init__(
        self,
        models: families.Family | Sequence[Any],
        tokenizer: Any = None,
        *,
        method: str | Method | None = None,
        profile: Profile | str | Path | None = None,
        config: PyramidConfig | None = None,
        control: str | Controller = "auto",
        drift_budget: float | None = None,
    ) -> None:
        self.family = models if isinstance(models, families.Family) else None
        if isinstance(models, (torch.nn.Module, str)):
            raise TypeError(
                f"models must be a list of models, draft first and target last, got {shown(models)}; "
                "for one model pass [model], for names use from_pretrained"
            )
        self.decoder = PyramidDecoder(models.models if isinstance(models, families.Family) else models)
        tiers = self.decoder.tiers
        if tokenizer is None and self.family is not None:
            tokenizer = self.family.tokenizer
        self.tokenizer = matching_tokenizer(tiers, tokenizer)
        self.profile = Profile.load(profile) if isinstance(profile, (str, Path)) else profile
        if not isinstance(self.profile, (Profile, type(None))):
            raise TypeError(f"profile must be a Profile or the path of one, got {shown(profile)}")
        if self.profile is not None:
            self.profile.warn_differences(self.description())
        self.method = method if method is not None else (self.profile.method if self.profile else "pyramid")
        if config is None:
            config = self.profile.config if self.profile else default_config(len(tiers))
        self.config = self.decoder.check(config)
        self.drift_budget = (
            drift_budget if drift_budget is not None else (self.profile.drift_budget if self.profile else None)
        )
        resolve(self.method, drift_budget=self.drift_budget)
        self.control = _checked_control(control)
        self._controllers: dict[str, Controller] = {}
        self._saved_state: dict[str, Any] = dict(self.profile.control) if self.profile is not None else {}
        self._lock = threading.RLock()

    @classmethod
    def from_pretrained(
        cls, *names: str | Path, tokenizer: Any = None, profile: Profile | str | Path | None = None, **keywords: Any
    ) -> AdaptivePyramid:
        """Load models by name or directory, draft first and target last.

        `keywords` that the constructor knows go there; all others go to `AutoModelForCausalLM.from_pretrained`
        (dtype, device_map, revision, ...).
        """
        if not names:
            raise ValueError("from_pretrained needs at least one model name: draft, ..., target")
        own = {name: keywords.pop(name) for name in ("method", "config", "control", "drift_budget") if name in keywords}
        models = [AutoModelForCausalLM.from_pretrained(name, **keywords).eval() for name in names]
        return cls(models, tokenizer, profile=profile, **own)

    @classmethod
    def from_family(
        cls,
        name: str,
        *,
        task: str | None = None,
        tokenizer: Any = None,
        profile: Profile | str | Path | None = None,
        **keywords: Any,
    ) -> AdaptivePyramid:
        """Load a family by name; `task` picks the profile that ships for it. Other keywords: the constructor's and `families.load`'s."""
        own = {key: keywords.pop(key) for key in ("method", "config", "control", "drift_budget") if key in keywords}
        if task is not None and profile is None:
            profile = Profile.shipped(name, task, keywords.get("target", "auto"))
        return cls(families.load(name, **keywords), tokenizer, profile=profile, **own)

    @classmethod
    def from_profile(cls, path: str | Path, **keywords: Any) -> AdaptivePyramid:
        """The family a profile was tuned for, with the profile's method and config."""
        profile = Profile.load(path)
        return cls.from_family(profile.family, profile=profile, **{"target": profile.target, **keywords})

    def description(self) -> dict[str, Any]:
        """What a profile is compared with: family, tiers, device, dtype, versions."""
        target = self.decoder.tiers[-1]
        names = self.family.tier_names if self.family is not None else [_name(tier) for tier in self.decoder.tiers]
        return {
            "family": self.family.name if self.family is not None else None,
            "tiers": list(names),
            "device": self.decoder.scorers[self.decoder.target].device.type,
            "dtype": str(target.dtype).removeprefix("torch."),
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }

    def generate(
        self,
        inputs: Any = None,
        *,
        attention_mask: Any = None,
        generation_config: GenerationConfig | None = None,
        streamer: Any = None,
        on_block: OnBlock | Sequence[OnBlock] = (),
        **keywords: Any,
    ) -> PyramidOutput | BatchOutput:
        """Continue a prompt or a list of prompts.

        Args:
            inputs: text, a chat (list of messages), token ids (list or tensor), an encoding (`tokenizer(...)`), or a
                list of any of these. A list gives a BatchOutput, run one after another through warm caches.
            attention_mask: as in Hugging Face; left padding is stripped.
            generation_config, streamer: as in Hugging Face (a streamer takes one prompt; it is ended after an error, too).
            on_block: called as f(stats, new_ids) after every block.
            keywords: Hugging Face generation keywords with their names and defaults (max_new_tokens, do_sample,
                temperature, top_k, top_p, min_p, repetition_penalty, logits_processor, stopping_criteria, stop_strings,
                eos_token_id, min_new_tokens, max_time, output_scores, ...; stop_strings are looked for in the new text
                alone, where `generate` also finds those that begin in the prompt; a logits processor whose scores
                depend on earlier calls says so with an attribute `stateful = True`: docs/decoding.md), and
                seed (int): of private generators (row i of a list draws with seed + i). For the same prompt, target and
                sampling settings the same seed gives the same ids: with `ar` and with `pyramid` without a drift
                budget whatever the drafts, lengths, routes and control; with every other method, and with a drift
                budget, only for the same tiers, config and max_new_tokens under control "fixed" (their default, but
                for `pyramid`; a config passed to the call fixes it, too);
                method, config, control, drift_budget: as in the constructor, for this call.

        Raises:
            TypeError: an unknown keyword. ValueError: one that asks for beams and the like, or an impossible value.
        """
        try:
            with self._lock:
                options, decoding_options = self._options(inputs, generation_config, keywords, on_block)
                prompts, batched = self._prompts(inputs, attention_mask, options, keywords)
                if streamer is not None and len(prompts) > 1:
                    raise ValueError(f"a streamer takes one prompt, got {len(prompts)}")
                outputs = []
                for row, prompt in enumerate(prompts):
                    generation = self._generation(prompt, options, decoding_options, row)
                    if streamer is not None:
                        streamer.put(torch.tensor([prompt.padding + prompt.ids]))
                    for block in generation.run():
                        for token in block.tokens if streamer is not None else ():
                            streamer.put(torch.tensor([token]))
                    outputs.append(generation.output(prompt.padding))
                return padded_batch(outputs, generation.request.pad_token_id) if batched else outputs[0]
        finally:
            # After an error, too: who reads the streamer in another thread would wait for ever.
            if streamer is not None:
                streamer.end()

    def stream(
        self,
        inputs: Any = None,
        *,
        attention_mask: Any = None,
        generation_config: GenerationConfig | None = None,
        on_block: OnBlock | Sequence[OnBlock] = (),
        **keywords: Any,
    ) -> Iterator[str]:
        """Yield text as it is verified; the pieces add up to `generate(...).text`. Arguments as in `generate`, one prompt.

        Between pieces the pyramid is free for other calls, from any thread; the iterator may be finished in another one.
        """
        if self.tokenizer is None:
            raise ValueError("stream() yields text and needs a tokenizer: pass tokenizer= to the pyramid")
        with self._lock:
            options, decoding_options = self._options(inputs, generation_config, keywords, on_block)
            prompts, _ = self._prompts(inputs, attention_mask, options, keywords)
            if len(prompts) != 1:
                raise ValueError(f"stream() takes one prompt, got {len(prompts)}")
            generation = self._generation(prompts[0], options, decoding_options)
        blocks, detokenizer, sent = generation.run(), Detokenizer(self.tokenizer), 0
        while not generation.decoding.finished:
            # Held for a block and not for the whole text: whoever began a stream may never finish it, or in another thread.
            with self._lock:
                block = next(blocks)
            for token in block.tokens:
                detokenizer.push(token)
            if generation.decoding.finished:
                detokenizer.flush()
            text = detokenizer.text[: generation.text_end]
            if len(text) > sent:
                yield text[sent:]
                sent = len(text)
        with self._lock:
            next(blocks, None)  # the run ends with its notes

    def custom_generate(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        **model_keywords: Any,
    ) -> torch.Tensor:
        """The pyramid as the loop of `target.generate(..., custom_generate=pyramid.custom_generate)`.

        Sampling, processors and stop rules are those that `generate` prepared. Its interface never passes the streamer
        on, loses the tokenizer that stop_strings need, and takes ids alone back: for streaming, stop strings and
        statistics use `AdaptivePyramid.generate`.
        """
        if unwrapped(model) is not self.decoder.tiers[-1]:
            raise ValueError("custom_generate belongs to the pyramid's own target; call generate() on that model")
        with self._lock:
            prompts = unpadded(input_ids.tolist(), model_keywords.get("attention_mask"))
            new = []
            for request in prepared_requests(prompts, logits_processor, stopping_criteria, generation_config):
                generation = self._start(request, self._decoding_options({}, ()))
                for _ in generation.run():
                    pass
                new.append(generation.decoding.new_ids)
            width = max(map(len, new))
            rows = [ids + [request.pad_token_id] * (width - len(ids)) for ids in new]
            return torch.cat([input_ids, torch.tensor(rows, dtype=torch.long, device=input_ids.device)], dim=1)

    def clear_caches(self) -> None:
        """Free the memory of every cache; the next call starts cold."""
        with self._lock:
            self.decoder.clear_caches()

    def state_dict(self) -> dict[str, Any]:
        """What control has learned so far, as plain data, by method and kind of decoding."""
        return {**self._saved_state, **{key: controller.state_dict() for key, controller in self._controllers.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Warm-start control from the `state_dict()` of another pyramid with the same tiers."""
        self._saved_state = dict(state)
        self._controllers.clear()

    def _options(
        self,
        inputs: Any,
        generation_config: GenerationConfig | None,
        keywords: Mapping[str, Any],
        on_block: OnBlock | Sequence[OnBlock],
    ) -> tuple[CallOptions, DecodingOptions]:
        """The one place that reads the keywords of a call."""
        prompt = ("input_ids",) if inputs is None else ()
        generation = {k: v for k, v in keywords.items() if k not in _CALL_KEYWORDS and k not in prompt}
        options = read_keywords(self.decoder.tiers[-1], generation_config, generation, extra=_CALL_KEYWORDS)
        return options, self._decoding_options(keywords, on_block)

    def _decoding_options(self, keywords: Mapping[str, Any], on_block: OnBlock | Sequence[OnBlock]) -> DecodingOptions:
        hooks = tuple(on_block or ()) if isinstance(on_block, (list, tuple, type(None))) else (on_block,)
        if not all(map(callable, hooks)):
            raise TypeError(f"on_block must be a callable f(stats, new_ids) or several of them, got {shown(on_block)}")
        given = keywords.get("config")
        return DecodingOptions(
            method=keywords.get("method") or self.method,
            config=self.decoder.check(self.config if given is None else given),
            # Whoever passes a config to one call wants that config, unless the call also names a control.
            control=_checked_control(keywords.get("control")) or (self.control if given is None else "fixed"),
            drift_budget=keywords.get("drift_budget", self.drift_budget),
            hooks=hooks,
        )

    def _prompts(
        self, inputs: Any, attention_mask: Any, options: CallOptions, keywords: Mapping[str, Any]
    ) -> tuple[list[Prompt], bool]:
        inputs = keywords.get("input_ids") if inputs is None else inputs
        prompts, batched = read_prompts(inputs, attention_mask, self.tokenizer, options.padding_id)
        known = self.decoder.scorers[self.decoder.target].embeddings
        for prompt in prompts:
            if not 0 <= min(prompt.ids) <= max(prompt.ids) < known:
                raise ValueError(
                    f"prompt ids must lie in 0 .. {known - 1} (the target's embeddings), got {min(prompt.ids)} .. {max(prompt.ids)}"
                )
        return prompts, batched

    def _generation(
        self, prompt: Prompt, options: CallOptions, decoding_options: DecodingOptions, row: int = 0
    ) -> Generation:
        tokenizer, stop_text = options.tokenizer or self.tokenizer, None
        if options.stop_strings:
            if tokenizer is None:
                raise ValueError("stop_strings need a tokenizer: pass tokenizer= to the pyramid or to this call")
            stop_text = StopText(tokenizer, options.stop_strings)
        limit = self.decoder.scorers[self.decoder.target].max_context
        request = build_request(self.decoder.tiers[-1], prompt, options, row, limit)
        return self._start(request, decoding_options, stop_text)

    def _start(
        self, request: GenerationRequest, options: DecodingOptions, stop_text: StopText | None = None
    ) -> Generation:
        decoding = self.decoder.start(request, options.method, options.drift_budget, stop_text)
        controller = self._controller(
            options.control, decoding.method, options.config, request.do_sample, decoding.drift_budget
        )
        return Generation(decoding, controller, self.tokenizer, stop_text, options.hooks)

    def _controller(
        self, control: str | Controller, method: Method, config: PyramidConfig, do_sample: bool, budget: float | None
    ) -> Controller:
        """One controller per way of decoding, kept across calls."""
        if not isinstance(control, str):
            return control
        route = method.route(config)
        if control == "fixed" or (control == "auto" and route is not None):
            return make_controller("fixed", route, config, self.pool())
        key = f"{control}/{method.name}/{'sample' if do_sample else 'greedy'}/{config.label}" + (
            f"/{budget:g}" if budget else ""
        )
        if key not in self._controllers:
            pool = self.pool(self._warm_start(method, config, do_sample, budget))
            controller = make_controller(control, route, config, pool, drift_budget=budget, lossless=method.lossless)
            if key in self._saved_state:
                try:
                    controller.load_state_dict(self._saved_state[key])
                except ValueError as error:
                    warnings.warn(f"control starts without what was saved for {key}: {error}", stacklevel=4)
            self._controllers[key] = controller
        return self._controllers[key]

    def _warm_start(
        self, method: Method, config: PyramidConfig, do_sample: bool, budget: float | None
    ) -> WarmStart | None:
        """What is known of acceptance: from a profile that was tuned for this very decoding, else from the family."""
        profile = self.profile
        if profile is not None and profile.describes(method.name, config, do_sample, budget):
            seen = profile.measured
            tokens = seen.get("prompts", 0) * profile.study.get("max_new_tokens", 0)
            # (a profile without a cost table was priced for a machine that nobody has: its seconds are no credit here)
            speed, ratio = seen.get("tokens_per_second") if profile.costs is not None else None, seen.get("speed_ratio")
            return WarmStart.tuned(
                config,
                seen.get("acceptance", {}),
                seen.get("acceptance_length", {}),
                tokens * ratio / speed if speed and ratio else 0.0,
                self.decoder.scorers,
            )
        reports = self.family.tiers if self.family is not None else ()
        known = {
            (tier, self.decoder.target): Acceptance(report.overlap if do_sample else report.agreement)
            for tier, report in enumerate(reports)
            if report.agreement is not None
        }
        return WarmStart(known, calibration.TOKENS * (reports[-1].seconds_per_token or 0.0)) if known else None

    def pool(self, warm_start: WarmStart | None = None) -> Pool:
        """What control may know of the tiers: which have models, what forwards cost, what is known of acceptance."""
        weights = {tier: forward_bytes(scorer.model) for tier, scorer in self.decoder.scorers.items()}
        costs = self.profile.costs if self.profile is not None else None
        return Pool.of(len(self.decoder.tiers), weights, costs, warm_start)


def _checked_control(control: Any) -> Any:
    """`control` if it is the name of one, None, or a Controller; else ValueError or TypeError."""
    if isinstance(control, str) and control not in CONTROLS:
        raise ValueError(unknown_name("control", control, CONTROLS))
    if control is None or isinstance(control, str) or hasattr(control, "begin"):
        return control
    if all(hasattr(control, name) for name in ("start", "step", "notes")):
        warnings.warn(
            f"{type(control).__name__} has start() and step(), which will not be called for long; "
            "give it begin(request), as adaptive_pyramid.control.controller.Controller describes",
            DeprecationWarning,
            stacklevel=3,
        )
        return StartStepController(control)
    raise TypeError(f"control must be a name ({', '.join(CONTROLS)}) or a Controller, got {shown(control)}")


def _name(tier: Any) -> str:
    saved = tier.config._name_or_path if isinstance(tier, PreTrainedModel) else ""
    return saved or type(tier).__name__
