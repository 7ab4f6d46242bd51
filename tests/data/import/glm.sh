#!/usr/bin/env bash
# GLM on eight GPUs. Usage: ./glm.sh [model]
set -euo pipefail
cd /data

source /opt/sglang/bin/activate
export CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_DEBUG=WARN
export HF_TOKEN="${HF_TOKEN:?set it first}"

MODEL=${1:-/data/models/GLM-5-NVFP4}
NAME=$(basename "$MODEL")
TP=8
PORT="${PORT:-30000}"
LOG=/var/log/llm/${NAME}.log

ARGS=(
  --model-path "$MODEL"
  --served-model-name "${NAME,,}"   # not every shell feature can be followed
  --tp-size $TP --quantization modelopt_fp4
  --attention-backend triton
  --disable-cuda-graph
)
ARGS+=(--max-running-requests=64)
if [[ -n "${DEBUG:-}" ]]; then
  ARGS+=(--log-level debug)
fi

mkdir -p "$(dirname "$LOG")"
cat > /tmp/run-info <<EOF
vllm serve this is only a text
EOF
nohup python3 -m sglang.launch_server "${ARGS[@]}" \
  --port $PORT --enable-flashinfer-allreduce-fusion "$@" > "$LOG" 2>&1 &
echo "pid $!"
