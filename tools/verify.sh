#!/usr/bin/env bash
# Generated files are committed; this fails where they are not what their sources give.
set -euo pipefail
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
tools/generate.sh "$fresh"

drift=0
while IFS= read -r -d '' file; do
    name=${file#"$fresh"/}
    if ! diff -u --label "committed $name" --label "generated $name" "$name" "$file"; then drift=1; fi
done < <(find "$fresh" -type f -print0)
# A stub whose .proto is gone would otherwise stay for ever.
while IFS= read -r -d '' name; do
    case $name in */__init__.py) continue ;; esac
    if [ ! -e "$fresh/$name" ]; then printf 'verify: %s has no source any more\n' "$name" >&2; drift=1; fi
done < <(find proto/gen -name '*_pb2*.py*' -not -path '*/__pycache__/*' -print0)

if [ "$drift" -ne 0 ]; then
    printf 'verify: generated files differ from their sources; run: make proto\n' >&2
    exit 1
fi
printf 'verify: generated files are up to date\n'
