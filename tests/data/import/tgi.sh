#!/bin/bash
text-generation-launcher --model-id /models/mistral-7b --port 8080 --num-shard 2 --max-total-tokens 8192
