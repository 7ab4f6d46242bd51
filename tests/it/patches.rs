//! Declared patches are applied to an environment of its own, exactly, or nothing is started.

use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::install::Place;

/// As made in a checkout, whose folders are not those of the packages.
const PATCH: &str = "diff --git a/python/tiny/__init__.py b/python/tiny/__init__.py\n--- a/python/tiny/__init__.py\n+++ b/python/tiny/__init__.py\n\
                     @@ -1,2 +1,2 @@\n def main():\n-    print('tiny', '1.0')\n+    print('patched')\n";

fn profile(place: &Place, package: &Value, patches: &[&str]) {
    let patches: Vec<String> = patches.iter().map(|name| place.path(name).display().to_string()).collect();
    let engine = json!({
        "kind": "command", "command": ["tiny-server", "--port", "{port}"],
        "install": [{"packages": [package]}], "patches": patches,
    });
    let mut profile = json!({"engine": engine, "model": "package:tiny/tiny.gguf"});
    if patches.is_empty() {
        profile["engine"].as_object_mut().unwrap().remove("patches");
    }
    fs::write(place.path("tiny.yaml"), profile.to_string()).unwrap();
}

/// What the installed program prints.
fn printed(fetched: &Value) -> String {
    let output = Command::new(fetched["executable"].as_str().unwrap()).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[track_caller]
fn refused(output: &Output, code: i32) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    // As one line, however it was drawn.
    said.replace("  │ ", " ").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_patched_engine_is_another_one_than_the_engine() {
    let place = Place::with_python();
    let package = place.wheel("tiny", "1.0");
    fs::write(place.path("tune.diff"), PATCH).unwrap();
    profile(&place, &package, &[]);
    let plain = place.fetched();
    profile(&place, &package, &["tune.diff"]);
    let patched = place.fetched();
    assert_eq!((printed(&plain).as_str(), printed(&patched).as_str()), ("tiny 1.0", "patched"));
    assert_ne!(plain["environment"]["path"], patched["environment"]["path"]);
    let told = patched["environment"]["patches"][0].as_str().unwrap().to_owned();
    assert!(told.starts_with("tune.diff ") && told.len() == "tune.diff ".len() + 8, "{told}");
    assert_eq!(place.fetched()["environment"]["made"], false, "it is found again");
    assert_eq!(printed(&plain), "tiny 1.0", "the other environment is as it was");
}

#[test]
fn a_patch_that_does_not_fit_starts_nothing() {
    let place = Place::with_python();
    let package = place.wheel("tiny", "2.0");
    fs::write(place.path("tune.diff"), PATCH).unwrap();
    profile(&place, &package, &["tune.diff"]);
    for _ in 0..2 {
        let said = refused(&place.fetch().output().unwrap(), 3);
        assert!(said.contains("cannot be applied to tiny/__init__.py") && said.contains("does not fit"), "{said}");
    }
    fs::remove_file(place.path("tune.diff")).unwrap();
    let said = refused(&place.fetch().output().unwrap(), 2);
    assert!(said.contains("tune.diff"), "{said}");
}

#[test]
fn a_patched_file_that_somebody_changed_is_found_at_the_start() {
    let place = Place::with_python();
    let package = place.wheel("tiny", "1.0");
    fs::write(place.path("tune.diff"), PATCH).unwrap();
    profile(&place, &package, &["tune.diff"]);
    let environment = place.fetched()["environment"]["path"].as_str().unwrap().to_owned();
    let file = format!("{environment}/site-packages/tiny/__init__.py");
    fs::write(&file, "def main():\n    print('by hand')\n").unwrap();
    let said = refused(&place.fetch().output().unwrap(), 3);
    assert!(said.contains("is not what `engine.patches` made of it"), "{said}");
}

#[test]
fn only_an_environment_of_orch_is_patched() {
    let place = Place::with_python();
    fs::write(place.path("tune.diff"), PATCH).unwrap();
    let patch = place.path("tune.diff").display().to_string();
    let profile = json!({"engine": {"kind": "sglang", "patches": [patch]}, "model": "m/m"});
    fs::write(place.path("tiny.yaml"), profile.to_string()).unwrap();
    let said = refused(&place.fetch().output().unwrap(), 2);
    assert!(said.contains("`engine.patches` without `engine.install`"), "{said}");
}
