//! Looking at a server from outside: its processes in `/proc`, its devices, the caches of compiled kernels.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::{JitCache, Look, Seen};
use crate::launch::{Process, gpu};

/// A title is told as far as this.
const TITLE_BYTES: usize = 200;
/// So many entries of caches are looked at: one that is larger is looked at in part.
const MOST_ENTRIES: usize = 4000;
/// Compiled kernels lie no deeper than so many folders below their cache.
const DEPTH: usize = 3;

/// What is looked at.
#[derive(Clone, Debug, Default)]
pub struct Where {
    /// The processes; those that are gone by now are left out.
    pub processes: Option<Vec<Process>>,
    /// The devices, by UUID; none is asked when this is empty.
    pub devices: Vec<String>,
    /// Folders of caches; empty where they are not looked at this time.
    pub caches: Vec<PathBuf>,
    /// The log.
    pub log: PathBuf,
}

/// Looks. It may run programs and read many small files: not on a thread that serves others.
pub fn look(at: &Where) -> Look {
    let living = |processes: &Vec<Process>| processes.iter().filter_map(|process| seen(*process)).collect();
    Look {
        processes: at.processes.as_ref().map(living),
        devices: devices(&at.devices),
        jit_cache: (!at.caches.is_empty()).then(|| jit_cache(&at.caches)),
        log_bytes: std::fs::metadata(&at.log).map_or(0, |meta| meta.len()),
    }
}

fn devices(wanted: &[String]) -> Option<Vec<gpu::Reading>> {
    if wanted.is_empty() {
        return None;
    }
    let mut readings = gpu::here().readings()?;
    readings.retain(|reading| wanted.contains(&reading.uuid));
    (!readings.is_empty()).then_some(readings)
}

fn seen(process: Process) -> Option<Seen> {
    if !process.lives() {
        return None;
    }
    let folder = PathBuf::from(format!("/proc/{}", process.pid));
    let text = |name: &str| std::fs::read(folder.join(name)).unwrap_or_default();
    let io = String::from_utf8_lossy(&text("io")).into_owned();
    let count = |name: &str| io.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some(Seen {
        pid: process.pid,
        start_ticks: process.start_ticks,
        name: String::from_utf8_lossy(&text("comm")).trim().to_owned(),
        title: title(&text("cmdline")),
        read_bytes: count("read_bytes:"),
        read_anywhere_bytes: count("rchar:"),
        written_bytes: count("wchar:"),
    })
}

/// The words of a command line; one that was overwritten by a title is followed by what is left of the old one as zeros.
fn title(cmdline: &[u8]) -> String {
    let words = cmdline.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let text = words.map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ");
    text.chars().take(TITLE_BYTES).collect()
}

/// Where the libraries that engines are made of keep what they compile, by the variables that say so and else by their
/// own defaults.
pub fn caches(env: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let home = env("HOME").map(PathBuf::from);
    let cache = env("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(home.as_ref()?.join(".cache")));
    let user = env("USER").unwrap_or_else(|| "root".to_owned());
    let of = |name: &str, default: Option<PathBuf>| env(name).map(PathBuf::from).or(default);
    let in_cache = |name: &str| cache.as_ref().map(|cache| cache.join(name));
    let in_home = |name: &str| home.as_ref().map(|home| home.join(name));
    [
        of("TRITON_CACHE_DIR", in_home(".triton/cache")),
        of("TORCHINDUCTOR_CACHE_DIR", Some(std::env::temp_dir().join(format!("torchinductor_{user}")))),
        of("TORCH_EXTENSIONS_DIR", in_cache("torch_extensions")),
        of("VLLM_CACHE_ROOT", in_cache("vllm")).map(|root| root.join("torch_compile_cache")),
        of("FLASHINFER_WORKSPACE_BASE", home.clone()).map(|base| base.join(".cache/flashinfer")),
        of("DG_JIT_CACHE_DIR", in_home(".deep_gemm")),
        of("SGLANG_DG_CACHE_DIR", in_cache("deep_gemm")),
        of("CUDA_CACHE_PATH", in_home(".nv/ComputeCache")),
        of("TVM_FFI_CACHE_DIR", in_cache("tvm-ffi")),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn jit_cache(caches: &[PathBuf]) -> JitCache {
    let mut found = JitCache::default();
    let mut folders: VecDeque<(PathBuf, usize)> = caches.iter().map(|cache| (cache.clone(), 0)).collect();
    let mut looked = 0;
    while let Some((folder, depth)) = folders.pop_front() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            looked += 1;
            if looked > MOST_ENTRIES {
                return found;
            }
            let Ok(meta) = entry.metadata() else { continue };
            found.entries += 1;
            found.newest_s = found.newest_s.max(changed_s(&meta));
            if meta.is_dir() && depth < DEPTH {
                folders.push_back((entry.path(), depth + 1));
            }
        }
    }
    found
}

fn changed_s(meta: &std::fs::Metadata) -> i64 {
    let since = meta.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    since.and_then(|since| i64::try_from(since.as_secs()).ok()).unwrap_or(0)
}

/// How many bytes the files of a model hold: a file as it is, of a folder those that hold weights. `None` where there is
/// no such thing here.
pub fn weights_bytes(model: &Path) -> Option<u64> {
    let meta = std::fs::metadata(model).ok()?;
    if meta.is_file() {
        return Some(meta.len());
    }
    let is_weights = |path: &Path| {
        path.extension()
            .and_then(|end| end.to_str())
            .is_some_and(|end| ["safetensors", "bin", "pt", "gguf"].contains(&end))
    };
    let files = std::fs::read_dir(model).ok()?.flatten().map(|entry| entry.path()).filter(|path| is_weights(path));
    let bytes: u64 = files.filter_map(|path| std::fs::metadata(path).ok()).map(|meta| meta.len()).sum();
    (bytes > 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_told_without_what_is_left_of_the_old_one() {
        assert_eq!(title(b"sglang::scheduler_TP0\0\0\0\0\0"), "sglang::scheduler_TP0");
        assert_eq!(title(b"python3\0-m\0x\0"), "python3 -m x");
        assert_eq!(title(b""), "");
    }

    #[test]
    fn this_process_is_seen_with_what_it_read() {
        let own = Process::of(std::process::id()).unwrap();
        let at = Where { processes: Some(vec![own, Process { pid: own.pid, start_ticks: 1 }]), ..Where::default() };
        let look = look(&at);
        let processes = look.processes.unwrap();
        assert_eq!(processes.len(), 1, "one that started at another moment is another one");
        assert!(!processes[0].title.is_empty());
        assert_eq!((look.devices, look.jit_cache), (None, None));
    }

    #[test]
    fn a_cache_that_grows_is_seen_and_variables_say_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let env = |name: &str| (name == "TRITON_CACHE_DIR").then(|| folder.path().display().to_string());
        let all = caches(&env);
        assert!(all.contains(&folder.path().to_owned()), "{all:?}");
        let before = jit_cache(&[folder.path().to_owned()]);
        assert_eq!(before, JitCache::default());
        std::fs::create_dir_all(folder.path().join("ab/cd")).unwrap();
        std::fs::write(folder.path().join("ab/cd/kernel.cubin"), "x").unwrap();
        assert_eq!(jit_cache(&[folder.path().to_owned()]).entries, 3);
        assert_eq!(jit_cache(&["/no/such/folder".into()]), JitCache::default());
    }

    #[test]
    fn the_size_of_a_model_is_that_of_its_weights() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(weights_bytes(folder.path()), None);
        std::fs::write(folder.path().join("model-1.safetensors"), [0; 100]).unwrap();
        std::fs::write(folder.path().join("model-2.safetensors"), [0; 50]).unwrap();
        std::fs::write(folder.path().join("config.json"), [0; 7]).unwrap();
        assert_eq!(weights_bytes(folder.path()), Some(150));
        assert_eq!(weights_bytes(&folder.path().join("config.json")), Some(7));
        assert_eq!(weights_bytes(Path::new("/no/such/model")), None);
    }
}
