"""Models as other libraries hand them over: inside a wrapper, or with their weights resting elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel


def unwrapped(model: Any) -> Any:
    """The transformers model inside the wrappers of `torch.compile` and PEFT (whose adapters work in place); anything
    else comes back as it is.

    Raises:
        ValueError: an adapter that works outside the model (prompt tuning, prefix tuning and the like).
    """
    while isinstance(model, torch.nn.Module) and not isinstance(model, PreTrainedModel):
        if type(model).__module__.partition(".")[0] == "peft":
            _check_adapters(model)
            # `base_model` of a PeftModel is a tuner (LoraModel, say), whose `model` is the transformers model.
            inner = next((model._modules[name] for name in ("base_model", "model") if name in model._modules), None)
        else:
            inner = model._modules.get("_orig_mod")
        if inner is None:
            break
        model = inner
    return model


def _check_adapters(model: torch.nn.Module) -> None:
    configs = getattr(model, "peft_config", None)
    for name, config in configs.items() if isinstance(configs, dict) else ():
        kind = getattr(config.peft_type, "value", config.peft_type)
        if config.is_prompt_learning or kind == "XLORA" or getattr(config, "alora_invocation_tokens", None):
            raise ValueError(
                f"adapter {name!r} ({type(config).__name__}) works outside the layers of the model and cannot be decoded "
                "with here; expected one within them, such as LoRA"
            )


def execution_device(model: PreTrainedModel) -> torch.device:
    """Where `model` takes token ids: where its embedding is, or where accelerate brings it from CPU memory or disk.

    Raises:
        ValueError: weights on the meta device that nothing will load.
    """
    embedding = model.get_input_embeddings()
    hooks = [hook for module in (embedding, model) for hook in _hooks(module)]
    device = next((hook.execution_device for hook in hooks if hook.execution_device is not None), None)
    if device is None:
        device = embedding.weight.device
    if torch.device(device).type == "meta":
        raise ValueError(f"the weights of this {type(model).__name__} are on the meta device; expected loaded weights")
    return torch.device(device)


def _hooks(module: torch.nn.Module) -> list[Any]:
    hook = getattr(module, "_hf_hook", None)
    return [one for one in getattr(hook, "hooks", [hook]) if hasattr(one, "execution_device")]
