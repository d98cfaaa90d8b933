"""What ``tokenswift doctor`` found, in words: a few sections of labelled lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tokenswift_cli.display.wording import size, visible
from tokenswift_cli.doctor.storage import CONVERTED, FOLDERS, OTHER, CacheEntry, HubModel, Place, ShippedFiles

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tokenswift_cli.doctor.devices import Devices
    from tokenswift_cli.doctor.examination import Findings
    from tokenswift_cli.doctor.kernels import ForwardPaths, Kernels
    from tokenswift_cli.doctor.model import ModelFacts, RunNeed
    from tokenswift_cli.doctor.packages import Packages

_KIBIBYTE: Final = 1 << 10
_MEBIBYTE: Final = 1 << 20
_WAYS: Final = {
    "native": "native (the whole pass compiled)",
    "lean": "lean (few torch operators)",
    "generic": "generic (the model's own code with our attention)",
}
# Entries of the Hub's cache that are listed; the JSON form has them all.
_MOST_MODELS: Final = 12
# The configuration that the last line suggests.
_DEMO: Final = "demo"


@dataclass(frozen=True)
class Section:
    """A title and lines of (label, value); an empty label goes on with the one above."""

    title: str
    lines: tuple[tuple[str, str], ...]


def sections(findings: Findings) -> list[Section]:
    """Everything that was found, in the order it is shown."""
    parts: list[tuple[str, list[tuple[str, str]]]] = [
        ("Machine", _machine(findings)),
        ("Software", _software(findings.packages, findings.machine.python)),
    ]
    if findings.devices is not None and findings.kernels is not None and findings.paths is not None:
        parts += [
            ("Devices", _devices(findings.devices)),
            ("Speed", _speed(findings.kernels, findings.paths)),
        ]
    parts += [
        ("Cache", _cache(findings.cache_place, findings.cache)),
        ("Models", _models(findings)),
        ("Comes with tokenswift", _shipped(findings.shipped)),
    ]
    if findings.model is not None and findings.run is not None:
        parts += [
            (f"Model {findings.model.name}", _model(findings.model)),
            (f"A run of {findings.run.needs.max_tokens:,} tokens", _run(findings.run)),
        ]
    if findings.notes:
        parts.append(("Notes", [("", note) for note in findings.notes]))
    if findings.problems:
        parts.append(("Problems", [("", problem) for problem in findings.problems]))
    return [
        Section(visible(title), tuple((label, visible(value)) for label, value in lines))
        for title, lines in parts
    ]


def verdict(findings: Findings) -> str:
    """The last line."""
    if findings.ready:
        if findings.run is not None and findings.run.refusal is not None:
            return f"Ready: a run can start, but not one of {findings.run.needs.max_tokens:,} tokens."
        if findings.model is None and findings.demo.remedy is not None:
            return "Ready: a run can start with -m MODEL; the demo model is not installed."
        if findings.model is None and _DEMO in findings.shipped.configurations:
            return f"Ready: a run can start. For example: tokenswift generate -c {_DEMO}"
        return "Ready: a run can start."
    count = len(findings.problems)
    return f"Not ready: {count} problem{'' if count == 1 else 's'} to solve first."


def plain(found: Sequence[Section], last: str) -> str:
    """Aligned lines, for files and pipes."""
    width = max(len(label) for section in found for label, _ in section.lines)
    lines: list[str] = []
    for section in found:
        lines.append(section.title)
        labelled = any(label for label, _ in section.lines)
        for label, value in section.lines:
            lines.append(f"  {label:<{width}}  {value}" if labelled else f"  {value}")
        lines.append("")
    return "\n".join([*lines, last]) + "\n"


def rich_view(found: Sequence[Section], last: str, *, ready: bool) -> RenderableType:
    """The same for a terminal: one panel for each section."""
    from rich import box
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    width = max(len(label) for section in found for label, _ in section.lines)
    styles = {"Problems": "red", "Notes": "yellow"}
    panels: list[RenderableType] = []
    for section in found:
        grid = Table.grid(padding=(0, 2), expand=True)
        labelled = any(label for label, _ in section.lines)
        if labelled:
            grid.add_column(width=width, style="cyan", no_wrap=True)
        grid.add_column(ratio=1, overflow="fold")
        for label, value in section.lines:
            grid.add_row(*([Text(label)] if labelled else []), Text(value))
        style = styles.get(section.title, "dim")
        title = Text(section.title, style="bold")
        panels.append(
            Panel(grid, box=box.ROUNDED, title=title, title_align="left", border_style=style, padding=(0, 1))
        )
    return Group(*panels, Text(last, style="bold green" if ready else "bold red"))


def _machine(findings: Findings) -> list[tuple[str, str]]:
    machine = findings.machine
    cores = [f"{machine.cores} real"] if machine.cores else []
    cores += [f"{machine.logical_cores} logical"] if machine.logical_cores else []
    cores += [f"{findings.usable_cores} usable by this process"] if findings.usable_cores else []
    return [
        ("processor", machine.cpu),
        ("cores", ", ".join(cores) or "unknown"),
        ("memory", f"{size(machine.memory_bytes)}, {size(findings.free_memory_bytes)} free"),
        ("system", machine.system),
        ("runs in", _place(findings.run_place)),
    ]


def _software(packages: Packages, python: str) -> list[tuple[str, str]]:
    from tokenswift_cli import __version__

    required = packages.required
    lines = [("tokenswift", __version__), ("python", python)]
    first = ("torch", "transformers")
    lines += [(name, required[name] or "not installed") for name in first]
    others = [f"{name} {version or '(missing)'}" for name, version in required.items() if name not in first]
    lines += [("other needed", ", ".join(others))] if others else []
    for index, package in enumerate(packages.optional):
        state = package.version or "not installed"
        lines.append(("" if index else "optional", f"{package.name} {state} ({package.purpose})"))
    return lines


def _devices(devices: Devices) -> list[tuple[str, str]]:
    lines = [("cpu", f"{devices.threads} thread{'' if devices.threads == 1 else 's'}")]
    for accelerator in devices.accelerators:
        memory = ""
        if accelerator.memory_bytes is not None and accelerator.free_bytes is not None:
            memory = f", {size(accelerator.memory_bytes)}, {size(accelerator.free_bytes)} free"
        lines.append((accelerator.name, accelerator.description + memory))
    kinds = {accelerator.name.partition(":")[0] for accelerator in devices.accelerators}
    if "cuda" not in kinds:
        build = f"for CUDA {devices.cuda_build}" if devices.cuda_build else "without CUDA"
        lines.append(("cuda", f"no device (this torch is built {build})"))
    if "mps" not in kinds:
        lines.append(("mps", "no device"))
    lines.append(("a run uses", devices.chosen or "none: the device asked for is not here"))
    return lines


def _speed(kernels: Kernels, paths: ForwardPaths) -> list[tuple[str, str]]:
    lines = [
        ("kernels", f"active: {kernels.description}" if kernels.active else f"off: {kernels.description}")
    ]
    lines.append(("compiler", kernels.compiler or f"none: {kernels.compiler_problem}"))
    why = "; ".join(f"{name}: {reason}" for name, reason in paths.reasons.items())
    refused = f"refused: TOKENSWIFT_PATH={paths.wanted}"
    family = _WAYS.get(paths.llama_family or "", refused) + (f"; {why}" if why else "")
    lines += [("Llama family", family), ("other models", _WAYS.get(paths.others or "", refused))]
    for name, value in (("TOKENSWIFT_NATIVE", kernels.switch), ("TOKENSWIFT_PATH", paths.wanted)):
        lines += [("set", f"{name}={value}")] if value is not None else []
    return lines


def _cache(place: Place, entries: Sequence[CacheEntry]) -> list[tuple[str, str]]:
    total = sum(entry.bytes for entry in entries)
    lines = [("where", _place(place)), ("in it", _bytes(total) if entries else "nothing")]
    converted = [entry for entry in entries if entry.kind == CONVERTED]
    for index, entry in enumerate(converted):
        lines.append(("" if index else CONVERTED, f"{_converted(entry.name)} ({_bytes(entry.bytes)})"))
    for kind in (*FOLDERS.values(), OTHER):
        chosen = [entry for entry in entries if entry.kind == kind]
        if chosen and kind != CONVERTED:
            total = sum(entry.bytes for entry in chosen)
            lines.append((kind, f"{len(chosen)} file{'' if len(chosen) == 1 else 's'} ({_bytes(total)})"))
    return lines


def _converted(name: str) -> str:
    """The file's name and the type of its weights, out of the name of its folder in the cache."""
    stem, _, rest = name.rpartition("-transformers")
    parts = stem.rsplit("-", 2)
    return (
        f"{parts[0]} in {parts[2]}, for transformers {rest.rpartition('-')[0]}" if len(parts) == 3 else name
    )


def _models(findings: Findings) -> list[tuple[str, str]]:
    demo = findings.demo
    lines = [("by default", findings.default_model), ("demo model", demo.path or str(demo.remedy))]
    hub = findings.hub
    if hub is None:
        return lines
    if hub.problem is not None:
        return [*lines, ("Hub cache", f"{hub.directory} {hub.problem}")]
    if not hub.models:
        return [*lines, ("Hub cache", f"no models in {hub.directory}")]
    return [*lines, ("Hub cache", hub.directory), *_hub_models(hub.models)]


def _shipped(shipped: ShippedFiles) -> list[tuple[str, str]]:
    lines = [("configurations", ", ".join(shipped.configurations) or "none")]
    lines.append(("prompts", shipped.prompts or "none"))
    return lines + [("" if index else "heads", path) for index, path in enumerate(shipped.heads or ("none",))]


def _hub_models(models: Sequence[HubModel]) -> Iterator[tuple[str, str]]:
    for model in models[:_MOST_MODELS]:
        lacking = "" if model.loadable else ", lacks a configuration or safetensors weights"
        yield "", f"{model.name} ({_bytes(model.bytes)}{lacking})"
    if len(models) > _MOST_MODELS:
        yield "", f"and {len(models) - _MOST_MODELS} more (all of them with --json)"


def _model(model: ModelFacts) -> list[tuple[str, str]]:
    limit = "none named" if model.position_limit is None else f"{model.position_limit:,}"
    ends = ", ".join(f"{end.id} {end.text}" for end in model.end_of_text)
    by_type = [f"{_bytes(model.kv_bytes_per_token[name])} in {name}" for name in ("float32", "float16")]
    used = model.kv_bytes_per_token[model.kv_dtype]
    exact = (
        "the same whatever it is drafted with" if model.row_invariant else "may differ in last bits by batch"
    )
    return [
        ("architecture", f"{model.architecture}, {model.vocabulary:,} tokens"),
        ("runs on", f"{model.device} in {model.dtype}"),
        ("passes", model.path),
        ("logits of a row", exact),
        ("weights", f"{_bytes(model.weight_bytes)} in memory, {_bytes(model.pass_bytes)} read per pass"),
        ("cache per token", f"{', '.join(by_type)}; as set ({model.kv_dtype}) {_bytes(used)}"),
        ("position limit", limit),
        ("end of text", ends or "none"),
    ]


def _run(run: RunNeed) -> list[tuple[str, str]]:
    lines = []
    for line in run.lines:
        label, _, text = line.partition(": ")
        lines.append((label, text))
    return [*lines, ("can start", "yes" if run.refusal is None else f"no: {run.refusal}")]


def _place(place: Place) -> str:
    free = "free space unknown" if place.free_bytes is None else f"{_bytes(place.free_bytes)} free"
    return f"{place.path} ({free}{'' if place.writable else ', cannot be written'})"


def _bytes(number: int) -> str:
    """As the displays word sizes, and smaller ones too."""
    if number < _KIBIBYTE:
        return f"{number} bytes"
    return f"{number / _KIBIBYTE:.1f} KiB" if number < _MEBIBYTE else size(number)
