//! The name of an environment: a hash over all that decides what is in it.

use sha2::{Digest, Sha256};

use super::CpuFeatures;
use super::launcher::Launcher;
use super::patch::Patch;
use crate::profile::InstallVariant;

/// Version of how an environment is laid out; raised when an older one must not be used any more.
const LAYOUT: u32 = 1;

/// The Python that makes it is not part of the name, since finding an environment must not run one: it is noted in
/// `.complete` and looked at there. How a variant is chosen and what its program is called changes nothing inside.
pub(super) fn of(
    variant: &InstallVariant,
    launcher: Option<&Launcher>,
    patches: &[Patch],
    features: &CpuFeatures,
) -> String {
    let mut packages: Vec<_> = variant
        .packages
        .iter()
        .map(|package| {
            let mut hashes = package.sha256.clone();
            hashes.sort_unstable();
            (&package.name, &package.version, hashes)
        })
        .collect();
    packages.sort_unstable();
    // Work folders are shared between hosts: what was built for one processor may not run on another.
    let built_for = if variant.build_env.is_empty() { vec![] } else { features.instruction_sets() };
    let mut content = serde_json::json!({
        "layout": LAYOUT,
        "machine": std::env::consts::ARCH,
        "packages": packages,
        "build_env": variant.build_env,
        "built_for": built_for,
    });
    if let Some(launcher) = launcher {
        content["launcher"] = serde_json::json!(launcher);
    }
    // In their order, since one may build on another. Where there are none, the name is that of before.
    if !patches.is_empty() {
        content["patches"] = patches.iter().map(Patch::sha256).collect();
    }
    Sha256::digest(content.to_string()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Package;

    fn variant() -> InstallVariant {
        let package = |name: &str, hashes: &[&str]| Package {
            name: name.into(),
            version: "1.0".into(),
            sha256: hashes.iter().map(|hash| (*hash).to_owned()).collect(),
        };
        InstallVariant {
            cpu: vec!["avx2".into()],
            packages: vec![package("server", &["aa", "bb"]), package("model", &["cc"])],
            executable: None,
            launcher: None,
            version: None,
            build_env: [].into(),
        }
    }

    #[test]
    fn it_follows_the_content_and_nothing_else() {
        let features = CpuFeatures::named("avx2");
        let key = of(&variant(), None, &[], &features);
        assert_eq!(key.len(), 64);
        let mut same = variant();
        same.packages.reverse();
        same.packages[1].sha256.reverse();
        same.cpu.clear();
        same.executable = Some("other".into());
        assert_eq!(of(&same, None, &[], &CpuFeatures::named("avx512f")), key);
        let mut other = variant();
        other.packages[0].version = "1.1".into();
        assert_ne!(of(&other, None, &[], &features), key);
        let patch = |text: &str| Patch { path: "p.diff".into(), text: text.into() };
        let (one, two) = ([patch("a"), patch("b")], [patch("b"), patch("a")]);
        let patched = |patches: &[Patch]| of(&variant(), None, patches, &features);
        assert!(patched(&one) != key && patched(&one) != patched(&two), "patches are content, and so is their order");
        let mut other = variant();
        other.packages[0].sha256.pop();
        assert_ne!(of(&other, None, &[], &features), key);
    }

    #[test]
    fn what_is_built_here_belongs_to_this_kind_of_processor() {
        let mut built = variant();
        built.build_env.insert("CMAKE_ARGS".into(), "-DGGML_NATIVE=ON".into());
        let key = of(&built, None, &[], &CpuFeatures::named("avx2 fpu"));
        assert_ne!(key, of(&built, None, &[], &CpuFeatures::named("avx2 avx512f fpu")));
        // A newer kernel that names a bug more, say, changes nothing.
        assert_eq!(key, of(&built, None, &[], &CpuFeatures::named("avx2 fpu constant_tsc")));
    }
}
