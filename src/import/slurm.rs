//! What a Slurm script asks for beside its commands.

/// The options after `#SBATCH`, in order. Those below the first command count no more, as for `sbatch`.
pub fn options(script: &str) -> Vec<String> {
    let head = script.lines().take_while(|line| line.trim().is_empty() || line.trim_start().starts_with('#'));
    let lines = head.filter_map(|line| line.trim_start().strip_prefix("#SBATCH"));
    lines
        .map(|line| line.split(" #").next().unwrap_or_default().trim().to_owned())
        .filter(|line| !line.is_empty())
        .collect()
}

/// What is said of them, if there are any: a profile is about the server, `hosts.yaml` about the cluster.
pub fn note(script: &str) -> Option<String> {
    let options = options(script);
    let about_job = |option: &&String| {
        !["--job-name", "-J", "--output", "-o", "--error", "-e", "--mail"].iter().any(|name| option.starts_with(name))
    };
    let options: Vec<&str> = options.iter().filter(about_job).map(String::as_str).collect();
    (!options.is_empty()).then(|| {
        format!(
            "the job asked Slurm for `{}`: that belongs to the host, under `slurm` in hosts.yaml",
            options.join(" ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_a_script_says_what_the_job_needs() {
        let script = "#!/bin/bash\n#SBATCH --job-name=x\n#SBATCH --gres=gpu:8   # all\n\n#SBATCH -N 1\nmodule load cuda\n#SBATCH --late\n";
        assert_eq!(options(script), ["--job-name=x", "--gres=gpu:8", "-N 1"]);
        assert!(note(script).unwrap().contains("`--gres=gpu:8 -N 1`"));
        assert_eq!(note("#!/bin/bash\necho\n"), None);
    }
}
