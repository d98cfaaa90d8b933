"""One model on this machine: loaded as a run loads it, and asked what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tokenswift_cli.config import KV_DTYPES, Config, parse_rope_scaling
from tokenswift_cli.errors import PreflightError
from tokenswift_cli.preflight import Preflight, disk_need, free_disk


@dataclass(frozen=True)
class EndOfText:
    """A token that ends a text."""

    id: int
    text: str


@dataclass(frozen=True)
class ModelFacts:
    """The model in memory.

    Attributes:
        name, architecture: what it is.
        device, dtype: where it is and what its weights were loaded as.
        path: which way its passes go, and why nothing faster.
        row_invariant: whether a token's logits are the same to the bit whatever is computed with it.
        weight_bytes: its weights in memory.
        pass_bytes: bytes of weights that a pass of a few tokens reads.
        kv_dtype: the setting of the type that the key-value cache stores.
        kv_bytes_per_token: bytes one token takes in the key-value cache, by that setting.
        position_limit: positions it is made for; None if it names no limit.
        vocabulary: number of its tokens.
        end_of_text: the tokens that end a text, by ascending id.
        stretched: by what factor its positions are stretched for ``position_limit``.
    """

    name: str
    architecture: str
    device: str
    dtype: str
    path: str
    row_invariant: bool
    weight_bytes: int
    pass_bytes: int
    kv_dtype: str
    kv_bytes_per_token: dict[str, int]
    position_limit: int | None
    vocabulary: int
    end_of_text: tuple[EndOfText, ...]
    stretched: float = 1.0


@dataclass(frozen=True)
class RunNeed:
    """What a run would need.

    Attributes:
        needs: in numbers, with an empty prompt.
        lines: the same for people.
        refusal: why such a run would be refused, and what would help; None if it could start.
        smallest_refused: whether even a run of one token would be.
    """

    needs: Preflight
    lines: tuple[str, ...]
    refusal: str | None
    smallest_refused: bool


def examine_model(
    config: Config, run_directory: Path, notify: Callable[[str], None]
) -> tuple[ModelFacts, RunNeed]:
    """Load the model that ``config`` names, from this machine alone, and see what a run would need.

    Args:
        config: its ``generation.max_tokens`` is the length of the run.
        run_directory: where the run would be kept.
        notify: gets one line per slow step.

    Raises:
        TokenSwiftError: the model cannot be found, loaded or driven; says what to do.
    """
    from tokenswift_cli.models.device import stored_type
    from tokenswift_cli.models.loading import load_model
    from tokenswift_cli.models.target import Target

    loaded = load_model(replace(config.model, offline=True), notify)

    def target_with(kv_dtype: str) -> Target:
        # Of one model only the first one costs anything.
        return Target(loaded.model, 1, gguf=loaded.gguf, keep_model=False, kv_dtype=stored_type(kv_dtype))

    target = target_with(config.model.kv_dtype)
    kv_bytes = {name: target_with(name).kv_bytes_per_token for name in KV_DTYPES}
    texts = loaded.tokenizer.convert_ids_to_tokens(list(loaded.eos_ids))
    facts = ModelFacts(
        name=loaded.name,
        architecture=loaded.identity.architecture,
        device=str(target.device),
        dtype=loaded.identity.dtype,
        path=target.path,
        row_invariant=target.row_invariant,
        weight_bytes=target.weight_bytes,
        pass_bytes=target.pass_bytes,
        kv_dtype=config.model.kv_dtype,
        kv_bytes_per_token=kv_bytes,
        position_limit=loaded.position_limit,
        stretched=parse_rope_scaling(config.model.rope_scaling) or 1.0,
        vocabulary=loaded.identity.vocab_size,
        end_of_text=tuple(
            EndOfText(token, str(text)) for token, text in zip(loaded.eos_ids, texts, strict=True)
        ),
    )
    return facts, run_need(facts, config.generation.max_tokens, target.free_bytes(), free_disk(run_directory))


def run_need(facts: ModelFacts, max_tokens: int, free_bytes: int | None, free_disk_bytes: int) -> RunNeed:
    """What a run of ``max_tokens`` with a loaded model would need.

    Args:
        facts: the model.
        max_tokens: length of the run; its prompt counts nothing.
        free_bytes: memory still free where the model is; None if unknown.
        free_disk_bytes: free where the run directory would be.
    """

    def preflight(tokens: int) -> Preflight:
        return Preflight(
            prompt_tokens=0,
            max_tokens=tokens,
            position_limit=facts.position_limit,
            stretched=facts.stretched,
            weight_bytes=facts.weight_bytes,
            kv_bytes=facts.kv_bytes_per_token[facts.kv_dtype] * tokens,
            kv_dtype=facts.kv_dtype,
            free_bytes=free_bytes,
            disk_bytes=disk_need(tokens),
            free_disk_bytes=free_disk_bytes,
        )

    wanted = preflight(max_tokens)
    return RunNeed(
        needs=wanted,
        lines=tuple(wanted.lines()),
        refusal=_refusal(wanted),
        smallest_refused=_refusal(preflight(1)) is not None,
    )


def _refusal(check: Preflight) -> str | None:
    try:
        check.require_room()
    except PreflightError as error:
        return str(error)
    return None
