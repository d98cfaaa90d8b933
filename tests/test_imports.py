"""Imports point one way, and nothing heavy is loaded before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tokenswift_cli

PACKAGE = Path(tokenswift_cli.__file__).parent
MODULES = {
    ".".join(("tokenswift_cli", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
HEAVY = frozenset(
    {"torch", "transformers", "safetensors", "accelerate", "gguf", "huggingface_hub", "matplotlib"}
)

# cli -> commands -> runner -> engine -> models: a layer may import itself and what stands after it.
# Training stands beside the runner: commands -> training -> engine, models.
# The report reads what runs left, and words numbers as the display does; it knows no engine and no model.
LAYERS = ("cli", "commands", "report", "runner", "training", "kv_journal", "engine", "models", "native")
# Vocabulary that any layer may use; it imports nothing but itself.
SHARED = frozenset({"errors", "events", "config", "engine.settings", "cache_dir", "shipped"})
# The display reads events only.
DISPLAY_MAY_IMPORT = frozenset({"display", "errors", "events", "config"})
# What the lowest layers use of the top level: every other module there counts as the runner.
BELOW_MAY_IMPORT = {
    "training": frozenset(
        {
            "errors",
            "config",
            "engine.settings",
            "coerce",
            "config_keys",
            "config_rules",
            "flags",
            "options",
            "yaml_config",
            "durable",
            "disk_errors",
            "lock",
            "shipped",
            "signals",
        }
    ),
    "kv_journal": frozenset({"errors", "durable", "disk_errors", "growing_file", "manifest"}),
    "engine": frozenset({"errors", "engine.settings"}),
    "models": frozenset({"errors", "config", "cache_dir", "durable", "shipped"}),
    "native": frozenset({"cache_dir"}),
}


def layer_of(module: str) -> str:
    parts = module.removeprefix("tokenswift_cli").lstrip(".").split(".")
    if parts[0] in ("", "__main__"):
        return "cli"
    return parts[0] if parts[0] in (*LAYERS, "display") else "runner"


def may_import(module: str, name: str) -> bool:
    """Whether ``module`` may import ``name``, both of this package and absolute."""
    own, inner = (full.removeprefix("tokenswift_cli").lstrip(".") for full in (module, name))
    layer, below = layer_of(module), layer_of(name)
    if inner == "":  # the version
        return layer not in ("engine", "models")
    if own in SHARED:
        return inner in SHARED
    if layer == "display":
        return inner.split(".")[0] in DISPLAY_MAY_IMPORT
    if layer in BELOW_MAY_IMPORT and (below == "runner" or inner in SHARED):
        return inner in BELOW_MAY_IMPORT[layer]
    if inner in SHARED:
        return True
    if below == "display":
        return layer in ("cli", "commands") or (layer == "report" and inner == "display.wording")
    if layer == "report" and below in ("training", "engine", "models", "native"):
        return False
    if below == "training":
        return layer in ("cli", "commands", "training")
    return LAYERS.index(below) >= LAYERS.index(layer)


def imports_of(module: str, *, at_import: bool) -> Iterator[str]:
    """Absolute names of what ``module`` imports; ``at_import``: only what runs on import."""
    stack: list[ast.AST] = [ast.parse(MODULES[module].read_text(encoding="utf-8"))]
    while stack:
        node = stack.pop()
        if at_import and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            stack.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else str(node.module)
        stack.extend(ast.iter_child_nodes(node))


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module: str) -> None:
    for name in imports_of(module, at_import=False):
        if name.split(".")[0] == "tokenswift_cli":
            assert may_import(module, name), f"{module} imports {name}"


@pytest.mark.parametrize(
    ("module", "name", "allowed"),
    [
        ("engine.engine", "runner", False),
        ("engine.engine", "session", False),
        ("engine.engine", "signals", False),
        ("engine.engine", "config", False),
        ("engine.engine", "events", False),
        ("engine.engine", "display.plain", False),
        ("engine.engine", "errors", True),
        ("engine.engine", "engine.settings", True),
        ("engine.engine", "models.target", True),
        ("models.target", "runner", False),
        ("models.target", "run_dir", False),
        ("models.target", "engine.engine", False),
        ("models.target", "commands.generate", False),
        ("models.gguf", "cache_dir", True),
        ("models.loading", "config", True),
        ("config", "options", False),
        ("config", "engine.settings", True),
        ("cache_dir", "runner", False),
        ("runner", "commands.session", False),
        ("runner", "display.base", False),
        ("runner", "session", True),
        ("session", "engine.engine", True),
        ("display.plain", "runner", False),
        ("display.plain", "events", True),
        ("commands.session", "display.choose", True),
        ("commands.session", "cli", False),
        ("cli", "commands.generate", True),
        ("cli", "training.flags", True),
        ("commands.train_heads", "training.pipeline", True),
        ("training.pipeline", "commands.train_heads", False),
        ("training.pipeline", "runner", False),
        ("training.pipeline", "session", False),
        ("training.pipeline", "display.plain", False),
        ("training.pipeline", "signals", True),
        ("training.pipeline", "models.loading", True),
        ("training.evaluate", "engine.sampling", True),
        ("runner", "training.pipeline", False),
        ("engine.engine", "training.loss", False),
        ("models.heads", "training.loss", False),
        ("session", "kv_journal.journal", True),
        ("kv_journal.journal", "session", False),
        ("kv_journal.journal", "models.kv_cache", True),
        ("engine.filling", "kv_journal.reader", False),
        ("report.run_data", "run_snapshot", True),
        ("report.run_data", "kv_journal.stretches", True),
        ("report.measures", "display.wording", True),
        ("report.page", "display.dashboard", False),
        ("report.page", "engine.sampling", False),
        ("report.run_data", "models.loading", False),
        ("report.page", "commands.verify_text", False),
        ("commands.report", "report.page", True),
        ("runner", "report.page", False),
    ],
)
def test_the_rule_tells_upward_imports(module: str, name: str, allowed: bool) -> None:
    assert may_import(f"tokenswift_cli.{module}", f"tokenswift_cli.{name}") is allowed


@pytest.mark.parametrize(
    "module",
    [name for name in MODULES if layer_of(name) not in ("training", "kv_journal", "engine", "models")],
)
def test_heavy_libraries_are_imported_only_below_the_runner(module: str) -> None:
    heavy = {name for name in imports_of(module, at_import=True) if name.split(".")[0] in HEAVY}
    assert not heavy, f"{module} imports {', '.join(heavy)} on import"


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["generate", "--help"], ["resume", "--help"], ["train-heads", "--help"], [],
     ["report", "--help"], ["report", "/no/such/run"],
     ["generate", "--prompt", "/no/such/file"], ["resume", "/no/such/run"],
     ["train-heads", "--data", "/no/such/file", "-o", "/no/such/heads"],
     ["train-heads", "--self-distill", "--prompts", "/no/such/file", "-o", "/no/such/heads"]],
)  # fmt: skip
def test_the_shell_answers_without_heavy_imports(arguments: list[str]) -> None:
    """Case 25: ``--version`` took 20 s elsewhere. Errors of usage must come at once too."""
    script = (
        "import sys; from tokenswift_cli.cli import run; code = run(sys.argv[1:]); "
        "heavy = sorted({'torch', 'transformers', 'numpy', 'tokenizers', 'matplotlib'} & set(sys.modules)); "
        "sys.exit(f'heavy: {heavy}') if heavy else sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert "heavy:" not in done.stderr
    assert done.returncode == (2 if any("/no/such" in word for word in arguments) else 0), done.stderr


@pytest.mark.parametrize("command", ["generate", "train-heads"])
def test_help_and_version_do_not_read_yaml_either(command: str) -> None:
    script = (
        f"import sys, tokenswift_cli.cli as cli; cli.run(['{command}', '-h']); "
        "sys.exit('yaml' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0
