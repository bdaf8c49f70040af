"""The list of messages: each reason, warning and error by its code, with a sentence and a remedy.

A message of `detect` about a mode or a GPU is a single text with the sentence and the remedy. A code never
changes, because result files and scripts contain it. The program, the report and docs/troubleshooting.md use
these tables. A test finds codes in the source that have no entry. This module imports nothing of gpubench.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple


class Entry(NamedTuple):
    """A message of the list."""

    sentence: str  # what has happened
    remedy: str  # what to do about it, unless the code that reports the message knows a better remedy


# fmt: off
# ---------------------------------------------------------------- reasons: why a case has no number

REASONS: dict[str, Entry] = {
    "no-implementation": Entry(
        "this backend has no kernel for the op in this implementation",
        "nothing: `gpubench ops` shows what there is; the library implementation may exist"),
    "no-dtype": Entry(
        "the device, or the language that its kernels are written in, has no such dtype",
        "choose another of `--dtypes`; `gpubench detect` shows what the device can"),
    "no-tf32": Entry("the device or the library has no TF32 to switch", "leave `--allow-tf32` out"),
    "not-in-place": Entry(
        "the device, its driver or its library does not compute in that memory of the host",
        "leave `in-place` out of --regimes, or take another backend of this GPU"),
    "no-transfer": Entry(
        "on a CPU the data is at home: there is nothing to transfer",
        "nothing: its resident case is the baseline of all regimes"),
    "no-streams": Entry(
        "the device, or its library, does not copy while it computes", "measure calls that wait: --regimes copied"),
    "no-split": Entry(
        "the op cannot be cut into a part for the GPU and a part for the CPU", "measure it without `hybrid`"),
    "host-stage": Entry(
        "this work runs on the host, whatever device there is", "nothing: the case of the CPU has its time"),
    "no-library": Entry("a library that the op calls is not installed", "the command that stands beside it"),
    "not-compiled": Entry(
        "numba does not work here, so the CPU has no compiled kernel of the op; its library implementation is measured",
        "the warning cpu-not-compiled says why, and what to do"),
    "shape": Entry("the params do not go with the size", "choose --sizes and --params that go together"),
    "bad-plugin": Entry(
        "a function of an op of another package, or a whole backend, breaks; what it raised stands beside it",
        "tell the author of its package"),
    "bad-function": Entry(
        "your function raises here, changes its inputs, or calls what the array library lacks",
        "mend the function, or leave the backend out: @gpubench.function(backends=\"numpy,cupy\")"),
    "out-of-memory": Entry(
        "the case needs more than 80 % of what is free, or the device refused the memory", "choose smaller --sizes"),
    "limit": Entry(
        "a limit of the device: buffer size, workgroup size or count, number of bindings",
        "smaller `--sizes`, or another backend"),
    "too-slow": Entry(
        "a library call that cannot end in time", "choose smaller --sizes, or raise --case-timeout"),
    "budget": Entry("the run's time ended first", "raise --budget"),
    "unavailable": Entry("the library, driver or device is not there", "see `gpubench detect`"),
    "unsupported": Entry("the device cannot hold or run this case", "another backend or dtype"),
    "device-lost": Entry(
        "the device went away and did not open again",
        "run again; if it stays away, look at the driver's messages (`dmesg`)"),
    "timeout": Entry(
        "no answer within `--case-timeout`; its process was ended, the run went on",
        "raise --case-timeout or choose smaller --sizes"),
    "worker-crashed": Entry(
        "the process that drives the device died; the last lines of its stderr are in the file",
        "a report with them; other cases are not affected"),
    "build-error": Entry("the kernel did not compile; the compiler's words stand beside it", "a report with them"),
    "validation-error": Entry("WebGPU refused a call", "a report with the words beside it"),
    "wrong-result": Entry(
        "the output is not what the float64 reference says, so there is no time",
        "this is a defect of the kernel or of the driver: please report it with the result file"),
    "error": Entry(
        "anything unforeseen at the backend's edge, and a reason that is not of this table; the detail says what",
        "`--verbose` for the traceback, and a report"),
    "not-reached": Entry("the run ended before this case was measured", "`gpubench run --append FILE` goes on"),
    "no-samples": Entry("too few samples in every session, so there is no estimate", "a longer `--case-timeout`"),
    "check-only": Entry("checked and right; nothing was timed", "nothing: leave `--check-only` out to time it"),
    "implausible": Entry(
        "the time is beyond what the hardware can do, or below its clock", "report it as a bug, with the file"),
}

# ---------------------------------------------------------------- warnings: what makes a number doubtful

WARNINGS: dict[str, Entry] = {
    "noisy": Entry(
        "the quartiles of its blocks lie more than 10 % of the median apart", "close other programs or use --rigorous"),
    "unstable": Entry(
        "the quartiles of its blocks lie more than 25 % of the median apart",
        "close other programs and run again with --rigorous"),
    "too-short": Entry("a sample lasts less than 1 ms", "use larger --sizes"),
    "first-slow": Entry("the first sample is an outlier", "outliers are kept; --rigorous takes more samples"),
    "drift": Entry("values rise or fall with time", "let the machine settle and take more --sessions"),
    "contended": Entry(
        "other programs took more than 5 % of the CPUs, or the hypervisor that share of the CPU time asked for",
        "close other programs, on a virtual machine wait for quieter neighbours, and run again"),
    "throttled": Entry("the device was throttled; no headline", "improve cooling or power, or lower --max-time"),
    "power-cap": Entry(
        "the software power limit lowered the clock, as it does on large GPUs under a matrix product",
        "compare runs at the same power limit; gpubench detect shows it"),
    "implausible": Entry(
        "beyond a peak or below the clock; excluded from every table",
        "check it with run --filter on this case and report it as a bug"),
    "transfer-mismatch": Entry(
        "the parts, timed one by one, miss the whole by more than 10 %",
        "see --sections breakdown; predictions from the parts are withheld"),
    "stage-mismatch": Entry(
        "the stages of a workload, timed in its chain, miss the whole by more than 10 %",
        "see --sections stages; close other programs and run again: on a quiet machine they add up"),
    "assignment-mismatch": Entry(
        "a workload with its stages on both sides misses its predicted time by more than 25 %",
        "see --sections hybrid; the measured time counts. Close other programs and run again: it may come nearer"),
    "no-device-clock": Entry(
        "the device has no usable clock of its own; rates use wall time",
        "compare wall times; they need no device clock"),
    "other-gpu-users": Entry(
        "other processes were on the GPU before the session began; `info`: they only draw, or cannot be seen from here",
        "nvidia-smi on the host names them; end them, or take another GPU with --devices"),
    "no-telemetry": Entry(
        "clocks and throttle reasons cannot be read here",
        "gpubench detect shows whether the driver answers; throttling goes unnoticed here"),
    "listed-twice": Entry(
        "several drivers or interfaces list one GPU to a backend; the faster one of a short trial was measured",
        "name the other adapter with --devices to measure it"),
    "software-device": Entry(
        "a software adapter runs on the CPU; it is no GPU and takes no headline",
        "install the GPU's driver; gpubench detect names what is missing"),
    "cpu-limited": Entry(
        "the CPU side had fewer threads than usable CPUs, or a quota: the speedups flatter the GPU",
        "without a quota and with --threads equal to the usable CPUs the baseline would be faster"),
    "cpu-not-compiled": Entry(
        "the CPU has library calls alone, up to 15 times slower than compiled kernels: the speedups flatter the GPU",
        "install gpubench anew, which brings numba, or unset the variable that the message names"),
    "powersave": Entry(
        "the machine runs on a battery, or the CPU's governor saves power",
        "plug it in; `cpupower frequency-set -g performance`"),
    "shared-host": Entry(
        "a runner that GitHub hosts shares its hardware: times differ from job to job",
        "compare within one job, in turns (--append, --like)"),
    "blas-threads": Entry(
        "a variable limits the threads of the BLAS that NumPy calls; gpubench sets threads itself",
        "gpubench detect --deep shows each BLAS"),
    "session-failed": Entry(
        "a case broke in one session; its number rests on the others",
        "the other sessions stand; gpubench run --append FILE adds sessions"),
    "few-sessions": Entry(
        "fewer than 5 sessions: a stated prior for how far sessions differ widens each interval",
        "use --sessions 5 or more"),
    "inputs-not-random": Entry("`--inputs zeros` or `ones` can be faster than real data", "leave --inputs out"),
    "no-page-lock": Entry("--page-locked has no effect: no GPU is measured", "leave --page-locked out, or add a GPU"),
    "no-tf32": Entry(
        "--allow-tf32 adds no row: none of these cases is a float32 matmul in the library implementation of CuPy "
        "or PyTorch",
        "it takes --ops matmul, --dtypes float32 and an NVIDIA GPU with CuPy or PyTorch"),
    "budget": Entry(
        "the run ended before every case had its samples", "raise --budget or choose fewer --ops or --sizes"),
    "top-halved": Entry(
        "the largest size of an op takes too long on this machine, so a smaller one stands for it",
        "raise --budget, or name the size with --sizes"),
    "chosen-once": Entry(
        "the first run on a machine compiles and tries its kernels, and takes up to a quarter, or 10 s, longer for it;"
        " the first call of a function of yours may compile too, up to a minute longer",
        "nothing to do: the next run remembers the choices of kernels; functions of yours compile in each run"),
    "unavailable": Entry(
        "a backend was left out, and why", "the hint: mostly a library or a driver to install"),
    "bad-plugin": Entry(
        "an op or a backend of another package was left out: it raises, exits, hangs, declares what cannot be, changes "
        "the process, or has a name that is taken",
        "mend the package, rename what it brings, or uninstall it; `gpubench ops` lists it with the reason"),
    "bad-function": Entry(
        "a function of your file was left out: it raises, changes its inputs, or differs from itself",
        "mend it, or choose smaller --sizes if memory lacks; docs/your-own-function.md shows how each case is written"),
    "own-sizes": Entry(
        "what n counts is what the `inputs` of a function make of it",
        "nothing; the shapes are those of its inputs"),
    "call-waits": Entry(
        "a call of your function returns once its work on the device is done: calls in a row gain nothing",
        "leave out what reads a result on the host: .item(), float(x), if x.any(), print(x)"),
    "not-compiled": Entry(
        "functions of your file are measured as they are written alone: they are no formulas of single elements",
        "nothing; arithmetic, comparisons, where and elementary functions of vectors are compiled as well"),
    "widens": Entry(
        "NumPy and CuPy compute these functions in float64: twice the bytes, and 32 to 64 times slower arithmetic on"
        " many GPUs; PyTorch and compiled code keep float32",
        "write math.sqrt(2) in place of np.sqrt(2), which is a float64; or say --dtypes float64"),
    "worker-restarted": Entry(
        "a process died and a fresh one went on",
        "raise a short --budget, free some memory, or look at the system's log"),
    "software-changed": Entry(
        "sessions were added with other versions than those before",
        "use --like to measure the same plan into a file of its own"),
    "not-interleaved": Entry(
        "base and new were measured one after the other: drift counts as a difference",
        "before trusting a small change, measure both again, session by session in turns (--append, --like)"),
    "different-machine": Entry(
        "the files stem from different machines: what differs may be the machine, not the code",
        "measure both on one machine"),
    "no-gate": Entry(
        "no regression gate was applied: no test of the files could have made it fail",
        "compare cases that no --ignore mutes, with more sessions or a larger --alpha"),
    "no-threshold": Entry(
        "cases have no threshold in the file of --thresholds; the usual one is theirs",
        "measure them with `gpubench noise -o` too"),
    "cannot-save": Entry(
        "what was measured so far could not be saved; measuring goes on, and saving is tried again",
        "mend what the sentence says (space, permissions), or choose another place with --output"),
    "same-run": Entry("both files hold sessions of the same run", "give the result of another run as NEW"),
    "cache-damaged": Entry(
        "a file of the cache was not what gpubench had written there, and was made anew",
        "nothing to do; if it comes back, remove the cache folder and look at the disk"),
    "cache-not-kept": Entry(
        "the cache folder cannot be written: each run compiles and chooses its kernels anew, which takes seconds",
        "make the folder writable, or name another one in GPUBENCH_CACHE_DIR"),
    "cache-not-trusted": Entry(
        "another user may have written to the cache folder, or to a file in it; what is there would be executed",
        "name a folder of your own in GPUBENCH_CACHE_DIR, or take the right to write from others: chmod go-w FOLDER"),
}

# ---------------------------------------------------------------- errors: why a command ended

ERRORS: dict[str, Entry] = {
    "already-measured": Entry(
        "an option that says how to measure does not go with a FILE",
        "leave it out, or leave FILE out and let `gpubench noise` measure"),
    "bad-alpha": Entry("the value of --alpha is no chance of a false alarm", "write it as 0.05"),
    "bad-claims": Entry(
        "the file of --claims, or one claim in it, cannot be used",
        "docs/claims.md shows the form; gpubench's own are --claims builtin"),
    "bad-config": Entry(
        "the configuration file cannot be read, or a name in it is not a table",
        "correct it, or leave it out with --no-config"),
    "bad-context": Entry("a --context is not K=V", "write for example --context runner=large"),
    "bad-device": Entry("a name of --devices is not a device id", "write cupy:0"),
    "bad-document": Entry(
        "the file cannot be used: it is not a valid document of its kind; why says which field or case",
        "give a file that `gpubench run` has written"),
    "bad-duration": Entry("the value is not a duration", "write it as 500ms, 2s or 5m"),
    "bad-function": Entry(
        "a file with functions of your own cannot be used, or one of its functions",
        "docs/your-own-function.md shows how a function is declared"),
    "bad-marker": Entry("the value of --marker is not usable", "write it as --marker benchmarks"),
    "bad-params": Entry(
        "no op has the params of --params, or they are not usable", "`gpubench ops` lists the params of each op"),
    "bad-part": Entry("what an interrupted run left cannot be used", "run `gpubench run` again"),
    "bad-percent": Entry("the value is not a percentage", "write it as 2 or 2%"),
    "bad-plugin": Entry(
        "the op of another package is left out", "mend the package, or uninstall it; everything else works without it"),
    "bad-samples": Entry("--max-samples is below --min-samples", "raise --max-samples"),
    "bad-selector": Entry(
        "the value is not a selector", "write it as matmul, matmul/n>=4096@cupy, *@wgpu:0 or activation/*/float16"),
    "bad-setting": Entry(
        "a value of a configuration file or of a GPUBENCH_ variable is not usable",
        "correct it there, or leave the file out with --no-config"),
    "bad-size": Entry(
        "a size is not usable; the message says at which position",
        "write sizes as 1k,4k or 1000 or 2^20, ranges as 1k:64M:x4 or 256:1024:+256 (1k is 1024)"),
    "bad-speedup": Entry(
        "a --min-speedup is not SEL=X", "write it as 'matmul/n>=4096@cupy=5' or 'add=1.5x'"),
    "bad-value": Entry("an option does not take this value", "the command's --help lists what is possible"),
    "baseline-missing": Entry("no measured case matches --baseline", "run again; this file holds no estimate"),
    "cannot-draw": Entry("the charts cannot be drawn", "install gpubench anew, or leave the charts out"),
    "cannot-print": Entry("cannot write to standard output", "free some space"),
    "cannot-save": Entry(
        "cannot save the results",
        "mend what the second line says (space, permissions, links), or choose another place with --output"),
    "cannot-write": Entry(
        "cannot write a file, or into a folder",
        "mend what the second line says (space, permissions, links), or choose another place"),
    "check-failed": Entry(
        "one of the two environments of `gpubench check` could not be measured; why has what it said",
        "run `gpubench run` in it alone"),
    "config-conflict": Entry("--config and --no-config contradict each other", "leave one of them out"),
    "contradicts-file": Entry(
        "an option, or the file of --like, contradicts the plan of the file",
        "leave it out: the plan is the file's; or start another file"),
    "different-machine": Entry(
        "the file of --append is of another machine or device",
        "add sessions on the same machine, or start a file of its own with --like"),
    "empty-file": Entry(
        "the file cannot be used: it is empty",
        "run `gpubench run` again; the run that should have written it never saved"),
    "empty-list": Entry("the list of an option is empty", "name something, or leave the option out"),
    "empty-selection": Entry(
        "--filter and --skip leave no case to measure", "--dry-run without them lists the case ids"),
    "few-nodes": Entry(
        "the cluster has fewer nodes than the fleet needs",
        "start them and run again, or lower --expect: the others are then measured"),
    "few-sessions": Entry(
        "there are too few sessions to tell noise from change",
        "measure with more --sessions, or let `gpubench noise` measure"),
    "gate-impossible": Entry(
        "a gate could not be applied, so it could not have failed", "ignore less, or leave the gate out"),
    "incomplete-fleet": Entry(
        "some nodes brought no result",
        "the output holds what there is; merge it with the missing files to complete it"),
    "locked": Entry(
        "the file is being written by another run",
        "wait until it ends, or give a longer --lock-timeout; a run that is killed lets go at once"),
    "many-shapes": Entry("--params is more than one shape", "ask for each by itself"),
    "many-sizes": Entry("--size is more than one size", "ask for each size by itself"),
    "mode-and-devices": Entry("--mode stands beside --backends or --devices", "leave one of them out"),
    "no-charts": Entry(
        "there is nothing to draw", "choose other --sections, or a result with measured cases"),
    "no-cluster": Entry(
        "the cluster cannot be reached",
        "is it up, and is its address right? A cluster that wants a token reads it from RAY_AUTH_TOKEN or "
        "RAY_AUTH_TOKEN_PATH, with RAY_AUTH_MODE=token"),
    "no-environment": Entry(
        "a place that `gpubench check` was given has no gpubench, or is no folder",
        "name a virtual environment in which gpubench is installed, or a program that runs it"),
    "no-plots": Entry("charts cannot be drawn here: vl_convert is missing", "install gpubench anew"),
    "no-result-for-op": Entry("there is no result of the op, dtype and params", "measure it: gpubench run --ops OP"),
    "no-results": Entry(
        "there is no result to report or to answer from, or what was named holds none",
        "run `gpubench run` first, or name a file"),
    "no-scratch": Entry(
        "the temporary folder cannot be used", "free some space there, or name another folder in TMPDIR"),
    "no-size": Entry("the shape names no size", 'give n, {"n": 1024, ...}, or the shapes: [a.shape, b.shape]'),
    "no-such-baseline": Entry(
        "nothing that is going to be measured matches --baseline",
        "choose one of the devices or implementations that are measured"),
    "no-such-case": Entry(
        "a selector of --filter, --skip, --ignore, --threshold or --min-speedup leaves or selects no case",
        "gpubench report --sections raw lists the cases with their ids"),
    "no-summary": Entry("--summary has nowhere to write to", "leave --summary out here, or take -o FILE.md"),
    "not-a-fleet": Entry(
        "an option is about a fleet, and the report is not of one",
        "give one file that `gpubench merge` wrote, and no option that shows single nodes or cases"),
    "not-a-result-file": Entry("--append takes a result file, which ends in .json or .json.gz", "name a .json file"),
    "not-comparable": Entry(
        "the files stem from different machines, or have no case in common that can be compared",
        "measure both on one machine, with the same ops, sizes, devices and options"),
    "not-with-cluster": Entry(
        "the option is about one machine", "leave it out, and give it to `gpubench report fleet.json`"),
    "not-json": Entry(
        "the file cannot be used: it is not JSON",
        "give a file that `gpubench run` has written, not a report"),
    "not-mergeable": Entry(
        "the files cannot be merged: a field differs",
        "`gpubench report FILE FILE` shows them side by side, `gpubench compare` tells which is faster"),
    "not-records": Entry(
        "not a file of provider records", 'the file must read {"records": [{"source": "nvml", ...}, ...]}'),
    "not-text": Entry(
        "the value is not valid UTF-8, or a PNG was to go to the terminal",
        "write it in UTF-8; name a file: -o report.png"),
    "nothing-to-compare": Entry(
        "too little was measured to tell noise from change", "raise --budget, or measure less"),
    "one-file-only": Entry(
        "the --format takes one result file", "write one file for each result, for example with -o NAME"),
    "other-machine": Entry(
        "there is no result of this machine",
        "run `gpubench run` here, or name a file, which is not asked where and how it was made"),
    "recording-failed": Entry("cannot write the recording", "name a new folder or a new file ending in .tar.gz"),
    "refused": Entry(
        "the system refuses what gpubench needs",
        "mend that (space, permissions, limits) and try again; --verbose shows where it happened"),
    "required-unavailable": Entry(
        "the device that --require names is not available", "`gpubench detect` tells what is missing"),
    "same-run-twice": Entry(
        "a run is there twice",
        "name each file once; a merged file already holds the runs that are listed in its `merged`"),
    "output-twice": Entry("--output is given more than once", "give one; call it again for another file"),
    "stdin-twice": Entry("- is given more than once", "give the others as files"),
    "too-large": Entry(
        "the file cannot be used: it is larger or deeper than any document of gpubench",
        "give a file that gpubench has written; the limits stand in docs/reliability.md"),
    "too-many-threads": Entry(
        "--threads is more than the CPUs that may be used",
        "leave --threads out: it takes all usable CPUs; `gpubench detect` tells what limits them"),
    "too-new": Entry("the file cannot be used: a newer gpubench wrote it", "upgrade gpubench"),
    "too-old": Entry("the file cannot be used: its format is no longer read", "measure again with gpubench run"),
    "truncated-file": Entry(
        "the file cannot be used: it ends in the middle, or its gzip data is damaged",
        "give a file that `gpubench run` has written"),
    "two-formats": Entry("--json and --format contradict each other", "leave one of them out"),
    "two-inputs": Entry("--sysroot and --records exclude each other", "give one of them"),
    "two-presets": Entry("--quick and --rigorous contradict each other", "leave one of them out"),
    "unavailable": Entry(
        "a backend or device that was named is not available, or --mode finds no GPU that a backend can use",
        "leave it out, or let --backends auto take what is there"),
    "unknown-command": Entry(
        "there is no such command", "gpubench --help explains them; an op is measured by gpubench run --ops OP"),
    "unknown-op": Entry("there is no such op", "gpubench ops"),
    "unknown-option": Entry("there is no such option", "the command's --help lists what is possible"),
    "unknown-regime": Entry(
        "there is no such regime",
        "take one of those known; N in transfer-once-N is the number of calls that share one copy"),
    "unknown-setting": Entry(
        "gpubench does not know a setting of the configuration file", "remove it or correct its name"),
    "unknown-suffix": Entry(
        "no format belongs to the suffix of --output, or it is no name for what is written",
        "end it in .json or .json.gz"),
    "unknown-value": Entry("an option has no such value", "take one of those that the second line lists"),
    "unknown-word": Entry(
        "an op, backend or kernel of the file is not there, or cannot be used, here",
        "install the package that brings it, or give another file"),
    "unreadable": Entry("the file or folder cannot be read", "why says what is in the way; choose another one"),
    "unreadable-input": Entry(
        "the file of --records cannot be read", 'the file must read {"records": [{"source": "nvml", ...}, ...]}'),
    "usage": Entry("the command line is not as the command takes it", "the command's --help lists what is possible"),
    "wrong-document": Entry(
        "the file cannot be used: it is a document of another kind", "give a file that gpubench has written"),
}

# The types of fields that contain a code. Reason: why a case was skipped or failed. NoNumber: why a case that was
# neither skipped nor failed has no number. WarningCode: the code of a warning.
if TYPE_CHECKING:
    Reason = str
    NoNumber = str
    WarningCode = str
else:
    NoNumber = Literal["not-reached", "no-samples", "check-only", "implausible"]
    Reason = Literal[tuple(code for code in REASONS if code not in NoNumber.__args__)]
    WarningCode = Literal[tuple(WARNINGS)]

# ---------------------------------------------------------------- detection: why this mode, why not that GPU

# The remedies for errors of the CUDA runtime as a whole, by their numbers.
CUDA_REMEDIES = {
    2: "nvidia-smi lists who has the GPU's memory: end them, or take another GPU",
    34: "take the folder of CUDA's stub libraries out of LD_LIBRARY_PATH: its libcuda.so drives no GPU",
    35: "update the GPU's driver: it is older than this CuPy needs",
    46: "end what computes on the GPU; `nvidia-smi -c DEFAULT` as root if its compute mode lets one program in",
    209: "install a CuPy that is built for this GPU's compute capability",
    214: "reset the GPU or reboot: its memory has an ECC error (nvidia-smi -q -d ECC)",
    222: "update the GPU's driver: it is older than this CuPy's compiler; or install gpubench's extra cuda12",
    802: "start nvidia-fabricmanager in the driver's version: GPUs behind NVSwitch need it; with confidential "
         "computing, nvidia-smi conf-compute -srs 1",
    803: "reboot, or reload the NVIDIA kernel module: it differs from the library",
    804: "update the NVIDIA driver, or remove the package cuda-compat: this GPU is not for it",
    805: "restart nvidia-cuda-mps-control, or unset CUDA_MPS_PIPE_DIRECTORY: its server does not answer",
    999: "reload nvidia-uvm (modprobe -r nvidia-uvm, modprobe nvidia-uvm), or give the container /dev/nvidia-uvm",
}
DETECTION = {
    "VRAM_GE_4GIB": "At least 4 GiB of usable GPU memory.",
    "VRAM_2_TO_4GIB": "2 to 4 GiB of usable GPU memory: share the work.",
    "VRAM_LT_2GIB": "Less than 2 GiB of usable GPU memory.",
    "VRAM_UNKNOWN": "No source tells the size of its memory; the vendor's driver may. `gpubench run` needs no size.",
    "SOURCE_LATE": "Its driver did not answer in time: keep it loaded (NVIDIA: nvidia-smi -pm 1), or wait longer "
                   "(GPUBENCH_PROBE_LIMIT=2m).",
    "SHARED_BANDWIDTH": "It shares the CPU's memory, so splitting the work gains nothing.",
    "FEW_CPU_THREADS": "Fewer than two usable CPUs: they have enough to do with feeding the GPU.",
    "INTEGRATED_UNMEASURED": "An integrated GPU may be slower than the CPU: `gpubench run` tells.",
    "GPU_ASLEEP": "It sleeps, and asking for its memory would wake it; `gpubench detect --wake` may.",
    "WILL_WAKE": "It sleeps now and will wake when it is used.",
    "MEMORY_BUSY": "More than half of its memory is in use by other programs.",
    "NO_DRIVER": "No driver that computes is bound to it; install the vendor's driver, or a kernel that has one.",
    "PASSED_THROUGH": "It is reserved for a virtual machine; bind the vendor's driver to use it here.",
    "EXCLUDED": "Its driver leaves it out; change its option NVreg_ExcludedGpus or NVreg_GpuBlacklist, reload nvidia.",
    "NOT_EXPOSED": "Its device node is not here; give the container the device (--gpus all, or --device).",
    "NO_PERMISSION": "The driver refuses this process; restart the container, which may have lost its devices.",
    "GPU_LOST": "The driver does not reach it; reset it (nvidia-smi --gpu-reset) or restart the machine. dmesg says "
                "why: it may need a newer driver, or the open kernel modules.",
    "NO_INSTANCE": "It is in MIG mode without an instance; as root, `nvidia-smi mig -cgi PROFILE -C` makes one (-lgip "
                   "lists profiles), `nvidia-smi -mig 0` ends the mode.",
    "DRIVER_MISMATCH": "The driver's library and kernel module differ; reboot or reload the module, or give the "
                       "container the host's library.",
    "HIDDEN_BY_ENV": "access.hidden_by_env names what hides it from CUDA or ROCm; unset that, or use WebGPU (--deep).",
    "COMPUTE_PROHIBITED": "Its compute mode forbids computing; `nvidia-smi -c DEFAULT` as root allows it.",
    "RUNTIME_MISSING": "Its Python library is missing or broken; install the extra cuda12 or cuda13 of gpubench.",
    "TOO_OLD": "CuPy's compiler no longer serves this model; gpubench's extra cuda12 serves older ones than cuda13.",
    "SOFTWARE_ONLY": "Only a software adapter was found, not a GPU: it runs on the CPU and gains nothing.",
    "DISPLAY_ONLY": "Only adapters that drive a display were found; none of them computes.",
    "GPU_UNKNOWN": "Nothing on this system tells how many GPUs there are.",
    "NO_GPU": "No GPU was found: there is nothing to install for one.",
    "UNUSABLE": "A source says that it cannot be used; `gpubench detect --deep` notes which one, and why.",
    "OVERRIDE": "The user's choice.",
    "GPU_DOMINATES": "Measured on this machine: the GPU is faster, whether data stays there or calls copy.",
    "GPU_WHERE_DATA_STAYS": "Measured on this machine: the GPU for data that stays there, the CPU for calls that copy.",
    "CPU_DOMINATES": "Measured on this machine: the CPU is faster, even where the data stays on the GPU.",
    "HYBRID_PAYS": "Measured on this machine: a call that CPU and GPU share is faster than on the better of the two.",
    "FASTER_ALONE": "Measured on this machine: one side alone is best; the text names it.",
    "RESULT_SILENT": "A newer result of this machine does not tell the mode; the text says why.",
    "RESULT_OTHER_DRIVER": "A result of this machine was measured with another driver: run `gpubench run` again.",
    "RESULT_OTHER_MACHINE": "The result that --results names is of another machine.",
}
# fmt: on
