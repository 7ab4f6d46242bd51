//! What a profile may say and this build cannot do yet. A key that is read and then left aside would be a lie in the
//! record: such a run is refused before anything is started.

use crate::profile::{Profile, Via};
use crate::render::Fault;

/// One fault for each key that a run would have to leave aside.
pub fn not_yet(profile: &Profile) -> Vec<Fault> {
    let hooks = &profile.hooks;
    let asked = [
        (profile.host.is_some(), "host", "run on another host"),
        (!profile.hosts.is_empty(), "hosts", "run on other hosts"),
        (profile.parallel.nodes.is_some_and(|nodes| nodes > 1), "parallel.nodes", "run on several nodes"),
        (matches!(profile.launch.via, Via::Systemd), "launch.via", "measure a server that a unit starts"),
        (hooks.before_launch.is_some(), "hooks.before_launch", "run hooks"),
        (hooks.after_ready.is_some(), "hooks.after_ready", "run hooks"),
        (hooks.after_bench.is_some(), "hooks.after_bench", "run hooks"),
        (hooks.after_stop.is_some(), "hooks.after_stop", "run hooks"),
    ];
    asked.into_iter().filter(|(asked, ..)| *asked).map(|(_, key, what)| Fault::not_yet(key, what)).collect()
}
