"""All native code under the sanitizers, in a program of its own, on random shapes.

The program also checks what is computed, see native_driver/driver.cpp. In the one build the portable code
fuses multiplication and addition as the fast code does, and must agree with it to the bit; in the other it is
as it is shipped.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tokenswift_cli.native.build import FLAGS, SOURCE_DIRECTORY, BuildError, find_compiler

DRIVER = Path(__file__).parent / "native_driver" / "driver.cpp"
# Libraries, optimisation and quietness of the real build aside, the flags that decide what is computed.
MEANING = [flag for flag in FLAGS if flag.startswith(("-std", "-ff", "-fno-math"))]
# Registers are given out in one go: a fifth of the time to compile. Only GCC knows it.
QUICKER = "-fira-region=one"

pytestmark = pytest.mark.slow


def run(command: list[str | Path]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=900)


@pytest.mark.parametrize(
    ("sanitizer", "more", "rounds"),  # of attentions, matrices, passes, choices and row copies
    [
        ("address,undefined", ["-DTOKENSWIFT_EXACT_FMA"], ["25", "300", "30", "1000", "3000"]),
        ("thread", [], ["15", "100", "20", "100", "300"]),
    ],
    ids=["address and undefined", "thread"],
)
def test_sanitizers_find_nothing(tmp_path: Path, sanitizer: str, more: list[str], rounds: list[str]) -> None:
    try:
        compiler = find_compiler()
    except BuildError as error:
        pytest.skip(str(error))
    options = [
        *MEANING,
        *more,
        "-O1",
        "-g1",  # the lines of what is found
        "-w",
        f"-fsanitize={sanitizer}",
        "-fno-sanitize-recover=all",
        "-pthread",
    ]
    nothing = tmp_path / "nothing.cpp"
    nothing.write_text("int main() { return 0; }\n")
    program = tmp_path / "driver"
    if run([*compiler, *options, nothing, "-o", program]).returncode or run([program]).returncode:
        pytest.skip(f"{compiler[0]} has no -fsanitize={sanitizer} that runs here")
    if run([*compiler, QUICKER, "-c", nothing, "-o", tmp_path / "nothing.o"]).returncode == 0:
        options.append(QUICKER)
    built = run([*compiler, *options, f"-I{SOURCE_DIRECTORY}", DRIVER, "-o", program, "-lm"])
    assert built.returncode == 0, built.stderr[-4000:]
    done = run([program, "1", *rounds])
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout == "fine\n" and not done.stderr
