//! What the processor can do, and which variant it can run.

use std::collections::BTreeSet;

use super::InstallError;
use crate::profile::Install;

/// Names a set of features that is taken for the processor's, separated by spaces.
const PRETENDED: &str = "ORCH_CPU_FEATURES";

/// The features of a processor, as the kernel names them: `avx2`, `avx512f`, `asimd`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuFeatures(BTreeSet<String>);

impl CpuFeatures {
    /// Those of this machine, or those of `ORCH_CPU_FEATURES` when that is set.
    pub fn read() -> Result<Self, InstallError> {
        if let Ok(text) = std::env::var(PRETENDED) {
            return Ok(Self::named(&text));
        }
        let path = "/proc/cpuinfo";
        let text = std::fs::read_to_string(path).map_err(InstallError::io("read", path))?;
        Self::parse(&text)
            .ok_or_else(|| InstallError::Processor { why: format!("{path} has no line `flags` or `Features`") })
    }

    /// Those of a list with spaces.
    pub fn named(text: &str) -> Self {
        CpuFeatures(text.split_whitespace().map(str::to_owned).collect())
    }

    /// x86 says `flags`, ARM says `Features`, once a core. A program may be moved between cores: what not all of them
    /// have does not count.
    fn parse(cpuinfo: &str) -> Option<Self> {
        let mut cores = cpuinfo.lines().filter_map(|line| {
            let (key, value) = line.split_once(':')?;
            matches!(key.trim(), "flags" | "Features").then(|| Self::named(value).0)
        });
        let first = cores.next()?;
        Some(CpuFeatures(cores.fold(first, |common, core| &common & &core)))
    }

    /// Those of a list that are missing.
    fn lacking(&self, needed: &[String]) -> Vec<String> {
        needed.iter().filter(|feature| !self.0.contains(*feature)).cloned().collect()
    }

    /// The instruction sets that a compiler may use when it builds for this very processor.
    pub(super) fn instruction_sets(&self) -> Vec<&str> {
        let families = ["sse", "ssse", "avx", "amx", "fma", "f16c", "bmi", "asimd", "sve", "sme", "i8mm", "bf16"];
        let used = |feature: &&str| families.iter().any(|family| feature.starts_with(family));
        self.0.iter().map(String::as_str).filter(used).collect()
    }
}

/// The first variant whose needs are met; when it is not the very first one, also why.
pub(super) fn choose(install: &Install, features: &CpuFeatures) -> Result<(usize, Option<String>), InstallError> {
    let lacking: Vec<Vec<String>> = install.variants.iter().map(|variant| features.lacking(&variant.cpu)).collect();
    let Some(variant) = lacking.iter().position(Vec::is_empty) else {
        return Err(InstallError::NoVariant { lacking });
    };
    let passed_over = lacking[..variant]
        .iter()
        .enumerate()
        .map(|(index, lacking)| format!("variant {} needs {}", index + 1, lacking.join(", ")))
        .collect::<Vec<_>>();
    if passed_over.is_empty() {
        return Ok((variant, None));
    }
    let names: Vec<String> = install.variants[variant]
        .packages
        .iter()
        .map(|package| format!("{} {}", package.name, package.version))
        .collect();
    let why = format!(
        "variant {} of `engine.install` is used ({}): {}, which this processor does not have",
        variant + 1,
        names.join(", "),
        passed_over.join("; ")
    );
    Ok((variant, Some(why)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{InstallVariant, Package};

    fn install(needs: &[&[&str]]) -> Install {
        let variant = |(index, needs): (usize, &&[&str])| InstallVariant {
            cpu: needs.iter().map(|need| (*need).to_owned()).collect(),
            packages: vec![Package { name: format!("server-{index}"), version: "1.0".into(), sha256: vec![] }],
            executable: None,
            launcher: None,
            version: None,
            build_env: [].into(),
        };
        Install { variants: needs.iter().enumerate().map(variant).collect() }
    }

    #[test]
    fn only_what_all_cores_have_counts() {
        let x86 = "processor\t: 0\nflags\t\t: fpu avx2 avx512f\n\nprocessor\t: 1\nflags\t\t: fpu avx2\n";
        assert_eq!(CpuFeatures::parse(x86), Some(CpuFeatures::named("avx2 fpu")));
        let arm = "processor\t: 0\nFeatures\t: fp asimd sve\n";
        assert_eq!(CpuFeatures::parse(arm), Some(CpuFeatures::named("fp asimd sve")));
        assert_eq!(CpuFeatures::parse("processor : 0\nbugs : none\n"), None);
    }

    #[test]
    fn the_first_variant_that_runs_is_taken_and_another_one_says_why() {
        let install = install(&[&["avx2", "avx512f", "avx512bw"], &["avx2"], &[]]);
        let all = CpuFeatures::named("avx2 avx512f avx512bw");
        assert_eq!(choose(&install, &all).unwrap(), (0, None));
        let (variant, why) = choose(&install, &CpuFeatures::named("avx2")).unwrap();
        assert_eq!(variant, 1);
        assert_eq!(
            why.unwrap(),
            "variant 2 of `engine.install` is used (server-1 1.0): variant 1 needs avx512f, avx512bw, which this \
             processor does not have"
        );
        assert_eq!(choose(&install, &CpuFeatures::default()).unwrap().0, 2);
    }

    #[test]
    fn when_none_runs_each_says_what_it_misses() {
        let error = choose(&install(&[&["avx2", "avx512f"], &["avx2"]]), &CpuFeatures::named("sse2")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no variant of `engine.install` fits this machine's processor: variant 1 needs avx2, avx512f; variant 2 \
             needs avx2"
        );
    }
}
