"""Write docs/cli.md from the output of `--help`, so that the page and the program cannot differ. `make docs`
runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gpubench.base.plugins import sections
from gpubench.base.streams import RUNNERS
from gpubench.cli.options import commands

TARGET = Path(__file__).parents[1] / "docs" / "cli.md"

_INTRODUCTION = """\
# Command line

Generated from `--help` by `make docs`; a test compares. `-h` shows on one screen what is used most. stdout carries
the result only; progress, warnings and errors go to stderr; `-` as a FILE is standard input or output. Every error
is three lines: what happened, why, what to do.

## Exit codes

| code | meaning |
|---|---|
| 0 | done; planned skips allowed |
| 1 | an error, a wrong result, a failed case, or nothing was measured |
| 2 | usage or configuration error; nothing was started |
| 3 | a gate failed |
| 4 | input not usable: unreadable, too new, not comparable, missing |
| 5 | a required backend or device is unavailable |
| 124 | time budget exhausted before the minimum samples, or before `--check-only` had checked every case |
| 130, 143 | interrupted by Ctrl-C, SIGTERM or a terminal that closes; results so far are saved |

If several apply: interrupted, then 1, 5, 4, 124, 3. A closed pipe (`| head`) ends quietly with 0.

## Sizes

A size is the number of elements for vector, reduction and activation ops and the side of the square matrices for
matmul and transpose; `gpubench ops` says it for each. **`1k` is 1024**: the suffixes `k`, `M`, `G`, with or without
`i`, in any case, are powers of 1024; a plain number is itself. Values are whole, 1 to 2^40, and a list has at most
1000 of them; they are sorted and made unique.

| written | means |
|---|---|
| `1k,4k` | 1024, 4096 |
| `1000`, `1e6`, `1_000` | 1000, 1000000, 1000 |
| `1k`, `1.5k`, `2^20` | 1024, 1536, 1048576; a size with a suffix is rounded to whole elements |
| `1k:16k` | 1024, 2048, 4096, 8192, 16384 |
| `1k:64M:x4` | 1024, 4096, ... 67108864 |
| `256:1024:+256` | 256, 512, 768, 1024 |

## Shapes, variants, TF32

Ops with params beside the size list them in `gpubench ops`: matmul `m`, `k` and `batch`, gemv and transpose `m`,
softmax and its derivative `columns`. `--params [OP:]NAME=LIST[,NAME=LIST...]` gives them, with values written as
sizes are. Several values make several workloads, several names all their combinations, and each `--params` adds
its own; the plain shape is then left out. Without `OP:` (an op or a group) the ops that have all the names take
them, the others stay as they are. A shape that does not go with a size is a skip with the reason `shape`.

| written | means |
|---|---|
| `--params columns=256,1024,4096` | rows of three lengths |
| `--params m=16,k=4k` | A is 16 x 4096, B is 4096 x n |
| `--params m=16,64,k=64,4k` | four shapes |
| `--params m=16 --params k=16` | two shapes |
| `--params matmul:batch=8:64:x2` | 8, 16, 32 and 64 products in one launch |

`--variant naive,tiled` measures named kernels beside the best one, as rows of their own: the implementation of their
case id is `tuned-naive`. `--allow-tf32` does the same for cupy's float32 matmul with inputs rounded to TF32
(`library-tf32`); TF32 is off everywhere else, whatever `CUPY_TF32` and `NVIDIA_TF32_OVERRIDE` say. Variants are shown
and never a headline. A selector's `tuned` is the plain implementation, `tuned-naive` one variant, `tuned*` all of
them.

## Configuration

Option > environment > project file > user file > default. The project file is the nearest `gpubench.toml`, or
`pyproject.toml` with a table `[tool.gpubench]`, from the working folder up to the repository's root. The user file is
`gpubench/config.toml` in the platform's configuration folder (`~/.config` on Linux). `--config FILE` reads that file
alone, `--no-config` none, and `--show-config` prints every effective value with its source.

```toml
[common]            # options of every command
color = "never"

[run]               # options of one command, by their long names
sessions = 5
ops = ["matmul", "add"]
```

Every long option `--some-option` is also the variable `GPUBENCH_SOME_OPTION` (`--no-config` and `--show-config` apart);
lists keep their commas, repeatable options are separated by spaces, switches take `1` or `0`. On the command line a
list may also come in parts: `--ops add --ops mul` is `--ops add,mul`.

`GPUBENCH_CACHE_DIR` is no option but the folder of [the cache](reliability.md#the-cache): what can be made again, such
as compiled kernels, and which of them a machine found the fastest (else `gpubench` in the platform's cache folder,
`~/.cache` on Linux). `--no-autotune` does without those choices.

## Shell completion

`gpubench --install-completion` adds completion of commands and options to the shell that it is typed in (bash, zsh,
fish, PowerShell); `--show-completion` prints what it would add, for who keeps such files by hand:
`gpubench --show-completion > ~/.local/share/bash-completion/completions/gpubench`.

## Sections of a report

`--sections` takes their names with commas; a package may bring [its own](extending.md#a-section-of-a-report).

| section | shows |
|---|---|
{sections}

## Commands
"""


def page() -> str:
    """Return the text of the whole page."""
    rows = [
        f"| `{section.key}` | {section.help}{'' if section.usual else '; on request'} |"
        for section in sections.declarations()
        if section.choice and section.help
    ]
    parts = [_INTRODUCTION.replace("{sections}", "\n".join(rows)), _block("gpubench", ())]
    parts += [_block(f"gpubench {command}", (command,)) for command in commands()]
    return "\n".join(parts)


def _block(title: str, arguments: tuple[str, ...]) -> str:
    outside = {name: value for name, value in os.environ.items() if name not in RUNNERS}
    help_text = subprocess.run(
        [sys.executable, "-m", "gpubench", *arguments, "--help"],
        env={**outside, "COLUMNS": "100", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return f"### {title}\n\n```\n{help_text.rstrip()}\n```\n"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
