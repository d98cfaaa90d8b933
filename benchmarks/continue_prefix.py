"""Continue a prefix of a real book with the product itself, once per method, and print a Markdown table.

    python benchmarks/continue_prefix.py --book FILE --prefix-tokens 2048 --tokens 512

Each method runs as a user would run it (``tokenswift generate --json``), in a process of its own, so that
peak memory is its own. The methods take turns for ``--repeats`` rounds; the table holds medians. All texts
must be equal, or the benchmark fails.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenswift_cli.config import DEMO_MODEL, ModelConfig
from tokenswift_cli.engine.settings import METHODS

MIB = 1 << 20


def prefix_of_tokens(tokenizer, text: str, tokens: int) -> str:
    """The shortest prefix of ``text`` that encodes to exactly ``tokens`` tokens."""
    offsets = tokenizer(text[: tokens * 16], return_offsets_mapping=True)["offset_mapping"]
    if len(offsets) < tokens:
        raise SystemExit(f"the book holds only {len(offsets)} tokens")
    end = offsets[tokens - 1][1]
    # A cut inside a word may encode differently: look a little further for one that does not.
    for cut in range(end, end + 200):
        if len(tokenizer(text[:cut])["input_ids"]) == tokens:
            return text[:cut]
    raise SystemExit(f"no prefix encodes to exactly {tokens} tokens")


def run(method: str, prompt: Path, run_dir: Path, tokens: int, model: str, more: list[str]) -> dict:
    """Summary of one run of the product."""
    command = [
        sys.executable, "-m", "tokenswift_cli", "generate", "-m", model, "-p", str(prompt),
        "-o", str(run_dir), "-n", str(tokens), "--ignore-eos", "--method", method, "--json",
        "--progress", "none", *more,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--book", type=Path, required=True)
    parser.add_argument("--prefix-tokens", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--model", default=DEMO_MODEL)
    parser.add_argument("--methods", default=",".join(reversed(METHODS)))
    parser.add_argument("--repeats", type=int, default=3)
    arguments, more = parser.parse_known_args()

    from tokenswift_cli.models.loading import load_model

    loaded = load_model(ModelConfig(name=arguments.model), lambda message: None)
    text = arguments.book.read_bytes().decode("utf-8-sig")
    prefix = prefix_of_tokens(loaded.tokenizer, text, arguments.prefix_tokens)
    weights = sum(p.numel() * p.element_size() for p in loaded.model.parameters())
    del loaded

    methods = arguments.methods.split(",")
    results: dict[str, list[dict]] = {method: [] for method in methods}
    texts = set()
    with tempfile.TemporaryDirectory() as folder:
        prompt = Path(folder) / "prefix.txt"
        prompt.write_bytes(prefix.encode())
        for repeat in range(arguments.repeats):
            for method in methods:
                run_dir = Path(folder) / f"{method}-{repeat}"
                result = run(method, prompt, run_dir, arguments.tokens, arguments.model, more)
                metrics = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
                result["kv_bytes"] = metrics[-1]["kv_bytes"]
                texts.add((run_dir / "tokens.bin").read_bytes())
                results[method].append(result)
                print(f"{method}: {result['tokens_per_second']:.1f} tokens/s", file=sys.stderr)
    if len(texts) != 1:
        raise SystemExit("the methods wrote different texts")

    def median(method: str, name: str) -> float | None:
        values = [result[name] for result in results[method]]
        return None if None in values else statistics.median(values)

    print(
        f"{arguments.book.name}, prefix {arguments.prefix_tokens} tokens, {arguments.tokens} new tokens, "
        f"median of {arguments.repeats}; weights {weights / MIB:.0f} MiB\n"
    )
    print(
        "| method | tokens/s | acceptance rate | mean acceptance length | Distinct-1..4 "
        "| KV cache MiB | peak MiB |\n|---|---|---|---|---|---|---|"
    )
    for method in methods:
        rate, length = median(method, "acceptance_rate"), median(method, "mean_acceptance_length")
        distinct = " ".join(f"{value:.2f}" for value in results[method][0]["distinct"])
        cells = [
            method,
            f"{median(method, 'tokens_per_second'):.1f}",
            "-" if rate is None else f"{rate:.2f}",
            "-" if length is None else f"{length:.2f}",
            distinct,
            f"{median(method, 'kv_bytes') / MIB:.0f}",
            f"{median(method, 'peak_process_bytes') / MIB:.0f}",
        ]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
