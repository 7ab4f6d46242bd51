use super::*;
use crate::measure::{Distribution, MetricValue};
use crate::record::model::{Comparison, Failure, MemoryPoint, PhaseTime, Reason, Startup, VerdictKind};

/// What an attacker would name a series, a step or a log line.
const HOSTILE: &str =
    "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u{1b}[31m\u{202e}`|*_[x](javascript:1)";

fn run() -> Run {
    let mut step = crate::record::samples::result("single", 70.0);
    step.metrics.insert("ttft_ms".into(), MetricValue::Distribution(Distribution::of(vec![10.0, 12.0, 14.0])));
    let comparison = Comparison {
        step: "single".into(),
        metric: "output_tokens_per_s".into(),
        was: Some(70.9),
        now: Some(60.0),
        change_ratio: Some(-0.15),
        can_see_ratio: Some(0.02),
        loss_at_least_ratio: None,
        verdict: VerdictKind::Regressed,
    };
    let mut record = blank();
    (record.series, record.steps, record.comparisons) = ("qwen".into(), vec![step], vec![comparison]);
    record.verdict.kind = VerdictKind::Regressed;
    record.verdict.reasons = vec![Reason::new("loss", "15 % slower".to_owned())];
    record.startup = Some(Startup {
        ready_s: Some(41.6),
        phases: vec![PhaseTime { name: "weights".into(), s: 12.1 }, PhaseTime { name: "graphs".into(), s: 6.8 }],
        memory: [("weights", 19.3), ("kv_pool", 7.3)]
            .map(|(phase, free_gb)| MemoryPoint { phase: phase.into(), rank: 0, free_gb, graphs: None })
            .into(),
        ..Startup::default()
    });
    let samples =
        |step: &str, ttft: &[f64]| Samples { step: step.into(), ttft_ms: ttft.to_vec(), ..Samples::default() };
    let at = |at_s, chunks_per_s| LoadPoint { step: "single".into(), at_s, chunks_per_s };
    Run {
        samples: vec![samples("single", &[10.0, 12.0, 100.0]), samples("many", &[20.0, 40.0])],
        load: vec![at(1.0, 60.0), at(2.0, 70.0)],
        power_w: vec![(1.0, 300.0), (2.0, 310.0)],
        ..Run::of(record, "r0420".into())
    }
}

fn blank() -> Record {
    crate::record::RunState::default().record
}

#[test]
fn the_verdict_and_its_cause_come_before_everything_else() {
    let page = html(&[run()]);
    let place = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what} is not on the page"));
    assert!(place("REGRESSED") < place("15 % slower"));
    assert!(place("15 % slower") < place("Against the baseline") && place("Against the baseline") < place("Measured"));
    for title in ["Time to the first token", "The load over time", "Power", "Start-up, ready after", "Memory left"] {
        place(title);
    }
    // Two steps on one chart can be put away one by one.
    assert_eq!(page.matches("class=\"key ").count(), 2);
    assert!(page.contains("data-tip=\"weights: 12.1 s\""));
}

#[test]
fn a_page_needs_nothing_beside_itself_and_stays_small() {
    let page = html(&[run(), run()]);
    for outside in ["src=", "@import", "url(", "<link", "fetch(", "https://"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert_eq!(page.replace("http://www.w3.org/2000/svg", "").matches("http").count(), 1, "http-equiv alone");
    assert!(page.len() < 200_000, "{} bytes", page.len());
    assert!(page.starts_with("<!doctype html>") && page.contains("Content-Security-Policy"));
    assert!(page.contains("<h1>2 runs</h1>") && page.contains("href=\"#r0420\""));
}

#[test]
fn text_from_elsewhere_is_text_wherever_it_stands() {
    let mut run = run();
    run.record.series = HOSTILE.into();
    run.record.steps[0].name = HOSTILE.into();
    run.record.comparisons[0].step = HOSTILE.into();
    run.record.command = vec![HOSTILE.into()];
    run.record.verdict.reasons[0].text = HOSTILE.into();
    run.samples[0].step = HOSTILE.into();
    let line = format!("{HOSTILE}{}", "x".repeat(1_000_000));
    run.record.failure = Some(Failure { line: Some(line.clone()), line_no: Some(7), ..Failure::default() });
    run.log = vec![(6, "before".into()), (7, line)];
    let page = html(std::slice::from_ref(&run));
    assert!(
        !page.contains("<script>alert")
            && !page.contains("<img")
            && !page.contains('\u{1b}')
            && !page.contains('\u{202e}')
    );
    assert!(!page.contains("onerror=alert(2)>"), "no attribute is closed early");
    assert!(page.contains("&lt;script&gt;alert(1)") && page.len() < 250_000, "{} bytes", page.len());
    assert!(page.contains("<span class=\"root\">     7  "), "the cause stands in its surroundings");
    let text = markdown(std::slice::from_ref(&run));
    assert!(!text.contains("<script>") && !text.contains("[x](") && !text.contains('\u{202e}'), "{}", &text[..500]);
    let drawn = svg(&run).unwrap();
    assert!(!drawn.contains("<script") && drawn.starts_with("<svg xmlns="), "{}", &drawn[..200]);
}

#[test]
fn a_run_without_anything_has_a_page_all_the_same() {
    let page = html(&[Run { running: true, ..Run::of(blank(), "r1".into()) }]);
    assert!(page.contains("RUNNING") && !page.contains("<svg"));
    assert_eq!(svg(&Run::of(blank(), "r1".into())), None);
}

#[test]
fn a_spread_holds_every_value_once() {
    let spread = charts::spread(&[1.0, 1.01, 10.0, f64::NAN, 0.0, -3.0]);
    let whole: f64 = spread.iter().map(|(_, share)| share).sum();
    assert!((whole - 100.0).abs() < 1e-9, "{spread:?}");
    assert!(
        (spread[1].1 - 200.0 / 3.0).abs() < 1e-9 && spread[0].1 == 0.0,
        "two of the three lie together: {spread:?}"
    );
    assert_eq!(charts::spread(&[f64::NAN]), []);
}
