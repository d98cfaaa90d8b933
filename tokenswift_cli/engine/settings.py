"""What the engine can be told, as frozen values with their defaults. Imports nothing heavy.

This is the one place for these defaults: the YAML configuration and the command line read them
from here.
"""

from __future__ import annotations

from dataclasses import dataclass

METHODS = ("auto", "tokenswift", "heads", "lookup", "autoregressive")

# What can draft; a method uses those of them that it knows.
DRAFTERS = ("suffix", "ngram", "heads", "self")

# Instead of a heads directory: do without.
NO_HEADS = "none"


@dataclass(frozen=True)
class SamplingSettings:
    """Everything that decides the text, besides model and prompt.

    Attributes:
        seed: key of the counter-based noise; 0 .. 2**63 - 1.
        temperature: divides the logits; 0 means greedy (no noise).
        top_k: keep the k best logits (ties kept); 0 is off.
        top_p: keep the smallest set of most likely tokens whose mass reaches top_p; 1 is off.
        min_p: keep tokens with probability >= min_p * max probability (arXiv 2407.01082); 0 is off.
        eta: eta-sampling's epsilon (arXiv 2210.15191); 0 is off.
        penalty: contextual penalty theta (TokenSwift, section 3.4); 1 is off.
        penalty_window: number of last tokens, prompt included, whose logits are penalised.
        suppress_ids: token ids that can never be chosen.
    """

    seed: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.1
    eta: float = 0.0
    penalty: float = 1.2
    penalty_window: int = 1024
    suppress_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class DraftingSettings:
    """Everything that decides the speed and nothing of the text.

    Attributes:
        method: one of :data:`METHODS`. "auto" may use all drafters, "lookup" those that cost nothing,
            "heads" the heads alone (Medusa style); "tokenswift" is the paper: heads on a one-step
            self-draft, a fixed tree, n-grams of the drafted token.
        drafters: names of :data:`DRAFTERS` that may be used.
        heads: directory of the drafting heads; None or :data:`NO_HEADS` for none.
        head_widths: proposals of each head in the tree of "tokenswift" (paper: 3, 3, 3 after the one
            self-drafted token).
        ngram_size: length n of the n-grams that are reused (paper: 4).
        ngram_candidates: most frequent continuations offered per key (paper: 20); 0 is off.
        suffix_max_draft: longest draft the suffix automaton offers, in tokens.
        self_depth: longest chain the target drafts for itself, in tokens.
        partial_cache: rows of the cache it drafts over; 0 is 4096 for "tokenswift" (the paper), else 1024.
        partial_sinks: first tokens of the text that always stay in it (paper: 16).
        shared_noise: drafts know the noise of each position; off only to measure what that is worth.
        max_nodes: most drafted tokens verified in one forward pass.
        prefill_chunk: prompt tokens per prefill forward.
    """

    method: str = "auto"
    drafters: tuple[str, ...] = DRAFTERS
    heads: str | None = None
    head_widths: tuple[int, ...] = (3, 3, 3)
    ngram_size: int = 4
    ngram_candidates: int = 20
    suffix_max_draft: int = 16
    self_depth: int = 6
    partial_cache: int = 0
    partial_sinks: int = 16
    shared_noise: bool = True
    max_nodes: int = 15
    prefill_chunk: int = 512

    @property
    def uses_heads(self) -> bool:
        """Whether the method drafts with heads that are given."""
        if self.heads in (None, NO_HEADS):
            return False
        return self.method in ("heads", "tokenswift") or (self.method == "auto" and "heads" in self.drafters)

    @property
    def partial_rows(self) -> int:
        """Rows of the cache that the target drafts over.

        A draft pass reads the weights as well, so that ever smaller caches save ever less; 1024 rows keep
        most of the acceptance (docs/benchmarks.md).
        """
        return self.partial_cache or (4096 if self.method == "tokenswift" else 1024)

    @property
    def most_nodes(self) -> int:
        """Most drafted tokens that one forward pass of the method verifies."""
        if self.method != "tokenswift":
            return self.max_nodes
        nodes, level = 1, 1
        for width in self.head_widths:
            level *= width
            nodes += level
        return nodes + 1 + self.ngram_candidates * (self.ngram_size - 1)
