"""SVG as matplotlib writes it, made fit for standing in a page: small, without clashing ids, in its colours.

Colours in the drawing are stand-ins (``INKS``); here each becomes a variable of the page's style sheet, so
that one drawing serves the light and the dark page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from xml.etree import ElementTree

from tokenswift_cli.report.plot import SERIES

# Colours that nothing else has, by the variable that takes their place.
INKS: Final = {
    "text": "#010203",
    "quiet": "#010204",
    "grid": "#010205",
    **{f"series-{index}": f"#0102{0x10 + index:02x}" for index in range(SERIES)},
}

_SVG: Final = "{http://www.w3.org/2000/svg}"
_LINK: Final = "{http://www.w3.org/1999/xlink}href"
_LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_COLOUR = re.compile("|".join(INKS.values()))
_VARIABLES: Final = {colour: f"var(--{name})" for name, colour in INKS.items()}


def inline_svg(document: str, prefix: str, label: str) -> str:
    """The drawing as one ``<svg>`` element.

    Args:
        document: what matplotlib wrote.
        prefix: begins all ids, so that several drawings fit into one page.
        label: what it shows, for who cannot see it; any text.
    """
    root = ElementTree.fromstring(document)
    for unwanted in ("metadata", "defs"):
        for parent in list(root.iter()):
            for child in parent.findall(f"{_SVG}{unwanted}"):
                # The style that matplotlib defines there would hold for the whole page; page.css has it.
                if unwanted == "metadata" or child.find(f"{_SVG}style") is not None:
                    parent.remove(child)
    used = set(_references(root))
    for element in root.iter():
        element.text, element.tail = _text(element.text), None
        for name, value in list(element.attrib.items()):
            if name == "id" and value not in used:
                del element.attrib[name]
            elif name == "id":
                element.set(name, prefix + value)
            elif name == _LINK:
                del element.attrib[name]
                element.set("href", f"#{prefix}{value[1:]}")
            else:
                element.set(name, _cleaned(value, prefix))
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", label)
    ElementTree.register_namespace("", _SVG.strip("{}"))
    written = ElementTree.tostring(root, encoding="unicode")
    return written.replace(f' xmlns="{_SVG.strip("{}")}"', "", 1)


def _references(root: ElementTree.Element) -> Iterator[str]:
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == _LINK:
                yield value[1:]
            yield from _REFERENCE.findall(value)


def _text(text: str | None) -> str | None:
    return text.strip() or None if text else None


def _cleaned(value: str, prefix: str) -> str:
    value = _COLOUR.sub(lambda found: _VARIABLES[found.group()], value)
    value = _REFERENCE.sub(lambda found: f"url(#{prefix}{found.group(1)})", value)
    # A hundredth of a unit cannot be seen, and most of the page is such numbers.
    value = _LONG_NUMBER.sub(lambda found: f"{float(found.group()):.2f}".rstrip("0").rstrip("."), value)
    return value.replace(" \n", " ").replace("\n", " ").strip()
