//! Every profile becomes a command whose flags the engine knows, in the versions that are known and in the older ones with
//! their older names.

use std::path::Path;

use orch::engine::{self, FlagList, Version};
use orch::profile::{self, EngineKind, Profile, Request};
use orch::render::{self, Plan};

/// A profile of the repository, as `orch render` loads it.
fn profile(name: &str, set: &[&str]) -> Profile {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let set: Vec<String> = set.iter().map(|set| (*set).to_owned()).collect();
    let path = root.join(format!("profiles/{name}.yaml")).display().to_string();
    let request = Request { profile: &path, set: &set, folders: &[root.join("profiles")], env: &|_| None };
    profile::load(&request).unwrap_or_else(|error| panic!("{name}: {error:?}")).profile
}

fn plan(profile: &Profile, version: Option<&str>) -> Plan {
    let definition = engine::definition_for(&profile.engine, &[]).unwrap();
    let asked = version.map(Version::from);
    let assumed = render::assume(profile, &definition, asked.as_ref(), |_| Some("/env".into())).unwrap();
    render::plan(profile, &definition, &assumed.facts).unwrap_or_else(|faults| panic!("{}: {faults:?}", profile.name))
}

/// One flag a line, with its values, so that a difference speaks.
fn lines(plan: &Plan) -> String {
    let mut text = String::new();
    for rank in &plan.ranks {
        for (name, value) in &rank.env {
            text.push_str(&format!("{name}={value}\n"));
        }
        for word in &rank.argv {
            let flag = word.starts_with('-') && word.parse::<f64>().is_err();
            text.push_str(if text.is_empty() || text.ends_with('\n') {
                ""
            } else if flag {
                "\n"
            } else {
                " "
            });
            text.push_str(word);
        }
        text.push_str("\n\n");
    }
    for warning in &plan.warnings {
        text.push_str(&format!("{}: {}\n", warning.id, warning.text));
    }
    text
}

fn names() -> Vec<String> {
    crate::profile_layers::orch_profiles()
        .iter()
        .filter(|path| crate::profile_layers::is_profile(path) && !path.ends_with("full.yaml"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect()
}

fn list(kind: EngineKind, version: &str) -> FlagList {
    engine::definition(kind, &[]).unwrap().flag_lists.of(&version.into()).unwrap()
}

/// Long flags that a parser does not name. Words after a flag that take a value may begin with dashes; none here does.
fn unknown(plan: &Plan, list: &FlagList) -> Vec<String> {
    let words = plan.ranks.iter().flat_map(|rank| &rank.argv).filter(|word| word.starts_with("--"));
    words.filter(|word| list.find(word).is_none_or(|option| option.removed.is_some())).cloned().collect()
}

#[test]
fn every_profile_renders_for_the_reference_version_of_its_engine() {
    let names = names();
    assert!(names.len() >= 20, "{names:?}");
    for name in names {
        let profile = profile(&name, &[]);
        let plan = plan(&profile, None);
        insta::assert_snapshot!(format!("profile_{name}"), lines(&plan));
    }
}

#[test]
fn each_long_flag_is_one_that_the_parser_names() {
    for (kind, version) in
        [(EngineKind::Sglang, "0.5.23"), (EngineKind::Vllm, "0.32.0"), (EngineKind::Llamacpp, "b10434")]
    {
        let list = list(kind, version);
        let mut rendered = 0;
        for name in names() {
            let profile = profile(&name, &[]);
            if profile.engine.kind == kind {
                rendered += 1;
                assert_eq!(unknown(&plan(&profile, Some(version)), &list), [] as [&str; 0], "{name}");
            }
        }
        assert!(rendered >= 3, "{kind}");
    }
}

#[test]
fn older_versions_of_sglang_get_their_older_names() {
    for version in ["0.5.5", "0.5.12", "0.5.18"] {
        let list = list(EngineKind::Sglang, version);
        for name in names() {
            let profile = profile(&name, &[]);
            if profile.engine.kind == EngineKind::Sglang {
                assert_eq!(unknown(&plan(&profile, Some(version)), &list), [] as [&str; 0], "{name} in {version}");
            }
        }
        let set = ["graphs={max_batch: 16}", "parallel.expert=2"];
        insta::assert_snapshot!(
            format!("qwen_in_sglang_{version}"),
            lines(&plan(&profile("qwen-mtp3", &set), Some(version)))
        );
        let off = plan(&profile("glm5-nvfp4", &[]), Some(version));
        insta::assert_snapshot!(format!("glm5_in_sglang_{version}"), lines(&off));
    }
}

/// Each method under its neutral name, with the numbers that the engine counts by.
#[test]
fn all_speculative_methods_in_the_words_of_each_engine() {
    let methods: [(EngineKind, &str, &str, &[&str]); 3] = [
        (
            EngineKind::Sglang,
            "qwen-nospec",
            "flags.uno-lora-path=org/adapter",
            &["mtp", "eagle +", "eagle3 +", "draft +", "ngram", "dflash +", "dspark", "uno"],
        ),
        (
            EngineKind::Vllm,
            "qwen-nospec-vllm",
            "flags.seed=1",
            &["mtp", "eagle +", "eagle3 +", "draft +", "ngram", "ngram_gpu", "suffix", "dflash +", "dspark"],
        ),
        (
            EngineKind::Llamacpp,
            "smollm2",
            "flags.seed=1",
            &[
                "mtp",
                "eagle3 +",
                "draft +",
                "ngram",
                "ngram-simple",
                "ngram-map-k4v",
                "ngram-mod",
                "ngram-cache",
                "dflash +",
                "dspark +",
            ],
        ),
    ];
    for (kind, base, set, methods) in methods {
        let mut text = String::new();
        for method in methods {
            let (method, model) =
                method.split_once(" +").map_or((*method, ""), |(method, _)| (method, ", model: org/d"));
            let speculative = format!("speculative={{method: {method}, steps: 5{model}}}");
            // One GPU, which all methods run on.
            let mut sets = vec![speculative.as_str(), set];
            if kind != EngineKind::Llamacpp {
                sets.push("parallel.tensor=1");
            }
            let plan = plan(&profile(base, &sets), None);
            let words = plan.ranks[0].argv.iter().skip_while(|word| !word.contains("spec"));
            let until = ["--mem-fraction-static", "--gpu-memory-utilization", "--metrics"];
            let words: Vec<&str> = words.map(String::as_str).take_while(|word| !until.contains(word)).collect();
            text.push_str(&format!("{method}: {}\n", words.join(" ")));
        }
        insta::assert_snapshot!(format!("methods_of_{kind}"), text);
    }
}

#[test]
fn trees_keep_their_own_numbers() {
    let set = ["speculative={method: eagle3, model: org/head, steps: 3, topk: 4, draft_tokens: 16}"];
    let words = plan(&profile("qwen-nospec", &set), None).ranks[0].argv.join(" ");
    let expected = "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16";
    assert!(words.contains(expected), "{words}");
}

#[test]
fn keys_that_only_vllm_has_join_its_json() {
    let set =
        ["flags.speculative-config.draft_sample_method=probabilistic", "flags.speculative-config.prompt_lookup_max=4"];
    let words = plan(&profile("qwen-mtp3-vllm", &set), None).ranks.remove(0).argv;
    let at = words.iter().position(|word| word == "--speculative-config").unwrap();
    let config: serde_json::Value = serde_json::from_str(&words[at + 1]).unwrap();
    let expected = serde_json::json!({"method": "mtp", "num_speculative_tokens": 3,
        "draft_sample_method": "probabilistic", "prompt_lookup_max": 4});
    assert_eq!(config, expected);
    assert!(!words.iter().any(|word| word.contains("speculative-config.")), "{words:?}");
}

/// vLLM captures graphs for tokens, of which a drafting request has several.
#[test]
fn graphs_of_vllm_are_told_in_requests() {
    let words = |set: &[&str]| plan(&profile("qwen-mtp3-vllm", set), None).ranks.remove(0).argv.join(" ");
    assert!(words(&["graphs.max_batch=16"]).contains("--max-cudagraph-capture-size 64"));
    assert!(words(&["graphs.batches=[1, 2, 4]"]).contains("--cudagraph-capture-sizes 4 8 16"));
    assert!(words(&["graphs.max_batch=16", "speculative.steps=0"]).contains("--max-cudagraph-capture-size 16"));
}

#[test]
fn several_nodes_have_a_command_each() {
    let nodes = ["parallel.nodes=2", "hosts=[big1, big2]", "port=30000"];
    let shown = |name: &str, more: &[&str]| {
        let mut text = String::new();
        for rank in plan(&profile(name, &[&nodes, more].concat()), None).ranks {
            let head = if rank.head { ", the head" } else { "" };
            let of_nodes =
                ["nnodes", "node-rank", "dist-init", "master", "headless", "data-parallel", "tensor", "tp-size"];
            let mut words = rank.argv.iter().peekable();
            let mut shown = Vec::new();
            while let Some(word) = words.next() {
                if of_nodes.iter().any(|part| word.starts_with("--") && word.contains(part)) {
                    shown.push(word.clone());
                    shown.extend(words.next_if(|next| !next.starts_with("--")).cloned());
                }
            }
            text.push_str(&format!("{}{head}: {}\n", rank.node, shown.join(" ")));
        }
        text
    };
    insta::assert_snapshot!(shown("k2-thinking", &["parallel.tensor=16"]), @r"
    big1, the head: --tp-size 16 --nnodes 2 --node-rank 0 --dist-init-addr big1:31000
    big2: --tp-size 16 --nnodes 2 --node-rank 1 --dist-init-addr big1:31000
    ");
    insta::assert_snapshot!(shown("k2-thinking-vllm", &["parallel={tensor: 16, expert: 16}"]), @r"
    big1, the head: --tensor-parallel-size 16 --nnodes 2 --node-rank 0 --master-addr big1 --master-port 31000
    big2: --tensor-parallel-size 16 --nnodes 2 --node-rank 1 --master-addr big1 --master-port 31000 --headless
    ");
    insta::assert_snapshot!(shown("k2-thinking-vllm", &["parallel={tensor: 4, data: 4, expert: 16}"]), @r"
    big1, the head: --tensor-parallel-size 4 --data-parallel-size 4 --data-parallel-address big1 --data-parallel-rpc-port 31000 --data-parallel-size-local 2
    big2: --tensor-parallel-size 4 --data-parallel-size 4 --data-parallel-address big1 --data-parallel-rpc-port 31000 --data-parallel-size-local 2 --data-parallel-start-rank 2 --headless
    ");
}

#[test]
fn gpus_of_llama_server_share_equally() {
    let words = |set: &str| plan(&profile("smollm2", &[set]), None).ranks.remove(0).argv.join(" ");
    assert!(words("parallel.tensor=2").contains("--split-mode row --tensor-split 1,1"));
    assert!(words("parallel.pipeline=3").contains("--split-mode layer --tensor-split 1,1,1"));
    assert!(!words("parallel.tensor=1").contains("split"));
}

/// A flag of the user's own that takes several values is written as its parser reads it, whatever the definition says.
#[test]
fn a_list_follows_its_flag_where_the_parser_wants_it_so() {
    let words = |name: &str, set: &str| plan(&profile(name, &[set]), None).ranks.remove(0).argv.join(" ");
    assert!(words("qwen-nospec-vllm", "flags.middleware=[a, b]").ends_with("--middleware a --middleware b"));
    assert!(words("qwen-nospec-vllm", "flags.lora-modules=[a, b]").ends_with("--lora-modules a b"));
    assert!(words("qwen-nospec", "flags.numa-node=[0, 1]").contains("--numa-node 0 1"));
}

#[test]
fn what_is_left_open_is_told_with_what_to_do() {
    let ids = |name: &str, set: &[&str]| -> Vec<String> {
        plan(&profile(name, set), None).warnings.into_iter().map(|warning| warning.id).collect()
    };
    assert_eq!(ids("qwen-mtp3", &[]), [] as [&str; 0]);
    assert_eq!(
        ids("qwen-mtp3", &["max_running_requests=null", "memory=null"]),
        ["sglang_speculative_cap", "sglang_fraction_automatic"]
    );
    assert_eq!(ids("qwen-nospec", &["env={SGLANG_SIMULATE_ACC_LEN: \"3\"}"]), ["stray_environment"]);
    assert_eq!(
        ids(
            "qwen-mtp3-vllm",
            &["max_running_requests=null", "memory=null", "flags.speculative-config.rejection_sample_method=synthetic"]
        ),
        ["vllm_requests_automatic", "vllm_fraction_automatic", "vllm_made_up_acceptance"]
    );
    assert!(ids("smollm2", &["flags.fit=on"]).contains(&"llamacpp_fitted".to_owned()));
    let old = plan(&profile("qwen-mtp3", &[]), Some("0.5.9"));
    assert!(old.warnings.iter().any(|warning| warning.id == "sglang_overlap_off"), "{:?}", old.warnings);
}
