#!/usr/bin/env bash
# Write every generated file below the folder given: protobuf stubs, the job file's reference, the chart's values and
# their schema, what the images install, the pictures of
# the concepts, the benchmarks' pages.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(cd "${1:?usage: tools/generate.sh FOLDER}" && pwd)

mkdir -p "$target/proto/gen" "$target/docs" "$target/charts/frostline"
(
    cd proto
    ../.venv-proto/bin/python -m grpc_tools.protoc -I. \
        --python_out="$target/proto/gen" --grpc_python_out="$target/proto/gen" --pyi_out="$target/proto/gen" \
        frostline_proto/v1/*.proto
)
.venv/bin/python -m frostline_contract.job.reference > "$target/docs/job-reference.md"
for what in schema:values.schema.json values:values.yaml; do
    .venv/bin/python -m frostline_contract.job.values_schema "${what%%:*}" > "$target/charts/frostline/${what#*:}"
done
.venv/bin/python tools/concept_pictures.py "$target/docs/pictures"
.venv/bin/python tools/pins.py images "$target"
if [ -e docs/benchmarks.json ]; then .venv/bin/python -m tests.benchmarks --pages "$target"; fi
