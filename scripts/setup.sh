#!/bin/sh
# Usage: sh scripts/setup.sh run|test
# Makes .venv fit for `make run` or `make test`, and installs the system packages they need when root.
# A stamp keyed by pyproject.toml, the Python and the folder makes the second time immediate.
set -eu
cd "$(dirname "$0")/.."
goal=$1

say() { printf '%s\n' "$*" >&2; }

# fail WHAT WHY FIX
fail() {
    say "error: $1"
    say "  why: $2"
    say "  fix: $3"
    exit 1
}

# install_packages WHY PACKAGE...: as root through apt-get; fails with the command to type otherwise.
install_packages() {
    why=$1
    shift
    command -v apt-get >/dev/null 2>&1 || return 1
    [ "$(id -u)" = 0 ] || return 1
    say "installing $* ($why)"
    DEBIAN_FRONTEND=noninteractive
    export DEBIAN_FRONTEND
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@"; } >&2 </dev/null
}

find_python() {
    for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer" "tried python3 and python3.11 to python3.14" \
        "apt-get install python3, or make $goal PYTHON=/path/to/python3"
}

make_venv() {
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        version=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        install_packages "$python cannot make virtual environments" "$version" ||
            fail "$python cannot make virtual environments" "its venv module is a package of its own here" \
                "sudo apt-get install $version"
    fi
    "$python" -m venv --clear .venv
}

# Which CuPy fits the NVIDIA driver that is here; empty without one.
cuda_extra() {
    version=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p' | head -n 1) || version=
    case $version in
        12) echo cuda12 ;;
        1[3-9]) echo cuda13 ;;
    esac
}

has_vulkan_loader() {
    .venv/bin/python -c 'import ctypes; ctypes.CDLL("libvulkan.so.1")' 2>/dev/null
}

has_software_vulkan() {
    has_vulkan_loader || return 1
    for folder in /usr/share/vulkan/icd.d /etc/vulkan/icd.d /usr/local/share/vulkan/icd.d; do
        ls "$folder"/lvp_icd*.json >/dev/null 2>&1 && return 0
    done
    return 1
}

need_vulkan() {
    [ "$(uname -s)" = Linux ] || return 0
    if [ "$goal" = test ]; then
        has_software_vulkan || install_packages "the tests of wgpu run on a software adapter" \
            libvulkan1 mesa-vulkan-drivers ||
            fail "the tests need a software Vulkan adapter" "libvulkan.so.1 or Mesa's lavapipe is missing" \
                "sudo apt-get install libvulkan1 mesa-vulkan-drivers"
    else
        has_vulkan_loader || install_packages "wgpu reaches GPUs through it" libvulkan1 ||
            say "note: no Vulkan loader, so wgpu finds no GPU; sudo apt-get install libvulkan1"
    fi
}

# The programs that read our reports; each is one small package.
need_consumers() {
    [ "$goal" = test ] && [ "$(uname -s)" = Linux ] || return 0
    if ! command -v hyperfine >/dev/null 2>&1 || ! [ -f /usr/share/benchmark/compare.py ]; then
        install_packages "tests let them read our reports" hyperfine libbenchmark-tools ||
            fail "the tests need hyperfine and google-benchmark's compare.py" "they read our reports" \
                "sudo apt-get install hyperfine libbenchmark-tools"
    fi
}

# The HTML report is tested in a real browser.
has_chromium() {
    .venv/bin/python -c 'from tests.browser import chromium; chromium.probe()' 2>/dev/null
}

# After install_gpubench, which brings playwright. Where the package is a snap (Ubuntu), playwright fetches its own.
need_chromium() {
    [ "$goal" = test ] && [ "$(uname -s)" = Linux ] || return 0
    has_chromium && return 0
    install_packages "the tests open the HTML report in a browser" chromium && has_chromium && return 0
    .venv/bin/python -m playwright install --with-deps --only-shell chromium >&2 && has_chromium ||
        fail "the tests need Chromium" "they open the HTML report in a real browser" "sudo apt-get install chromium"
}

install_gpubench() {
    say "setting up .venv for make $goal (some minutes the first time)"
    if [ "$goal" = test ]; then
        .venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
    else
        .venv/bin/python -m pip install --quiet --disable-pip-version-check -e .
        .venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[workloads]' ||
            say "note: tiktoken could not be installed, so tokenise is skipped"
    fi
    cuda=$(cuda_extra)
    if [ -n "$cuda" ] && ! .venv/bin/python -c 'import cupy' 2>/dev/null; then
        .venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".[$cuda]" ||
            say "note: CuPy could not be installed, so the NVIDIA GPU is reached through wgpu alone"
    fi
}

# For the tests of the backend torch: PyTorch's build for the CPU. The package index has the same version for Linux with
# CUDA, several gigabytes: so pip tells which file it would take, and only a small one is taken.
need_torch() {
    [ "$goal" = test ] || return 0
    .venv/bin/python -c 'import torch' 2>/dev/null && return 0
    for more in "" "--retries=1 --extra-index-url=https://download.pytorch.org/whl/cpu"; do
        # shellcheck disable=SC2086
        url=$(.venv/bin/python -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed --no-deps \
            --only-binary torch --report - $more torch==2.13.0 2>/dev/null |
            sed -n 's/^ *"url": "\(.*\)".*/\1/p' | head -n 1)
        case $url in
            *cpu-* | *macosx*)
                .venv/bin/python -m pip install --quiet --disable-pip-version-check "torch @ $url" && return 0 ;;
        esac
    done
    say "note: no build of PyTorch for the CPU alone is at hand: its tests fail"
}

mkdir -p .setup
# Two at once would write into the same .venv: the second waits.
if command -v flock >/dev/null 2>&1; then
    exec 9>.setup/lock
    flock 9
fi

place=$(pwd -P)
if ! .venv/bin/python -c 'import pip' 2>/dev/null || [ "$(cat .setup/place 2>/dev/null || echo "$place")" != "$place" ]
then
    rm -f .setup/run .setup/test
    make_venv
fi
printf '%s\n' "$place" >.setup/place

key=$({ .venv/bin/python --version && cat pyproject.toml scripts/setup.sh; } | cksum)
if [ "$(cat ".setup/$goal" 2>/dev/null || true)" != "$key" ]; then
    need_vulkan
    need_consumers
    install_gpubench
    need_torch
    need_chromium
    printf '%s\n' "$key" >".setup/$goal"
fi
