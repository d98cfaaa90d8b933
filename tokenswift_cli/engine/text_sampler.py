"""The sampler of one text: what may be chosen where, end-of-text included; for writing and auditing alike."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tokenswift_cli.engine.sampling import Sampler
from tokenswift_cli.engine.settings import SamplingSettings
from tokenswift_cli.models.target import Target


def text_sampler(
    sampling: SamplingSettings,
    target: Target,
    *,
    prompt_tokens: int,
    end_ids: Sequence[int],
    ignore_end: bool,
    min_tokens: int,
) -> Sampler:
    """What chooses the tokens of a text.

    Args:
        sampling: what decides the text.
        target: makes the logits.
        prompt_tokens: tokens before the text.
        end_ids: end-of-text ids.
        ignore_end: never choose an end-of-text id.
        min_tokens: no end-of-text before this many tokens of the text.
    """
    return Sampler(
        sampling,
        target.vocabulary_size,
        target.device,
        held_ids=[token for token in end_ids if token < target.vocabulary_size],
        held_until=sys.maxsize if ignore_end else prompt_tokens + min_tokens,
    )
