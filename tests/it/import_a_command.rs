//! What starts a server today becomes a profile, whatever its shape, and the profile renders the same flags again.

use std::path::Path;

use crate::support::{Home, Ran, free_port};

/// Where the commands lie.
fn data(name: &str) -> String {
    format!("tests/data/import/{name}")
}

fn import(home: &Home, words: &[&str]) -> Ran {
    let mut command = home.orch(&[&["import"], words].concat());
    command.env("HOME", "/home/ada").env_remove("HF_TOKEN").env_remove("PORT").env_remove("DEBUG");
    Ran::of(command.output().unwrap())
}

/// Imports a file, holds the profile against `orch check`, and gives it.
#[track_caller]
fn imported(home: &Home, name: &str) -> String {
    let ran = import(home, &[&data(name)]).expect(0);
    assert_eq!(ran.stderr, "", "nothing is wrong with it");
    let path = home.write("imported.yaml", &ran.stdout).display().to_string();
    home.run(&["check", &path]).expect(0);
    assert!(!ran.stdout.contains("madeUp") && !ran.stdout.contains("madeup"), "a secret is shown:\n{}", ran.stdout);
    ran.stdout
}

/// The command of the profile that was imported last, one flag a line.
fn rendered(home: &Home) -> String {
    home.run(&["render", &home.path("imported.yaml").display().to_string()]).expect(0).stdout
}

macro_rules! story {
    ($name:ident, $file:literal) => {
        #[test]
        fn $name() {
            let home = Home::new();
            let profile = imported(&home, $file);
            insta::assert_snapshot!(format!("{profile}---\n{}", rendered(&home)));
        }
    };
}

story!(a_unit_with_a_drop_in_and_a_comment_inside_its_command, "sglang-qwen.service");
story!(a_template_of_units_with_variables_and_a_secret, "vllm@qwen3-8b.service");
story!(a_users_llama_server_in_short_flags, "llama.service");
story!(a_unit_that_starts_a_shell, "bash-c.service");
story!(a_script_with_variables_lists_and_redirections, "glm.sh");
story!(a_container, "vllm-docker.sh");
story!(a_slurm_job, "kimi.sbatch");
story!(an_old_spelling_names_the_versions_that_have_it, "old-sglang.sh");
story!(a_json_of_speculation_and_underscores, "vllm-speculative.sh");
story!(a_server_that_orch_does_not_know, "tgi.sh");

#[test]
fn a_trtllm_command_in_either_spelling_of_its_flags() {
    let home = Home::new();
    let words = ["--", "trtllm-serve", "serve", "nvidia/Llama-3.1-8B-Instruct-FP8", "--host", "0.0.0.0", "--port=8000"];
    let more = ["--tensor_parallel_size", "2", "--max_batch_size", "64", "--max_seq_len", "8192"];
    let rest = ["--free_gpu_memory_fraction", "0.85", "--extra_llm_api_options", "opts.yaml"];
    let profile = import(&home, &[&words[..], &more, &rest].concat()).expect(0).stdout;
    home.write("imported.yaml", &profile);
    insta::assert_snapshot!(format!("{profile}---\n{}", rendered(&home)));
}

#[test]
fn a_command_that_is_typed() {
    let home = Home::new();
    let words = ["--", "A=1", "vllm", "serve", "Qwen/Qwen3-8B", "-tp=2", "--port", "8000", "--api-key", "verysecret"];
    let ran = import(&home, &words).expect(0);
    assert!(!ran.stdout.contains("verysecret"), "{}", ran.stdout);
    insta::assert_snapshot!(ran.stdout, @r#"
    # Imported from a command, vllm.
    # left out: `--api-key ***`: orch asks a server of its own without a key, and a key is a secret, which no
    #   profile may hold
    engine: vllm
    model: {path: Qwen/Qwen3-8B, served_name: Qwen/Qwen3-8B}
    port: 8000
    parallel: {tensor: 2}
    env: {A: "1"}
    # as imported; `on` adds `--enable-prompt-tokens-details`, by which orch reads the server's counters
    instrument: off
    "#);
    let one = import(&home, &["--", "A=1 vllm serve Qwen/Qwen3-8B -tp=2 --port 8000 --api-key verysecret"]).expect(0);
    let without_head = |text: &str| text.split_once('\n').unwrap().1.to_owned();
    assert_eq!(without_head(&one.stdout), without_head(&ran.stdout), "one quoted line is the same");
}

#[test]
fn the_unit_that_orch_writes_comes_back_as_its_profile() {
    let home = Home::new();
    let text = "engine: sglang ==0.5.23\nmodel: Qwen/Qwen3-8B@9c1f2ab\nport: 30007\nparallel: {tensor: 2}\nspeculative: {method: mtp, steps: 3}\n\
                flags: {chunked-prefill-size: 4096, json-model-override-args: '{\"a\": \"50% of $x\"}'}\nenv: {NOTE: \"a b\"}\nsecrets: [HF_TOKEN]\n";
    let profile = home.write("p.yaml", text).display().to_string();
    let unit = home.run(&["render", &profile, "--format", "unit"]).expect(0).stdout;
    let unit = home.write("orch-p.service", &unit).display().to_string();
    let ran = import(&home, &[&unit, "--engine-version", "0.5.23"]).expect(0);
    let again = home.write("again.yaml", &ran.stdout).display().to_string();
    let command = |profile: &str| home.run(&["render", profile, "--format", "argv"]).expect(0).stdout;
    assert_eq!(command(&again), command(&profile));
}

#[test]
fn what_cannot_be_imported_is_told() {
    let home = Home::new();
    let two = home
        .write("two.sh", "vllm serve A --port 1 --api-key verysecret &\nvllm serve B --port 2\n")
        .display()
        .to_string();
    let open = home.write("open.sh", "vllm serve 'A\n").display().to_string();
    let none = home.write("none.sh", "echo hello\nmkdir x\n").display().to_string();
    let bare = ["--", "python3", "-m", "sglang.launch_server", "--tp", "2"];
    let all = [
        vec![two.as_str()],
        vec![&open],
        vec![&none],
        bare.to_vec(),
        vec!["no-such.service"],
        vec![],
        vec!["--pid", "4194304"],
    ];
    let mut said = String::new();
    for words in all {
        let ran = import(&home, &words).expect(2);
        assert!(ran.stdout.is_empty() && !ran.stderr.contains("verysecret"), "{}{}", ran.stdout, ran.stderr);
        said.push_str(&ran.stderr.replace(&home.path("").display().to_string(), "HOME/"));
    }
    insta::assert_snapshot!(said);
}

#[test]
fn a_profile_that_is_there_is_not_written_over() {
    let home = Home::new();
    let path = home.path("qwen.yaml").display().to_string();
    let words = ["-o", &path, "--", "vllm", "serve", "Qwen/Qwen3-8B"];
    let first = import(&home, &words).expect(0);
    assert_eq!((first.stdout.as_str(), first.stderr), ("", format!("wrote {path}\n")));
    home.run(&["check", &path]).expect(0);
    let again = import(&home, &words).expect(2);
    assert!(again.stderr.contains("orch replaces no profile"), "{}", again.stderr);
}

#[test]
fn a_process_and_the_address_that_it_listens_on() {
    // A stand-in with the name and the words of llama-server, which answers its pages.
    let home = Home::new();
    let port = free_port().to_string();
    let program = home.write("llama-server", include_str!("../data/servers/llama-pages.py"));
    let words = ["-m", "/models/tiny.gguf", "-c", "8192", "-np", "2", "--port", &port, "--fit", "off"];
    let mut server = std::process::Command::new("python3")
        .args(["-c", "import os,sys; os.execvp('python3', ['llama-server', sys.argv[1], *sys.argv[2:]])"])
        .arg(&program)
        .args(words)
        .env_remove("LD_LIBRARY_PATH")
        .env("GGML_TEST", "1")
        .env("HF_TOKEN", "hf_madeUpForTheTests0000")
        .spawn()
        .unwrap();
    let address = format!("127.0.0.1:{port}");
    for _ in 0..600 {
        if std::net::TcpStream::connect(&address).is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let by_address = import(&home, &[&address]);
    let by_pid = import(&home, &["--pid", &server.id().to_string()]);
    server.kill().unwrap();
    server.wait().unwrap();
    let address_says = by_address.stdout.clone();
    for ran in [by_address.expect(0), by_pid.expect(0)] {
        let profile = ran.stdout;
        assert!(!profile.contains("madeUp"), "{profile}");
        for line in [
            "model: /models/tiny.gguf",
            &format!("port: {port}"),
            "context_length: 4096",
            "max_running_requests: 2",
            "env: {GGML_TEST: \"1\"}",
            "secrets: [HF_TOKEN]",
        ] {
            assert!(profile.lines().any(|each| each == line), "{line}\n{profile}");
        }
    }
    // Its build number is told by its pages only.
    assert!(address_says.contains("version: \"==b10434\""), "{address_says}");
}

#[test]
fn every_profile_that_comes_with_orch_comes_back_from_its_command() {
    let home = Home::new();
    let mut count = 0;
    for entry in std::fs::read_dir("profiles").unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "yaml")
            || path.file_stem().is_some_and(|stem| stem == "hosts")
        {
            continue;
        }
        same_again(&home, &path);
        count += 1;
    }
    assert!(count >= 5, "{count} profiles");
}

/// Renders a profile, imports the command, and renders that.
#[track_caller]
fn same_again(home: &Home, profile: &Path) {
    let name = profile.display().to_string();
    let json = |profile: &str| -> serde_json::Value {
        serde_json::from_str(&home.run(&["render", profile, "--format", "json"]).expect(0).stdout).unwrap()
    };
    let first = json(&name);
    let version = first["engine"]["version"].as_str().unwrap().to_owned();
    let words: Vec<&str> = first["argv"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    let env =
        first["env"].as_object().unwrap().iter().map(|(name, value)| format!("{name}={}", value.as_str().unwrap()));
    let env: Vec<String> = std::iter::once("env".to_owned()).chain(env).collect();
    let mut all = vec!["--engine-version", version.as_str(), "--"];
    all.extend(env.iter().map(String::as_str));
    all.extend(words);
    let ran = import(home, &all).expect(0);
    assert_eq!(ran.stderr, "", "{name}");
    let again = home.write("again.yaml", &ran.stdout).display().to_string();
    let second = json(&again);
    // A scenario is a JSON, whose keys have no order.
    let words = |command: &serde_json::Value| -> Vec<serde_json::Value> {
        let words = command["argv"].as_array().unwrap().iter();
        words.map(|word| serde_json::from_str(word.as_str().unwrap()).unwrap_or_else(|_| word.clone())).collect()
    };
    assert_eq!(words(&second), words(&first), "{name}\n{}", ran.stdout);
    assert_eq!(second["env"], first["env"], "{name}\n{}", ran.stdout);
}
