#!/bin/sh
docker rm -f vllm 2>/dev/null
docker run -d --name vllm --restart unless-stopped \
  --gpus '"device=0,1"' --ipc=host --shm-size 32g --ulimit memlock=-1 \
  -p 8001:8000 \
  -v /srv/hf:/root/.cache/huggingface -v /models:/models:ro \
  -e HUGGING_FACE_HUB_TOKEN=hf_madeUpForTheTests0000 -e NCCL_DEBUG=WARN \
  vllm/vllm-openai:v0.32.0 \
  --model /models/Qwen3-32B --served-model-name qwen3 \
  --tensor-parallel-size 2 --max-model-len 40960 --kv-cache-dtype fp8 \
  --enable-auto-tool-choice --tool-call-parser hermes --api-key sk-madeupforthetests00
