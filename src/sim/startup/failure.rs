//! How a start fails: the lines by the failure's kind, and how the process ends, as the played engine does it.

use std::time::Duration;

use super::{Ending, Level, Model, Story, What, Who};
use crate::sim::Played;

/// SIGABRT, SIGKILL and SIGTERM.
const ABORT: i32 = 6;
const KILL: i32 = 9;
const TERM: i32 = 15;

/// The phase in which a kind of failure usually comes.
pub(super) fn usual_phase(played: Played, kind: &str) -> &'static str {
    let early_port = played != Played::Sglang;
    match kind {
        "bad_flag" | "missing_dependency" | "insufficient_resources" => "launch",
        "port_in_use" if early_port => "launch",
        "port_in_use" => "http_up",
        "bad_config" | "unsupported_model" | "access_denied" | "weights_missing" if played != Played::Llamacpp => {
            "config"
        }
        "gpu_unavailable" | "gpu_busy" | "nccl_error" | "rendezvous_timeout" | "shm_exhausted" | "unsupported_gpu"
            if played != Played::Llamacpp =>
        {
            "dist_init"
        }
        "oom_kv" if played == Played::Llamacpp => "weights",
        "oom_kv" => "kv_pool",
        "oom_profile" | "jit_build" if played != Played::Llamacpp => "compile",
        "oom_capture" | "hang_collective" | "rank_missing" | "watchdog_timeout" if played != Played::Llamacpp => {
            "graph_capture"
        }
        "draft_mismatch" => "draft_weights",
        "warmup_failed" if played == Played::Sglang => "warmup",
        "oom_runtime" | "nan_output" | "garbage_output" | "low_acceptance" | "slow_decode" | "stale_server" => {
            "serving"
        }
        _ => "weights",
    }
}

/// Tells how a start fails at a moment, in a rank's words, and how it ends.
pub(super) fn tell(story: &mut Story<'_>, at: Duration, kind: &str, rank: u32) -> (Ending, Option<(u32, i32)>) {
    // What makes no line: nothing more comes, or the end comes from outside.
    match kind {
        "hang_collective" | "rank_missing" | "host_memory_stall" => return (Ending::Hangs, None),
        "killed_by_supervisor" => return (Ending::Signal(TERM), None),
        "garbage_output" | "low_acceptance" | "slow_decode" | "stale_server" => return (Ending::Serves, None),
        "oom_host" => return killed(story, at, rank),
        "bad_flag" => return bad_flag(story, at),
        "port_in_use" => return port_in_use(story, at),
        _ => {}
    }
    match story.model.played {
        Played::Llamacpp => llamacpp(story, at, kind),
        Played::Sglang => sglang(story, at, kind, rank),
        Played::Vllm => vllm(story, at, kind, rank),
    }
}

/// The last lines of a Python traceback.
fn error(model: &Model, kind: &str, rank: u32) -> Vec<String> {
    let one = |text: &str| vec![text.to_owned()];
    let free = (model.free_with_pool() * 0.3).max(0.05);
    match kind {
        "oom_weights" | "oom_profile" | "oom_capture" | "oom_runtime" => vec![format!(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {:.2} GiB. GPU {rank} has a total capacity of {:.2} GiB of which {free:.2} GiB is free. Including non-PyTorch memory, this process has {:.2} GiB memory in use.",
            free + 0.24,
            model.total_gb,
            model.total_gb - free
        )],
        "oom_kv" if model.played == Played::Vllm => {
            one("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.")
        }
        "oom_kv" if model.before("0.5.21") => one(&format!(
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static={}",
            model.fraction
        )),
        "oom_kv" => one(&format!(
            "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static={0}. Raise --mem-fraction-static above {0}.",
            model.fraction
        )),
        "bad_config" if model.played == Played::Vllm => one("ValueError: User-specified max_model_len (1048576) is greater than the derived max_model_len (max_position_embeddings=32768)"),
        "bad_config" => one("ValueError: User-specified context_length (1048576) is greater than the derived context_length (32768)."),
        "missing_dependency" => one("ModuleNotFoundError: No module named 'flashinfer'"),
        "unsupported_model" => one("ValueError: Model architectures ['NoSuchForCausalLM'] are not supported for now."),
        "unsupported_gpu" => one("torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device"),
        "gpu_unavailable" => one("RuntimeError: No CUDA GPUs are available"),
        "gpu_busy" if model.played == Played::Vllm => vec![format!(
            "ValueError: Free memory on device cuda:{rank} (3.10/{:.2} GiB) on startup is less than desired GPU memory utilization ({}, {:.2} GiB).",
            model.total_gb,
            model.fraction,
            model.total_gb * model.fraction
        )],
        "gpu_busy" => one("ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=3.10"),
        "insufficient_resources" => one("ValueError: The number of required GPUs exceeds the total number of available GPUs in the placement group."),
        "access_denied" => one("huggingface_hub.errors.GatedRepoError: 401 Client Error. Access to this model is restricted."),
        "weights_missing" => vec![format!(
            "OSError: {} is not a local folder and is not a valid model identifier listed on the hub",
            model.name
        )],
        "weights_mismatch" => one("KeyError: 'model.layers.0.mlp.experts.w13_weight_scale'"),
        "draft_mismatch" if model.played == Played::Vllm => {
            one("ValueError: There is no module or parameter named 'fc_norm' in Eagle3LlamaForCausalLM")
        }
        "draft_mismatch" => one("RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x7168 and 12288x4096)"),
        "shm_exhausted" => one("RuntimeError: Error while creating shared memory segment /dev/shm/nccl-a1B2c3 (size 33030528)"),
        "nccl_error" => vec![
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.3".to_owned(),
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.".to_owned(),
        ],
        "rendezvous_timeout" => vec![format!(
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. {}/{} clients joined.",
            model.ranks.saturating_sub(1),
            model.ranks
        )],
        "load_timeout" => one("ValueError: TP rank 0 could finish the model loading, but there are other ranks that didn't finish loading. It is likely due to unexpected failures (e.g., OOM) or a slow node."),
        "peer_lost" => one("RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:24553"),
        "jit_build" => vec![
            "RuntimeError: Ninja build failed. Ninja output:".to_owned(),
            "ninja: build stopped: subcommand failed.".to_owned(),
        ],
        "cuda_fault" => one("torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
        "watchdog_timeout" => one("Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)"),
        "nan_output" => one("ValueError: Detected errors during sampling! NaN in the logits."),
        _ => one("RuntimeError: something went wrong that this engine has no name for"),
    }
}

/// SGLang: the rank tells its traceback, the main process hears of it and kills the whole tree, itself included.
fn sglang(story: &mut Story<'_>, at: Duration, kind: &str, rank: u32) -> (Ending, Option<(u32, i32)>) {
    let lines = error(story.model, kind, rank);
    // Before there are ranks, the main process itself fails.
    if matches!(usual_phase(Played::Sglang, kind), "launch" | "config") {
        traceback(story, at, Who::Main, "sglang/launch_server.py", &lines);
        return (Ending::Exits(1), None);
    }
    match kind {
        "warmup_failed" => {
            story.record(at, Who::Main, "Initialization failed. warmup error: Traceback (most recent call last):\nAssertionError: res=<Response [500]>, res.text=''");
            return (Ending::Signal(KILL), None);
        }
        "feature_off" | "cpu_fallback" => return (Ending::Serves, None),
        "collective_timeout" => {
            story.put(at, Who::Rank(rank), What::Plain(watchdog(rank)));
            sigquit(story, at);
            return (Ending::Signal(KILL), Some((rank, ABORT)));
        }
        "watchdog_timeout" => story.record(at, Who::Rank(rank), lines.join("\n")),
        _ => {
            let text = format!(
                "Scheduler hit an exception: Traceback (most recent call last):\n  File \"sglang/srt/managers/scheduler.py\", line 4609, in run_scheduler_process\n    scheduler = Scheduler(server_args)\n{}\n",
                lines.join("\n")
            );
            story.record(at, Who::Rank(rank), text);
        }
    }
    sigquit(story, at);
    (Ending::Signal(KILL), None)
}

fn sigquit(story: &mut Story<'_>, at: Duration) {
    story.record(at, Who::Main, "Received sigquit from a child process. It usually means the child failed.");
    story.record(at, Who::Main, "kill_process_tree called: parent_pid={pid}, include_parent=True, pid={pid}");
}

fn watchdog(rank: u32) -> String {
    format!(
        "[rank{rank}]:[E ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
    )
}

/// vLLM: the worker tells its traceback, the engine process one of its own, the API server another; then it exits.
fn vllm(story: &mut Story<'_>, at: Duration, kind: &str, rank: u32) -> (Ending, Option<(u32, i32)>) {
    let lines = error(story.model, kind, rank);
    match kind {
        "feature_off" | "cpu_fallback" => return (Ending::Serves, None),
        "collective_timeout" => story.put(at, Who::Rank(rank), What::Plain(watchdog(rank))),
        _ if matches!(usual_phase(Played::Vllm, kind), "launch" | "config") => {
            traceback(story, at, Who::Main, "vllm/entrypoints/cli/main.py", &lines);
            return (Ending::Exits(1), None);
        }
        _ if story.model.ranks > 1 => super::vllm::worker_failed(story, at, rank, &lines),
        _ => {
            for line in
                [vec!["EngineCore failed to start.".to_owned(), "Traceback (most recent call last):".to_owned()], lines]
                    .concat()
            {
                story.put(at, Who::Engine, What::Record(Level::Error, line));
            }
        }
    }
    if story.model.ranks > 1 {
        let text = "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.";
        story.put(at, Who::Engine, What::Record(Level::Error, text.to_owned()));
    }
    engine_failed(story, at);
    (Ending::Exits(1), None)
}

fn engine_failed(story: &mut Story<'_>, at: Duration) {
    let lines = ["RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"];
    traceback(story, at, Who::Main, "vllm/v1/engine/utils.py", &lines.map(str::to_owned));
}

/// llama-server: the library's line, then who passes it on.
fn llamacpp(story: &mut Story<'_>, at: Duration, kind: &str) -> (Ending, Option<(u32, i32)>) {
    let name = story.model.name.clone();
    let mut errors = Vec::new();
    match kind {
        "weights_missing" => errors.push(format!(
            "gguf_init_from_file: failed to open GGUF file '{name}' (No such file or directory)"
        )),
        "unsupported_model" => {
            errors.push("llama_model_load: error loading model: error loading model architecture: unknown model architecture: 'nosuch'".to_owned());
        }
        "weights_mismatch" => errors.push(
            "llama_model_load: error loading model: tensor 'blk.11.ffn_up.weight' data is not within the file bounds, model is corrupted or incomplete"
                .to_owned(),
        ),
        "draft_mismatch" => {
            errors.push("srv    load_model: the draft vocab (151936) != target vocab (49152)".to_owned());
            errors.push(format!("srv    load_model: failed to load draft model, '{name}'"));
        }
        "oom_weights" => errors.push("alloc_tensor_range: allocating 18432.00 MiB on device 0: cudaMalloc failed: out of memory".to_owned()),
        "oom_kv" => {
            errors.push("alloc_tensor_range: failed to allocate CUDA0 buffer of size 38654705664".to_owned());
            errors.push("llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache".to_owned());
        }
        "oom_profile" => errors.push("graph_reserve: failed to allocate compute buffers".to_owned()),
        "gpu_unavailable" => errors.push("ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected".to_owned()),
        "cpu_fallback" => {
            story.put(at, Who::Main, What::Record(Level::Error, "ggml_cuda_init: failed to initialize CUDA: forward compatibility was attempted on non supported HW".to_owned()));
            return (Ending::Serves, None);
        }
        "feature_off" => {
            story.put(at, Who::Main, What::Record(Level::Warning, "common_speculative_init: speculative decoding not supported by this context".to_owned()));
            return (Ending::Serves, None);
        }
        "cuda_fault" => {
            story.put(at, Who::Main, What::Plain("CUDA error: an illegal memory access was encountered".to_owned()));
            story.put(at, Who::Main, What::Plain("  current device: 0, in function ggml_backend_cuda_synchronize".to_owned()));
            return (Ending::Signal(ABORT), None);
        }
        "nan_output" => {
            story.put(at, Who::Main, What::Plain("GGML_ASSERT(!isnan(logits[0])) failed".to_owned()));
            return (Ending::Signal(ABORT), None);
        }
        _ => errors.push("llama_model_load: error loading model: something went wrong that has no name".to_owned()),
    }
    errors.push(format!("srv    load_model: failed to load model, '{name}'"));
    for text in errors {
        story.put(at, Who::Main, What::Record(Level::Error, text));
    }
    story.record(at, Who::Main, "srv    operator(): operator(): cleaning up before exit...");
    story.put(
        at,
        Who::Main,
        What::Record(Level::Error, "srv  llama_server: exiting due to model loading error".to_owned()),
    );
    (Ending::Exits(1), None)
}

/// The kernel killed a worker: it says nothing, and its parent only that it is gone.
fn killed(story: &mut Story<'_>, at: Duration, rank: u32) -> (Ending, Option<(u32, i32)>) {
    match story.model.played {
        // One process: nobody is left to say anything.
        Played::Llamacpp => (Ending::Signal(KILL), None),
        Played::Sglang => {
            let text = format!(
                "Rank {rank} scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), the OS may have killed it for memory."
            );
            traceback(story, at, Who::Main, "sglang/srt/entrypoints/engine.py", &[format!("RuntimeError: {text}")]);
            (Ending::Exits(1), Some((rank, KILL)))
        }
        Played::Vllm => {
            let text =
                format!("Worker proc VllmWorker-{rank} died unexpectedly (exit code: -9), shutting down executor.");
            story.put(at, Who::Engine, What::Record(Level::Error, text));
            engine_failed(story, at);
            (Ending::Exits(1), Some((rank, KILL)))
        }
    }
}

fn bad_flag(story: &mut Story<'_>, at: Duration) -> (Ending, Option<(u32, i32)>) {
    let (text, code) = match story.model.played {
        Played::Sglang => (
            "usage: launch_server.py [-h] --model-path MODEL_PATH\nlaunch_server.py: error: unrecognized arguments: --no-such-flag 1",
            2,
        ),
        Played::Vllm => {
            ("usage: vllm serve [model_tag] [options]\nvllm: error: unrecognized arguments: --no-such-flag 1", 2)
        }
        Played::Llamacpp => ("error: invalid argument: --no-such-flag", 1),
    };
    story.put(at, Who::Main, What::Plain(text.to_owned()));
    (Ending::Exits(code), None)
}

fn port_in_use(story: &mut Story<'_>, at: Duration) -> (Ending, Option<(u32, i32)>) {
    let port = story.model.port;
    match story.model.played {
        Played::Sglang => story.record(at, Who::Main, format!("ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', {port}): address already in use")),
        Played::Vllm => traceback(story, at, Who::Main, "vllm/entrypoints/openai/api_server.py", &["OSError: [Errno 98] Address already in use".to_owned()]),
        Played::Llamacpp => {
            let text = format!("srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: {port}");
            story.put(at, Who::Main, What::Record(Level::Error, text));
            story.put(at, Who::Main, What::Record(Level::Error, "srv  llama_server: exiting due to HTTP server error".to_owned()));
        }
    }
    (Ending::Exits(1), None)
}

fn traceback(story: &mut Story<'_>, at: Duration, who: Who, file: &str, lines: &[String]) {
    let text =
        format!("Traceback (most recent call last):\n  File \"{file}\", line 84, in <module>\n{}", lines.join("\n"));
    story.put(at, who, What::Plain(text));
}
