#!/usr/bin/env bash
# Two steps of an agent with a calculator, every trajectory traced into MLflow, whose UI then stays up.
# Usage: deploy/mlflow-demo.sh BIN MLFLOW [override ...]      (as `make mlflow-demo` calls it)
set -euo pipefail
bin=$1 mlflow=$2
shift 2
run=runs/mlflow-demo url=http://127.0.0.1:5000
rm -rf "$run" runs/mlflow
mkdir -p runs/mlflow
"$mlflow/bin/mlflow" server --host 127.0.0.1 --port 5000 --backend-store-uri sqlite:///runs/mlflow/mlflow.db \
  --default-artifact-root runs/mlflow/artifacts >runs/mlflow/server.log 2>&1 &
server=$!
trap 'kill "$server"' EXIT
for _ in $(seq 120); do
  curl --silent --fail "$url/health" >/dev/null && break
  kill -0 "$server" || { cat runs/mlflow/server.log; exit 1; }
  sleep 1
done
curl --silent --fail "$url/health" >/dev/null || {
  echo "no MLflow at $url within two minutes: see runs/mlflow/server.log" >&2
  exit 1
}
OTEL_EXPORTER_OTLP_HEADERS=x-mlflow-experiment-id=0 "$bin/stream-rl" train examples/tool_agent_arithmetic.yaml \
  run="$run" trainer.steps=2 evaluation.episodes=0 metrics.trace_share=1 metrics.otlp_endpoint="$url/v1/traces" "$@"
echo "the traces: $url/#/experiments/0/traces (Ctrl-C ends)"
[ -n "${ONCE:-}" ] || wait "$server"
