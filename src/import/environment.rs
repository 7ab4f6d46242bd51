//! The environment of a running process: most of it came from a login and says nothing about the server.

use indexmap::IndexMap;

/// Beginnings of names that engines and their libraries read.
const READ: &[&str] = &[
    "CUDA_",
    "NCCL_",
    "SGLANG_",
    "SGL_",
    "VLLM_",
    "TORCH",
    "PYTORCH_",
    "HF_",
    "HUGGINGFACE_",
    "HUGGING_FACE_",
    "TRANSFORMERS_",
    "TRITON_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "GGML_",
    "LLAMA_",
    "FLASHINFER_",
    "GLOO_",
    "UCX_",
    "NVIDIA_",
    "NVSHMEM_",
    "TRTLLM_",
    "TLLM_",
    "TENSORRT_",
    "DG_",
    "DEEPGEMM_",
    "TOKENIZERS_",
    "ROCR_",
    "HIP_",
    "HSA_",
    "ROCM_",
    "RAY_",
    "MC_",
    "MOONCAKE_",
    "KMP_",
    "SAFETENSORS_",
    "OPENAI_",
];
/// Single names of the same kind.
const NAMES: &[&str] = &[
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "TIKTOKEN_ENCODINGS_BASE",
    "TIKTOKEN_RS_CACHE_DIR",
    "XDG_CACHE_HOME",
];

/// What of a process's environment belongs to the server. orch's own marks are left out.
pub fn of_a_process(bytes: &[u8]) -> IndexMap<String, String> {
    let each = bytes.split(|byte| *byte == 0).filter_map(|pair| {
        let pair = String::from_utf8_lossy(pair);
        let (name, value) = pair.split_once('=')?;
        let is_read = NAMES.contains(&name) || READ.iter().any(|head| name.starts_with(head));
        is_read.then(|| (name.to_owned(), value.to_owned()))
    });
    let mut env: IndexMap<String, String> = each.collect();
    env.sort_keys();
    env
}

/// Variables that orch gives a server itself.
pub(super) fn is_own(name: &str) -> bool {
    name.starts_with("ORCH_") || name == "SPT_NOENV"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_engine_reads_is_kept() {
        let bytes =
            b"HOME=/root\0NCCL_DEBUG=INFO\0PATH=/bin\0HF_TOKEN=hf_x\0ORCH_RUN=r\0broken\0CUDA_VISIBLE_DEVICES=0,1\0";
        let env = of_a_process(bytes);
        assert_eq!(env.keys().collect::<Vec<_>>(), ["CUDA_VISIBLE_DEVICES", "HF_TOKEN", "NCCL_DEBUG"]);
    }
}
