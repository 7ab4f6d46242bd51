//! Made logs of servers that start, serve for hours and then fail: their shape is that of the engines' logs, and no line of
//! them was written by one.

use std::io::{self, Write};

/// Whose words a log is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Sglang,
    Vllm,
    Llamacpp,
}

impl Engine {
    pub(crate) const ALL: [Engine; 3] = [Engine::Sglang, Engine::Vllm, Engine::Llamacpp];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Engine::Sglang => "sglang",
            Engine::Vllm => "vllm",
            Engine::Llamacpp => "llamacpp",
        }
    }

    /// The kind of failure in which a log ends.
    pub(crate) fn ends_in(self) -> &'static str {
        match self {
            Engine::Sglang | Engine::Llamacpp => "oom_runtime",
            Engine::Vllm => "cuda_fault",
        }
    }
}

/// What serving is like: a few numbers that go up and down.
struct Made<W> {
    into: W,
    bytes: u64,
    lines: u64,
    count: u64,
}

impl<W: Write> Made<W> {
    fn line(&mut self, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        struct Counting<'w, W>(&'w mut W, u64);
        impl<W: Write> Write for Counting<'_, W> {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let written = self.0.write(bytes)?;
                self.1 += written as u64;
                Ok(written)
            }
            fn flush(&mut self) -> io::Result<()> {
                self.0.flush()
            }
        }
        let mut counting = Counting(&mut self.into, 0);
        writeln!(counting, "{text}")?;
        self.bytes += counting.1;
        self.lines += 1;
        Ok(())
    }

    /// A number below a limit, another one each time.
    fn some(&mut self, below: u64) -> u64 {
        self.count = self.count.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.count >> 33) % below
    }
}

/// Writes a log of about so many bytes. Gives the number of the line that is its cause.
pub(crate) fn write(engine: Engine, bytes: u64, into: impl Write) -> io::Result<u64> {
    let mut made = Made { into, bytes: 0, lines: 0, count: 29 };
    match engine {
        Engine::Sglang => sglang(&mut made, bytes),
        Engine::Vllm => vllm(&mut made, bytes),
        Engine::Llamacpp => llamacpp(&mut made, bytes),
    }
}

/// `HH:MM:SS` of a second of a day.
fn clock(second: u64) -> String {
    format!("{:02}:{:02}:{:02}", second / 3600 % 24, second / 60 % 60, second % 60)
}

fn sglang<W: Write>(made: &mut Made<W>, bytes: u64) -> io::Result<u64> {
    let day = "2026-11-01";
    for text in [
        "server_args=ServerArgs(model_path='/m/tiny', tp_size=2, mem_fraction_static=0.9)",
        "Load weight begin. avail mem=78.10 GB",
        "Load weight end. elapsed=12.10 s, type=TinyForCausalLM, avail mem=70.10 GB, mem usage=8.00 GB.",
        "KV Cache is allocated. #tokens: 262144, K size: 30.00 GB, V size: 30.00 GB",
        "Capture cuda graph begin. This can take up to several minutes. avail mem=9.10 GB",
        "Capture cuda graph end. Time elapsed: 9.10 s. mem usage=1.00 GB. avail mem=8.10 GB.",
    ] {
        for rank in 0..2 {
            made.line(format_args!("[{day} 09:00:00 TP{rank}] {text}"))?;
        }
    }
    made.line(format_args!("[{day} 09:00:30] The server is fired up and ready to roll!"))?;
    let mut step = 0;
    while made.bytes < bytes {
        step += 1;
        let at = clock(9 * 3600 + step / 20);
        let (running, rate, length) = (made.some(16) + 1, made.some(4000), made.some(120) + 150);
        for _ in 0..3 {
            let tokens = made.some(200_000);
            made.line(format_args!(
                "[{day} {at} TP0] Decode batch, #running-req: {running}, #full token: {tokens}, full token usage: 0.42, \
                 accept len: {}.{:02}, accept rate: 0.57, cuda graph: True, gen throughput (token/s): {rate}.40, #queue-req: {}",
                length / 100,
                length % 100,
                tokens % 5
            ))?;
        }
        let (new, port) = (made.some(8000) + 2, made.some(30_000) + 30_000);
        made.line(format_args!(
            "[{day} {at} TP0] Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: {}, token usage: 0.41, \
             #running-req: {running}, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): {}.74",
            new / 3,
            new * 2
        ))?;
        made.line(format_args!(
            "[{day} {at}] INFO:     10.0.0.7:{port} - \"POST /v1/chat/completions HTTP/1.1\" 200 OK"
        ))?;
        if step.is_multiple_of(7) {
            made.line(format_args!("[{day} {at}] INFO:     10.0.0.1:{port} - \"GET /health HTTP/1.1\" 200 OK"))?;
        }
        if step.is_multiple_of(997) {
            made.line(format_args!("[{day} {at} TP0] KV cache pool is full. Retract requests. #retracted_reqs: 2"))?;
        }
        if step.is_multiple_of(5003) {
            // A request that cannot be answered, which the server survives.
            made.line(format_args!("[{day} {at}] ERROR:    Exception in ASGI application"))?;
            made.line(format_args!("Traceback (most recent call last):"))?;
            made.line(format_args!("  File \"api.py\", line 3, in chat"))?;
            made.line(format_args!("ValueError: this request asks for what nobody has"))?;
        }
    }
    let at = clock(9 * 3600 + step / 20 + 1);
    made.line(format_args!("[{day} {at} TP1] Scheduler hit an exception: Traceback (most recent call last):"))?;
    made.line(format_args!("  File \"model_runner.py\", line 3, in forward"))?;
    made.line(format_args!(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.18 GiB. GPU 1 has a total capacity of 79.10 GiB of which 0.40 GiB is free."
    ))?;
    let cause = made.lines;
    made.line(format_args!("[{day} {at}] Received sigquit from a child process. It usually means the child failed."))?;
    Ok(cause)
}

fn vllm<W: Write>(made: &mut Made<W>, bytes: u64) -> io::Result<u64> {
    for text in [
        "(APIServer pid=101) INFO 11-01 09:00:00 [api_server.py:1] vLLM API server version 0.32.0",
        "(EngineCore_DP0 pid=102) INFO 11-01 09:00:03 [gpu_model_runner.py:1] Starting to load model tiny...",
        "(EngineCore_DP0 pid=102) INFO 11-01 09:00:09 [default_loader.py:1] Loading weights took 6.20 seconds",
        "(EngineCore_DP0 pid=102) INFO 11-01 09:00:11 [gpu_worker.py:1] Available KV cache memory: 40.20 GiB",
        "(APIServer pid=101) INFO:     Application startup complete.",
    ] {
        made.line(format_args!("{text}"))?;
    }
    let mut step = 0;
    while made.bytes < bytes {
        step += 1;
        let at = clock(9 * 3600 + step * 10);
        let (rate, length, used) = (made.some(4000), made.some(120) + 150, made.some(100));
        made.line(format_args!(
            "(APIServer pid=101) INFO 11-01 {at} [loggers.py:271] Engine 000: Avg prompt throughput: {}.4 tokens/s, \
             Avg generation throughput: {rate}.4 tokens/s, Running: {} reqs, Waiting: 0 reqs, GPU KV cache usage: {used}.1%, \
             Prefix cache hit rate: 21.0%",
            rate * 2,
            used % 17
        ))?;
        made.line(format_args!(
            "(APIServer pid=101) INFO 11-01 {at} [metrics.py:100] SpecDecoding metrics: Mean acceptance length: {}.{:02}, \
             Accepted throughput: 12.00 tokens/s, Drafted throughput: 30.00 tokens/s, Accepted: {rate} tokens, Drafted: {} \
             tokens, Per-position acceptance rate: 0.800, 0.500, Avg Draft acceptance rate: {used}.1%",
            length / 100,
            length % 100,
            rate * 3
        ))?;
        for _ in 0..6 {
            let port = made.some(30_000) + 30_000;
            made.line(format_args!(
                "(APIServer pid=101) INFO:     10.0.0.7:{port} - \"POST /v1/chat/completions HTTP/1.1\" 200 OK"
            ))?;
        }
    }
    let at = clock(9 * 3600 + step * 10 + 3);
    let head = format!("(EngineCore_DP0 pid=102) ERROR 11-01 {at} [core.py:9]");
    made.line(format_args!("{head} EngineCore encountered a fatal error."))?;
    made.line(format_args!("{head} Traceback (most recent call last):"))?;
    made.line(format_args!("{head}   File \"gpu_model_runner.py\", line 3, in execute_model"))?;
    made.line(format_args!("{head} torch.AcceleratorError: CUDA error: an illegal memory access was encountered"))?;
    let cause = made.lines;
    made.line(format_args!(
        "(APIServer pid=101) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
    ))?;
    Ok(cause)
}

fn llamacpp<W: Write>(made: &mut Made<W>, bytes: u64) -> io::Result<u64> {
    for text in [
        "build: 10434 (0000000) with made for testing",
        "srv    load_model: loading model '/m/tiny.gguf'",
        "load_tensors:        CUDA0 model buffer size =  8000.00 MiB",
        "main: model loaded",
        "main: server is listening on http://127.0.0.1:8080 - starting the main loop",
        "srv  update_slots: all slots are idle",
    ] {
        made.line(format_args!("{text}"))?;
    }
    let mut task = 0;
    while made.bytes < bytes {
        task += 30;
        let (slot, new, length) = (made.some(4), made.some(4000) + 100, made.some(120) + 150);
        let head = format!("id  {slot} | task {task} |");
        made.line(format_args!("slot get_availabl: id  {slot} | task -1 | selected slot by LRU, t_last = -1"))?;
        made.line(format_args!("slot launch_slot_: {head} processing task, is_child = 0"))?;
        for _ in 0..4 {
            let done = made.some(800);
            made.line(format_args!(
                "slot print_timing: {head} n_gen =    {done}, tg =  28.84 t/s, tg_3s =  29.12 t/s"
            ))?;
        }
        made.line(format_args!(
            "slot print_timing: {head} prompt eval time =     150.85 ms / {new} tokens (    5.20 ms per token,   {}.24 tokens per second)",
            new / 2
        ))?;
        made.line(format_args!(
            "slot print_timing: {head}        eval time =    4409.36 ms /   128 tokens (   34.72 ms per token,    {}.80 tokens per second)",
            20 + slot
        ))?;
        made.line(format_args!("slot print_timing: {head}       total time =    4560.21 ms /   157 tokens"))?;
        made.line(format_args!(
            "slot print_timing: {head} draft acceptance = 0.92593 (  100 accepted /   108 generated), mean len =  {}.{:02}",
            length / 100,
            length % 100
        ))?;
        made.line(format_args!("slot      release: {head} stop processing: n_tokens = {new}, truncated = 0"))?;
        made.line(format_args!("srv  log_server_r: done request: POST /v1/chat/completions 10.0.0.7 200"))?;
    }
    made.line(format_args!(
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 512.00 MiB on device 0: cudaMalloc failed: out of memory"
    ))?;
    let cause = made.lines;
    made.line(format_args!("ggml_abort: the made server ends here"))?;
    Ok(cause)
}
