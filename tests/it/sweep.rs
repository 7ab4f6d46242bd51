//! Someone tries settings in all combinations: what is planned, what is measured, what is killed and goes on, and what the
//! points tell together.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::killed::{assert_nothing_left, send};
use crate::support::{Home, Ran, free_port, not_chosen, read_json};

/// A quick simulated server; `scenario` is more of what it does, `more` are further keys.
fn profile(home: &Home, scenario: &str, more: &str) -> String {
    let path = home.write(
        "profiles/quick.yaml",
        &format!(
            "port: {}\nengine: {{kind: sim, as: sglang, scenario: {{speed: {{ttft: 5ms, step: 5ms}}, \
             serve: {{prefix_cache: false}}, output: 8, {scenario}}}}}\nmodel: {{path: m, served_name: m}}\n{more}\n",
            free_port()
        ),
    );
    path.to_str().unwrap().to_owned()
}

/// A load of a moment.
const LOAD: &str = "load: {use: chat-short, concurrency: 4, requests: 16, warmup: 0}\n";

fn sweep(home: &Home, text: &str) -> String {
    home.write("profiles/sweeps/s.yaml", &format!("base: quick\n{LOAD}{text}")).to_str().unwrap().to_owned()
}

/// The newest sweep's folder.
fn folder(home: &Home) -> PathBuf {
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(home.results().join("sweeps")).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders.pop().unwrap()
}

fn id(home: &Home) -> String {
    folder(home).file_name().unwrap().to_str().unwrap().to_owned()
}

fn journal(home: &Home) -> Vec<Value> {
    let text = std::fs::read_to_string(folder(home).join("journal.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn records(home: &Home) -> Vec<Value> {
    let runs = std::fs::read_dir(home.results().join("runs")).into_iter().flatten();
    let mut records: Vec<Value> = runs.map(|entry| read_json(&entry.unwrap().path().join("run.json"))).collect();
    records.sort_by_key(|record| record["started_at"].as_str().unwrap().to_owned());
    records
}

fn shown(home: &Home) -> Value {
    let ran = home.run(&["sweep", "show", "latest", "--format", "json"]).expect(0);
    serde_json::from_str(&ran.stdout).unwrap()
}

/// Every point was measured by one run, step by step once.
#[track_caller]
fn assert_measured_once(home: &Home, points: usize) {
    let complete: Vec<Value> = records(home).into_iter().filter(|record| record["complete"] == true).collect();
    let mut ids: Vec<&str> = complete.iter().map(|record| record["group"]["point"].as_str().unwrap()).collect();
    ids.sort_unstable();
    let all = ids.len();
    ids.dedup();
    assert_eq!((ids.len(), all), (points, points), "{ids:?}");
    for record in &complete {
        assert_eq!((&record["kind"], record["group"]["sweep"].as_str()), (&"point".into(), Some(id(home).as_str())));
    }
    assert_eq!(records(home).len(), points, "no run that came to nothing is left beside them");
}

#[test]
fn a_plan_is_shown_with_what_cannot_be_started_and_nothing_begins() {
    let home = Home::new();
    profile(&home, "", "");
    let file = sweep(
        &home,
        "server: {max_running_requests: [8, 9, 16], graphs.enabled: [null, false], graphs.max_batch: [4]}\n\
         skip: [{max_running_requests: 16, graphs.enabled: null}]\n",
    );
    let ran = home.run(&["sweep", &file, "--dry-run"]).expect(0);
    // Batches of graphs that are off contradict themselves.
    for word in
        ["2 points, 2 starts", "4 points are left out", "skip: max_running_requests=16", "`graphs.enabled: false`"]
    {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
    assert!(!home.results().exists(), "nothing was begun");
    let wrong = sweep(&home, "server: {max_running_requets: [8], memory.fraction: [0.8, 80]}\ngaol: {}\n");
    let ran = home.run(&["sweep", &wrong, "--dry-run"]).expect(2);
    assert!(ran.stderr.contains("unknown key `gaol`") && ran.stderr.contains("did you mean `goal`"), "{}", ran.stderr);
    let wrong = sweep(&home, "server: {max_running_requets: [8]}\n");
    let ran = home.run(&["sweep", &wrong, "--dry-run"]).expect(2);
    assert!(
        ran.stderr.contains("did you mean `max_running_requests`") && ran.stderr.contains("s.yaml:3:"),
        "{}",
        ran.stderr
    );
    let wrong = sweep(&home, "server: {memory.fraction: [0.8, 80]}\n");
    let ran = home.run(&["sweep", &wrong, "--dry-run"]).expect(2);
    assert!(ran.stderr.contains("`80` is above 1") && ran.stderr.contains("s.yaml:3:"), "{}", ran.stderr);
}

/// The cap hid the throughput, and the graphs that were changed with it got half of the credit.
#[test]
fn the_cap_gets_the_credit_and_not_the_graphs() {
    let home = Home::new();
    profile(&home, "startup: {}", "");
    let file = sweep(&home, "server: {max_running_requests: [4, 16], graphs.max_batch: [4, 16]}\n");
    let text = std::fs::read_to_string(&file)
        .unwrap()
        .replace("concurrency: 4, requests: 16", "concurrency: 16, requests: 48");
    std::fs::write(&file, text.replace("warmup: 0", "warmup: 0, output_tokens: 24")).unwrap();
    let ran = home.run(&["sweep", &file]).expect(0);
    let told = shown(&home);
    let effects = told["effects"].as_array().unwrap();
    assert_eq!((&effects[0]["axis"], &effects[0]["high"]), (&"max_running_requests".into(), &"16".into()), "{told:#}");
    assert!(
        effects[0]["factor"].as_f64().unwrap() > 2.0 && effects[0]["share_ratio"].as_f64().unwrap() > 0.7,
        "{told:#}"
    );
    assert!(
        ran.stdout.contains("what each axis does to output_tokens_per_s")
            && ran.stdout.contains("the server's own limits"),
        "{}",
        ran.stdout
    );
    assert_measured_once(&home, 4);
    // In the words of other programs, over other metrics, and through `orch show`.
    let csv = home.run(&["sweep", "show", &id(&home), "--format", "csv"]).expect(0).stdout;
    assert_eq!(csv.lines().count(), 5, "{csv}");
    let markdown = home
        .run(&["sweep", "show", "--format", "markdown", "--x", "e2e_ms.p50", "--y", "requests_per_s"])
        .expect(0)
        .stdout;
    assert!(markdown.contains("| E2E p50 ms | requests_per_s |"), "{markdown}");
    let short = format!("s{}", &id(&home)[id(&home).len() - 4..]);
    assert!(home.run(&["show", &short]).expect(0).stdout.contains("best (most output_tokens_per_s)"));
    let none = home.run(&["sweep", "show", "--where", "ttft_ms.p50<0.001"]).expect(0).stdout;
    assert!(none.contains("no step meets it"), "{none}");
    let unknown = home.run(&["sweep", "show", "--x", "nonsense"]).expect(2);
    assert!(unknown.stderr.contains("`nonsense` is not a metric"), "{}", unknown.stderr);
}

/// What is watched from outside.
struct Watched(Child);

impl Watched {
    fn start(home: &Home, words: &[&str]) -> Self {
        Watched(home.orch(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Waits for the `nth` line of a kind in the sweep's journal; `false` when it ended before.
    fn until(&mut self, home: &Home, kind: &str, nth: usize) -> bool {
        let limit = Instant::now() + Duration::from_secs(90);
        let needle = format!("\"event\":\"{kind}\"");
        loop {
            let ended = self.0.try_wait().unwrap().is_some();
            let sweeps = std::fs::read_dir(home.results().join("sweeps")).into_iter().flatten().flatten();
            let text: String =
                sweeps.filter_map(|entry| std::fs::read_to_string(entry.path().join("journal.jsonl")).ok()).collect();
            if text.matches(&needle).count() >= nth {
                return true;
            }
            if ended {
                return false;
            }
            assert!(Instant::now() < limit, "`{kind}` did not come");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn send(&self, signal: Signal) {
        send(self.0.id().into(), signal);
    }

    /// Waits for it and for what it began, which hold its standard error open.
    fn end(self) -> Ran {
        Ran::of(self.0.wait_with_output().unwrap())
    }
}

/// A sweep of `points` starts, killed after the `nth` line of each of the kinds in turn and resumed, to its end.
fn killed_and_resumed(text: &str, points: usize, kills: &[(&str, usize)]) {
    let home = Home::new();
    profile(&home, "", "");
    let file = sweep(&home, text);
    let mut words = vec!["sweep".to_owned(), file];
    for (kind, nth) in kills {
        let all: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut watched = Watched::start(&home, &all);
        let came = watched.until(&home, kind, *nth);
        watched.send(Signal::SIGKILL);
        let ran = watched.end();
        assert!(came, "no {nth}. `{kind}`: {ran:#?}");
        assert_nothing_left(&home);
        words = vec!["sweep".to_owned(), "--resume".to_owned(), id(&home)];
    }
    let all: Vec<&str> = words.iter().map(String::as_str).collect();
    let ran = home.run(&all).expect(0);
    assert!(ran.stdout.contains(&format!("{points} of {points} points measured\n")), "{}", ran.stdout);
    assert_nothing_left(&home);
    let ended = |line: &&Value| line["event"] == "point_ended" && line["complete"] == true;
    assert_eq!(journal(&home).iter().filter(ended).count(), records(&home).len(), "each run is in the journal once");
}

#[test]
fn whatever_line_of_the_journal_it_is_killed_after_each_point_is_measured_once() {
    let home = Home::new();
    profile(&home, "", "");
    let file = sweep(&home, "server: {max_running_requests: [8, 9, 10, 11]}\n");
    let kills = [
        ("sweep_began", 1),
        ("point_began", 1),
        ("point_began", 2),
        ("point_ended", 2),
        ("point_began", 4),
        ("point_ended", 4),
    ];
    let mut words = vec!["sweep".to_owned(), file];
    for (kind, nth) in kills {
        let all: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut watched = Watched::start(&home, &all);
        // A point that was begun is begun once: the line of an earlier orch counts for this one.
        let came = watched.until(&home, kind, nth);
        watched.send(Signal::SIGKILL);
        let ran = watched.end();
        assert!(came, "no {nth}. `{kind}`: {ran:#?}");
        assert_nothing_left(&home);
        words = vec!["sweep".to_owned(), "--resume".to_owned(), id(&home)];
    }
    let all: Vec<&str> = words.iter().map(String::as_str).collect();
    let ran = home.run(&all).expect(0);
    assert!(ran.stdout.contains("4 of 4 points measured\n"), "{}", ran.stdout);
    assert_measured_once(&home, 4);
    assert_nothing_left(&home);
    // What is done is done: again it starts nothing, and with another file it keeps what it knows.
    home.run(&all).expect(0);
    assert_measured_once(&home, 4);
    let more = sweep(&home, "server: {max_running_requests: [8, 9, 10, 11, 12]}\n");
    let again = home.run(&["sweep", &more, "--resume", &id(&home), "--budget", "10m"]).expect(0);
    assert!(again.stdout.contains("5 of 5 points measured\n"), "{}", again.stdout);
    assert_measured_once(&home, 5);
}

#[test]
fn twenty_four_points_with_kills_between_and_what_could_win_again() {
    killed_and_resumed(
        "server: {max_running_requests: [8, 9, 10, 11], context_length: [4k, 5k, 6k], graphs.max_batch: [8, 16]}\n\
         confirm: {top: 2, starts: 1}\n",
        24,
        &[("point_began", 3), ("point_ended", 9), ("point_began", 17), ("confirming", 1), ("point_began", 25)],
    );
}

#[test]
fn a_point_that_fails_is_told_and_more_memory_is_not_tried_where_less_ran_out() {
    let home = Home::new();
    profile(&home, "memory: {total_gb: 80, cliff: 0.86}, startup: {graph_capture: 20ms}", "");
    let file = sweep(
        &home,
        "server: {memory.fraction: [0.92, 0.84, 0.88], max_running_requests: [8, 16]}\non_oom: skip_higher_fraction\n",
    );
    let ran = home.run(&["sweep", &file]).expect(0);
    let told = shown(&home);
    let without = told["without"].as_array().unwrap();
    let of = |status: &str| without.iter().filter(|point| point["status"] == status).count();
    assert_eq!((of("failed"), of("left_out"), &told["measured"]), (2, 2, &2.into()), "{told:#}");
    assert!(ran.stdout.contains("memory.fraction=0.88 ran out of memory already"), "{}", ran.stdout);
    let began = journal(&home).iter().filter(|line| line["event"] == "point_began").count();
    assert_eq!(began, 4, "what ran out of memory is not tried again");
    assert_nothing_left(&home);
}

#[test]
fn a_failure_that_may_be_the_hosts_is_tried_once_more_and_none_at_all_is_an_error() {
    let home = Home::new();
    profile(&home, "fail: {kind: nccl_error, at: dist_init}", "");
    let file = sweep(&home, "server: {max_running_requests: [8, 16]}\n");
    let ran = home.run(&["sweep", &file]).expect(4);
    let order: Vec<(String, u64)> = journal(&home)
        .iter()
        .filter(|line| line["event"] == "point_ended")
        .map(|line| (line["point"].as_str().unwrap().to_owned(), line["attempt"].as_u64().unwrap()))
        .collect();
    let attempts: Vec<u64> = order.iter().map(|(_, attempt)| *attempt).collect();
    assert_eq!(attempts, [1, 1, 2, 2], "all once, then those that failed: {order:?}");
    assert!(ran.stdout.contains("twice, so it is the settings and not the host"), "{}", ran.stdout);
    assert_nothing_left(&home);
}

#[test]
fn a_budget_begins_nothing_that_cannot_end_and_an_interrupt_says_how_to_go_on() {
    let home = Home::new();
    profile(&home, "", "");
    let file = sweep(&home, "server: {max_running_requests: [8, 9, 10]}\n");
    let ran = home.run(&["sweep", &file, "--budget", "500ms"]).expect(0);
    assert!(ran.stderr.contains("the budget leaves no time") && ran.stdout.contains("not begun"), "{ran:#?}");
    assert_eq!(records(&home).len(), 1, "the length of the first is not known before it");
    let resume = ["sweep", "--resume", &id(&home), "--budget", "10m"];
    let mut watched = Watched::start(&home, &resume);
    assert!(watched.until(&home, "point_began", 2));
    // It goes on like any run meanwhile.
    let limit = Instant::now() + Duration::from_secs(30);
    while home.ps().is_empty() && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(5));
    }
    watched.send(Signal::SIGINT);
    let ran = watched.end();
    if ran.code == 130 {
        assert!(ran.stderr.contains(&format!("orch sweep --resume {}", id(&home))), "{}", ran.stderr);
    }
    assert_nothing_left(&home);
    let ran = home.run(&["sweep", "--resume", &id(&home)]).expect(0);
    assert!(ran.stdout.contains("3 of 3 points measured\n"), "{}", ran.stdout);
    assert_measured_once(&home, 3);
}

#[test]
fn ten_thousand_points_are_planned_in_a_moment() {
    let home = Home::new();
    profile(&home, "", "");
    let axis = |path: &str| format!("{path}: {{from: 1, to: 10, step: 1}}");
    let file = sweep(
        &home,
        &format!(
            "server: {{{}, {}, {}, {}}}\n",
            axis("max_running_requests"),
            axis("graphs.max_batch"),
            axis("context_length").replace("1, to: 10, step: 1", "1000, to: 10000, step: 1000"),
            axis("engine.scenario.serve.cap_running")
        ),
    );
    let begun = Instant::now();
    let ran = home.run(&["sweep", &file, "--dry-run"]).expect(0);
    assert!(ran.stderr.contains("10000 points, 10000 starts"), "{}", ran.stderr);
    // A build for tests is several times slower than what people run.
    let limit = if cfg!(debug_assertions) { 10 } else { 1 };
    assert!(begun.elapsed() < Duration::from_secs(limit), "{:?}", begun.elapsed());
}

/// A server whose cliff, cap and acceptance are hidden: the search comes to the best of its grid in a third of the starts.
#[test]
fn a_search_finds_the_hidden_best_and_writes_a_profile_of_it() {
    let home = Home::new();
    let path = profile(
        &home,
        "memory: {total_gb: 80, cliff: 0.87}, startup: {graph_capture: 20ms}",
        "memory: {fraction: 0.84}\nmax_running_requests: 2\nspeculative: {method: mtp, steps: 1}\n\
         bench: {load: {use: chat-short, concurrency: 8, requests: 24, warmup: 0, output_tokens: 24}}",
    );
    let axes = ["memory.fraction=0.84,0.86,0.88", "max_running_requests=2,4,8", "speculative.steps=1,2,3"];
    let words = ["tune", &path, "--axis", axes[0], "--axis", axes[1], "--axis", axes[2], "--budget", "9"];
    let plan = home.run(&[&words[..], &["--dry-run"]].concat()).expect(0);
    assert!(plan.stderr.contains("at most 9 starts; all combinations would be 27"), "{}", plan.stderr);
    let mut watched = Watched::start(&home, &words);
    assert!(watched.until(&home, "point_began", 3));
    watched.send(Signal::SIGKILL);
    watched.end();
    assert_nothing_left(&home);
    let ran = home.run(&["tune", "--resume", &id(&home), "--json"]).expect(0);
    let told: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(told["settings"]["max_running_requests"], "8", "{told:#}");
    assert!(told["starts"].as_u64().unwrap() <= 9 && told["settings"]["memory.fraction"] != "0.88", "{told:#}");
    assert!(told["change_ratio"].as_f64().unwrap() > 0.5 && told["within_noise"] == false, "{told:#}");
    let began: Vec<Value> = journal(&home).into_iter().filter(|line| line["event"] == "point_began").collect();
    assert_eq!(began.len(), told["starts"].as_u64().unwrap() as usize, "nothing was begun twice");
    let layer = told["layer"].as_str().unwrap();
    assert!(Path::new(layer).is_file());
    home.run(&["check", layer]).expect(0);
    assert_nothing_left(&home);
}

/// A real engine: threads, the batch of a step, and guesses from the text so far on and off. The table is held against the
/// records by hand.
#[test]
fn a_real_llamacpp_is_swept_and_its_front_is_what_nothing_beats() {
    if std::env::var_os("ORCH_TEST_LLAMACPP_SWEEP").is_none() {
        not_chosen("ORCH_TEST_LLAMACPP_SWEEP is not set: it takes minutes on a slow processor");
        return;
    }
    let Some(home) = Home::with_engine() else { return };
    let base = std::env::current_dir().unwrap().join("profiles/smollm2.yaml");
    let file = home.write(
        "profiles/sweeps/cpu.yaml",
        &format!(
            "base: {}\nserver:\n  flags.threads: [1, 2]\n  flags.ubatch-size: [64, 512]\n  \
             speculative: [null, {{method: ngram, steps: 4}}]\n\
             load: {{use: chat, output: {{stop: natural, max_tokens: 24}}, concurrency: 2, requests: 16, warmup: 0}}\n",
            base.display()
        ),
    );
    let port = format!("port={}", free_port());
    home.run(&["sweep", file.to_str().unwrap(), "--set", &port, "--set", "expect=null"]).expect(0);
    assert_measured_once(&home, 8);
    let told = shown(&home);
    let rows = told["rows"].as_array().unwrap();
    let (x, y) = ("ttft_ms.p50", "output_tokens_per_s");
    assert_eq!((rows.len(), &told["axes"][0], &told["axes"][1]), (8, &x.into(), &y.into()), "{told:#}");
    let value = |row: &Value, metric: &str| row["values"][metric].as_f64();
    let usable: Vec<&Value> = rows.iter().filter(|row| row["meets"] == true).collect();
    assert!(usable.len() >= 2, "{told:#}");
    for row in [usable[0], usable[usable.len() - 1]] {
        let of = records(&home).into_iter().find(|record| record["group"]["point"] == row["point"]).unwrap();
        let metrics = &of["steps"][0]["metrics"];
        // Within what the mean of one value in logarithms costs.
        let close = |told: Option<f64>, own: &Value| (told.unwrap() / own.as_f64().unwrap() - 1.0).abs() < 1e-9;
        assert!(close(value(row, y), &metrics[y]) && close(value(row, x), &metrics["ttft_ms"]["p50"]), "{row:#}");
        let threads = row["settings"]["flags.threads"].as_str().unwrap();
        let command = of["command"].as_array().unwrap();
        assert!(command.windows(2).any(|two| two[0] == "--threads" && two[1] == threads), "{command:?}");
    }
    for row in &usable {
        let beats = |other: &Value| {
            value(other, x) <= value(row, x)
                && value(other, y) >= value(row, y)
                && (value(other, x) < value(row, x) || value(other, y) > value(row, y))
        };
        assert_eq!(row["on_front"], !rows.iter().any(|other| other["meets"] == true && beats(other)), "{row:#}");
    }
    assert_nothing_left(&home);
}
