//! A run as one file to send to somebody: a page that opens offline, Markdown, a chart.

use serde_json::Value;

use crate::support::{Home, free_port};

/// A quick simulated server; `more` are further keys of its scenario.
fn profile(home: &Home, name: &str, more: &str) -> String {
    let path = home.write(
        &format!("profiles/{name}.yaml"),
        &format!(
            "series: quick\nport: {}\nengine: {{kind: sim, as: sglang, scenario: {{speed: {{ttft: 10ms, step: 5ms}}, \
             serve: {{prefix_cache: false}}, output: 30{more}}}}}\nmodel: {{path: m, served_name: m}}\n\
             bench: {{ladder: {{use: chat-short, concurrency: [2, 4], requests: 20, warmup: 4}}}}\n",
            free_port()
        ),
    );
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_run_is_written_as_a_page_as_markdown_and_as_a_chart() {
    let home = Home::new();
    let path = profile(&home, "quick", "");
    home.run(&["run", &path]).expect(0);
    home.run(&["baseline", "set"]).expect(0);
    let slow = profile(&home, "slow", "").replace("quick.yaml", "slow.yaml");
    let ran = home.run(&["run", &slow, "--set", "engine.scenario.speed.step=15ms"]);
    assert_eq!(ran.code, 6, "{}{}", ran.stdout, ran.stderr);
    let output = home.path("page.html");
    let ran = home.run(&["report", "-o", output.to_str().unwrap()]).expect(0);
    assert!(ran.stdout.is_empty() && ran.stderr.contains("written: "), "{}{}", ran.stdout, ran.stderr);
    let page = std::fs::read_to_string(&output).unwrap();
    let record = home.record();
    let cause = record["verdict"]["cause"]["sentence"].as_str().unwrap();
    let place = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what} is not on the page"));
    assert!(
        place("REGRESSED") < place("Against the baseline") && page.contains(&cause.replace('\'', "&#39;")),
        "{cause}"
    );
    for title in [
        "<strong>simulated</strong>",
        "Throughput against load",
        "Time to the first token",
        "The load over time",
        "Start-up, ready after",
    ] {
        place(title);
    }
    assert!(page.len() < 500_000, "{} bytes", page.len());
    let value = record["steps"][0]["metrics"]["output_tokens_per_s"].as_f64().unwrap();
    place(&orch::report::number::amount(value));

    let markdown = home.run(&["report", "--format", "markdown"]).expect(0).stdout;
    assert!(
        markdown.starts_with("## quick r") && markdown.contains(": REGRESSED") && markdown.contains("| ladder\\@2 |"),
        "{markdown}"
    );
    let svg = home.run(&["report", "--format", "svg"]).expect(0).stdout;
    assert!(svg.starts_with("<svg ") && svg.contains("class=\"worse\""), "{}", &svg[..300]);
    let both: Vec<String> = std::fs::read_dir(home.results().join("runs"))
        .unwrap()
        .map(|run| run.unwrap().file_name().into_string().unwrap())
        .collect();
    let two = home.run(&["report", &both[0], &both[1], "-o", "-"]).expect(0).stdout;
    assert!(two.contains("<h1>2 runs</h1>") && two.matches("class=\"run\"").count() == 2);

    for (words, said) in [
        (&["report", "r0000"][..], "r0000"),
        (&["report", "--format", "svg", &both[0], &both[1]], "one chart of one run"),
        (&["report", "-o", "/no/such/folder/x.html"], "cannot write /no/such/folder/x.html"),
    ] {
        let refused = home.run(words).expect(2);
        let flat = refused.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(said), "{}", refused.stderr);
    }
}

#[test]
fn a_failed_start_shows_the_line_in_its_surroundings_and_what_to_do() {
    let home = Home::new();
    let path = profile(&home, "oom", ", fail: {kind: oom_capture}");
    let ran = home.run(&["run", &path]);
    assert_eq!(ran.code, 4, "{}{}", ran.stdout, ran.stderr);
    let page = home.run(&["report", "-o", "-"]).expect(0).stdout;
    let record = home.record();
    let failure: &Value = &record["failure"];
    let number = failure["line_no"].as_u64().unwrap();
    assert!(page.contains("FAILED") && page.contains("<dt>do</dt>"), "{failure:#}");
    assert!(page.contains(&format!("<span class=\"root\">{number:>6}  ")), "line {number}");
    assert!(
        page.matches("\n<span>").count() + page.matches("<pre class=\"log\"><span>").count() > 5,
        "the lines around it are there"
    );
    let markdown = home.run(&["report", "--format", "markdown"]).expect(0).stdout;
    assert!(markdown.contains(&format!("- line: server.log:{number} ")) && markdown.contains("- do: "), "{markdown}");
}
