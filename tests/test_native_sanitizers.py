"""The kernel under the sanitizers, in a program of its own, on random shapes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tokenswift_cli.native.build import FLAGS, SOURCE_DIRECTORY, BuildError, find_compiler

DRIVER = Path(__file__).with_name("native_driver.cpp")
# Libraries, optimisation and quietness of the real build aside, the flags that decide what is computed.
MEANING = [flag for flag in FLAGS if flag.startswith(("-std", "-ff", "-fno-math"))]


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(tmp_path: Path, sanitizer: str) -> None:
    try:
        compiler = find_compiler()
    except BuildError as error:
        pytest.skip(str(error))
    options = [
        *MEANING,
        "-O1",
        "-g",
        "-w",
        f"-fsanitize={sanitizer}",
        "-fno-sanitize-recover=all",
        "-pthread",
    ]
    nothing = tmp_path / "nothing.cpp"
    nothing.write_text("int main() { return 0; }\n")
    program = tmp_path / "driver"
    tried = subprocess.run([*compiler, *options, nothing, "-o", program], capture_output=True, check=False)
    if tried.returncode or subprocess.run([program], capture_output=True, check=False).returncode:
        pytest.skip(f"{compiler[0]} has no -fsanitize={sanitizer} that runs here")
    subprocess.run(
        [*compiler, *options, f"-I{SOURCE_DIRECTORY}", DRIVER, "-o", program], check=True, timeout=900
    )
    done = subprocess.run(
        [program, "1", "60"], capture_output=True, text=True, errors="replace", check=False, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout == "fine\n" and not done.stderr


def test_portable_and_fast_code_agree_to_the_bit_where_both_fuse(tmp_path: Path) -> None:
    """What the portable code computes on a processor with fused multiply-add is what AVX2 computes."""
    try:
        compiler = find_compiler()
    except BuildError as error:
        pytest.skip(str(error))
    source = tmp_path / "compare.cpp"
    source.write_text(COMPARE)
    program = tmp_path / "compare"
    options = [*MEANING, "-O1", "-w", "-DTOKENSWIFT_EXACT_FMA", f"-I{SOURCE_DIRECTORY}"]
    subprocess.run([*compiler, *options, source, "-o", program, "-lm"], check=True, timeout=900)
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout


COMPARE = r"""
#include "attention.cpp"
#include <stdio.h>
#include <stdlib.h>
#include <vector>
int main() {
    const int64_t rows = 5, size = 40, prefix = 1100, room = (prefix + rows) * size;
    std::vector<float> query(2 * rows * size), keys(room), values(room);
    srand(7);
    for (auto *numbers : {&query, &keys, &values})
        for (float &x : *numbers) x = rand() / (float)RAND_MAX * 4 - 2;
    std::vector<std::vector<float>> results;
    for (int which = 0; which <= tokenswift_attention_instructions(); which++) {
        std::vector<float> output(2 * rows * size);
        Call call = {};
        call.query = query.data(); call.keys = keys.data(); call.values = values.data();
        call.output = output.data();
        call.query_group = call.output_group = rows * size;
        call.query_row = call.output_row = call.key_row = call.value_row = size;
        call.kv_heads = 1; call.group = 2; call.rows = rows; call.key_size = call.value_size = size;
        call.prefix = prefix; call.scale = 0.2f; call.threads = 1; call.instructions = which;
        std::vector<char> workspace(tokenswift_attention_workspace(&call));
        call.workspace = workspace.data(); call.workspace_bytes = workspace.size();
        if (tokenswift_attention(&call)) return 2;
        results.push_back(output);
    }
    for (size_t i = 1; i < results.size(); i++)
        if (results[i] != results[0]) {
            printf("instructions %zu differ from the portable code\n", i);
            return 1;
        }
    return 0;
}
"""
