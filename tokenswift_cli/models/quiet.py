"""Keep the libraries below from writing on the terminal, which belongs to our own display."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def quiet_libraries() -> None:
    """Turn off progress bars and all messages below errors of transformers and huggingface_hub."""
    from huggingface_hub.utils import disable_progress_bars
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging as transformers_logging

    hub_logging.set_verbosity_error()
    disable_progress_bars()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


@contextmanager
def no_gguf_progress_bar() -> Iterator[None]:
    """Hide the one bar that transformers draws whatever its settings say: the one over GGUF tensors."""
    from functools import partial

    from transformers import modeling_gguf_pytorch_utils as reader

    original = getattr(reader, "tqdm", None)
    if original is None:
        yield
        return
    reader.tqdm = partial(original, disable=True)
    try:
        yield
    finally:
        reader.tqdm = original
