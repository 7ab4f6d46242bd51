//! Every command of the README does what the page says, in the order in which it stands there.

use crate::support::Home;

/// The commands of the `sh` blocks, as words after the program's name.
fn commands() -> Vec<Vec<String>> {
    let page = std::fs::read_to_string("README.md").unwrap();
    let mut commands = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            line if inside && !line.is_empty() => {
                let line = line.split(" #").next().unwrap();
                commands.push(shell_words::split(line).unwrap());
            }
            _ => {}
        }
    }
    commands
}

#[test]
fn every_command_runs_and_ends_as_it_should() {
    let Some(home) = Home::with_engine() else { return };
    let mut ran = 0;
    for command in commands() {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["cargo", "run", "--release", "--", rest @ ..] | ["orch", rest @ ..] => {
                let ended = home.run(rest);
                // Beside other tests the second run may rightly be found slower than the first.
                let compared = matches!(rest.first(), Some(&"run" | &"compare"));
                assert!(ended.code == 0 || (compared && ended.code == 6), "{rest:?}: {ended:#?}");
                ran += 1;
            }
            // What built and started this very test, and what only builds.
            ["tests/run"] | ["cargo", "build" | "install" | "rustc", ..] => {}
            other => panic!("the README shows a command that no test runs: {other:?}"),
        }
    }
    assert!(ran >= 5, "only {ran} commands of the README were found");
}
