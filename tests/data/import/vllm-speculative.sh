exec env VLLM_USE_V1=1 vllm serve --enable-prefix-caching Qwen/Qwen3-8B \
  --speculative-config '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}' \
  --compilation_config.cudagraph_mode FULL_DECODE_ONLY --max_model_len 32K --no-enable-log-requests --hf-token hf_madeUpForTheTests0000
