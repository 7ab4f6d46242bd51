//! A wanted share of cached prompts, met by a real llama.cpp's own count.

use serde_json::Value;

use crate::support::{Home, free_port};

#[test]
fn a_wanted_hit_rate_is_met_by_the_engines_own_count() {
    let Some(home) = Home::with_engine() else { return };
    let profile = home.write(
        "profiles/hits.yaml",
        &format!(
            "extends: {}\nport: {}\nname: hits\nbench: {{single: null, ladder: null, hits: {{input_tokens: 400, output_tokens: 4, \
             prefix_cache: {{hit_ratio: 60%}}, concurrency: 1, requests: 24, warmup: 4}}}}\n",
            std::env::current_dir().unwrap().join("profiles/smollm2.yaml").display(),
            free_port()
        ),
    );
    let ran = home.run(&["run", profile.to_str().unwrap()]);
    // Four tokens may come together on a busy machine, which makes speeds invalid and no count.
    assert!([0, 5].contains(&ran.code), "{}", ran.stdout);
    let packed = std::fs::File::open(home.newest_run().join("requests.jsonl.zst")).unwrap();
    let text = String::from_utf8(zstd::decode_all(packed).unwrap()).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 24);
    let sum = |key: &str| rows.iter().map(|row| row[key].as_f64().unwrap()).sum::<f64>();
    assert_eq!(sum("input_tokens"), 24.0 * 400.0);
    let ratio = sum("cached_tokens") / sum("input_tokens");
    assert!((ratio - 0.6).abs() <= 0.03, "{ratio}");
    let warned = home.record()["warnings"].as_array().unwrap().iter().any(|warning| warning["id"] == "hit_ratio_off");
    assert!(!warned);
}
