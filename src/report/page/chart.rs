//! A chart as SVG: axes with round numbers, lines with points that say their values, and bars. No more than what a report
//! needs, so that a page stays small and is the same in each browser.

use std::fmt::Write;

use super::escape::html;
use crate::report::number::amount;

/// Outer size, in the chart's own units; a page scales it to its width.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 28.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 44.0;
/// Series beyond these begin again with the first colour; the page's style has them.
pub(super) const COLOURS: usize = 8;

/// How an axis is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    /// Powers of ten. What is not above zero has no place on it.
    Log,
}

/// An axis with its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis<'a> {
    pub(super) title: &'a str,
    pub(super) unit: &'a str,
    pub(super) scale: Scale,
}

/// A chart, with the names of its series in their order; empty where it has none that can be put away.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub(super) svg: String,
    pub(super) names: Vec<String>,
}

impl Drawn {
    fn alone(svg: String) -> Self {
        Drawn { svg, names: Vec::new() }
    }
}

/// Points of one kind, joined by a line.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// The range of an axis and where its marks stand.
struct Range {
    scale: Scale,
    from: f64,
    to: f64,
    marks: Vec<f64>,
}

impl Range {
    /// Over these values. A linear one begins at zero, since a chart that does not makes a small difference look large.
    fn over(values: impl Iterator<Item = f64>, scale: Scale) -> Option<Self> {
        let usable = |value: &f64| value.is_finite() && (scale == Scale::Linear || *value > 0.0);
        let (mut low, mut high) = values.filter(usable).fold(None, |range: Option<(f64, f64)>, value| {
            Some(range.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
        })?;
        match scale {
            Scale::Linear => {
                low = low.min(0.0);
                if high <= low {
                    high = low + 1.0;
                }
                let step = round_step((high - low) / 5.0);
                let to = (high / step).ceil() * step;
                let from = (low / step).floor() * step;
                let count = ((to - from) / step).round() as usize;
                let marks = (0..=count).map(|index| from + step * index as f64).collect();
                Some(Range { scale, from, to, marks })
            }
            Scale::Log => {
                let (from, to) = (low.log10().floor(), (high.log10().ceil()).max(low.log10().floor() + 1.0));
                let marks = (from as i32..=to as i32).map(|power| 10_f64.powi(power)).collect();
                Some(Range { scale, from, to, marks })
            }
        }
    }

    /// Where a value lies, from 0 to 1.
    fn place(&self, value: f64) -> Option<f64> {
        let value = match self.scale {
            Scale::Linear => value,
            Scale::Log if value > 0.0 => value.log10(),
            Scale::Log => return None,
        };
        value.is_finite().then(|| ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0))
    }
}

/// The next number of the form 1, 2 or 5 times a power of ten.
fn round_step(rough: f64) -> f64 {
    let power = 10_f64.powf(rough.log10().floor());
    let times = rough / power;
    power
        * if times <= 1.0 {
            1.0
        } else if times <= 2.0 {
            2.0
        } else if times <= 5.0 {
            5.0
        } else {
            10.0
        }
}

fn x_of(place: f64) -> f64 {
    LEFT + place * (WIDTH - LEFT - RIGHT)
}

fn y_of(place: f64) -> f64 {
    HEIGHT - BOTTOM - place * (HEIGHT - TOP - BOTTOM)
}

/// Lines over two axes; `None` where there is nothing to draw. Each series can be told by its class `sN`.
pub(super) fn lines(label: &str, series: &[Series], x: Axis<'_>, y: Axis<'_>) -> Option<Drawn> {
    let all = || series.iter().flat_map(|series| series.points.iter().copied());
    let across = Range::over(all().map(|point| point.0), x.scale)?;
    let up = Range::over(all().map(|point| point.1), y.scale)?;
    let mut svg = open(label, HEIGHT);
    axes(&mut svg, &across, x, &up, y);
    for (index, series) in series.iter().enumerate() {
        let place = |point: &(f64, f64)| Some((x_of(across.place(point.0)?), y_of(up.place(point.1)?), *point));
        let placed: Vec<(f64, f64, (f64, f64))> = series.points.iter().filter_map(place).collect();
        let path: Vec<String> = placed.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
        let _ = write!(svg, "<g class=\"series s{}\"><polyline points=\"{}\"/>", index % COLOURS, path.join(" "));
        // Points that say their values, as many as an eye can tell apart.
        let every = placed.len().div_ceil(120).max(1);
        for (across, up, (at, value)) in placed.iter().step_by(every) {
            let tip = format!("{}: {} {}, {} {}", series.name, amount(*at), x.unit, amount(*value), y.unit);
            let _ = write!(svg, "<circle cx=\"{across:.1}\" cy=\"{up:.1}\" r=\"3\" data-tip=\"{}\"/>", html(tip));
        }
        svg.push_str("</g>");
    }
    svg.push_str("</svg>");
    Some(Drawn { svg, names: series.iter().map(|series| series.name.clone()).collect() })
}

/// A part of a bar, with what it says of itself.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) tip: String,
}

/// Parts one after the other on one bar; `None` where they have no length.
pub(super) fn bar(label: &str, parts: &[Part], unit: &str) -> Option<Drawn> {
    let whole: f64 = parts.iter().map(|part| part.value.max(0.0)).sum();
    if !(whole.is_finite() && whole > 0.0) {
        return None;
    }
    let (height, top, thick) = (96.0, 14.0, 34.0);
    let mut svg = open(label, height);
    let mut at = LEFT / 2.0;
    let across = WIDTH - LEFT / 2.0 - RIGHT;
    for (index, part) in parts.iter().enumerate() {
        let wide = part.value.max(0.0) / whole * across;
        let _ = write!(
            svg,
            "<g class=\"part s{}\"><rect x=\"{at:.1}\" y=\"{top}\" width=\"{wide:.1}\" height=\"{thick}\" data-tip=\"{}\"/>",
            index % COLOURS,
            html(&part.tip)
        );
        // A name that does not fit its part would cover its neighbours; the tip has it.
        if wide > part.name.chars().count() as f64 * 7.0 + 6.0 {
            let _ = write!(
                svg,
                "<text class=\"on\" x=\"{:.1}\" y=\"{}\">{}</text>",
                at + 4.0,
                top + 21.0,
                html(&part.name)
            );
        }
        svg.push_str("</g>");
        at += wide;
    }
    let foot = top + thick + 22.0;
    let _ = write!(svg, "<text x=\"{:.1}\" y=\"{foot}\">0</text>", LEFT / 2.0);
    let _ = write!(
        svg,
        "<text class=\"end\" x=\"{:.1}\" y=\"{foot}\">{} {unit}</text></svg>",
        WIDTH - RIGHT,
        amount(whole)
    );
    Some(Drawn::alone(svg))
}

/// Changes to both sides of a middle line, one a row, each in a band of what could be seen. In shares: `-0.03` is 3 % less.
pub(super) struct Change {
    pub(super) name: String,
    pub(super) change: f64,
    pub(super) can_see: Option<f64>,
    /// The class of its verdict, which the page's style colours.
    pub(super) class: &'static str,
    pub(super) tip: String,
}

/// The chart of changes; `None` without any.
pub(super) fn changes(label: &str, all: &[Change]) -> Option<Drawn> {
    let widest = all.iter().flat_map(|one| [one.change.abs(), one.can_see.unwrap_or(0.0).abs()]);
    let widest = widest.filter(|value| value.is_finite()).fold(0.01, f64::max).min(2.0);
    if all.is_empty() {
        return None;
    }
    let (row, lead) = (24.0, 230.0);
    let mut svg = open(label, TOP + row * all.len() as f64 + 26.0);
    let middle = lead + (WIDTH - lead - RIGHT) / 2.0;
    let half = (WIDTH - lead - RIGHT) / 2.0;
    let long = |share: f64| (share / widest).clamp(-1.0, 1.0) * half;
    for (index, one) in all.iter().enumerate() {
        let y = TOP + row * index as f64;
        let _ = write!(svg, "<text x=\"4\" y=\"{:.1}\">{}</text>", y + 15.0, html(&one.name));
        if let Some(can_see) = one.can_see.filter(|can_see| can_see.is_finite()) {
            let half = long(can_see.abs());
            let _ = write!(
                svg,
                "<rect class=\"band\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"18\"/>",
                middle - half,
                y + 1.0,
                2.0 * half
            );
        }
        let length = long(one.change);
        let _ = write!(
            svg,
            "<rect class=\"{}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"10\" data-tip=\"{}\"/>",
            one.class,
            middle + length.min(0.0),
            y + 5.0,
            length.abs().max(1.0),
            html(&one.tip)
        );
    }
    let foot = TOP + row * all.len() as f64 + 16.0;
    let _ = write!(
        svg,
        "<line class=\"axis\" x1=\"{middle:.1}\" y1=\"{TOP}\" x2=\"{middle:.1}\" y2=\"{:.1}\"/>",
        foot - 12.0
    );
    for (place, share) in [(lead, -widest), (middle, 0.0), (WIDTH - RIGHT, widest)] {
        let class = if share < 0.0 {
            "start"
        } else if share > 0.0 {
            "end"
        } else {
            "mid"
        };
        let text = crate::report::number::change(Some(share));
        let _ = write!(svg, "<text class=\"{class}\" x=\"{place:.1}\" y=\"{foot:.1}\">{text}</text>");
    }
    svg.push_str("</svg>");
    Some(Drawn::alone(svg))
}

fn open(label: &str, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
        html(label)
    )
}

fn axes(svg: &mut String, across: &Range, x: Axis<'_>, up: &Range, y: Axis<'_>) {
    for mark in &up.marks {
        let Some(at) = up.place(*mark).map(y_of) else { continue };
        let _ =
            write!(svg, "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{}\" y2=\"{at:.1}\"/>", WIDTH - RIGHT);
        let _ = write!(svg, "<text class=\"end\" x=\"{}\" y=\"{:.1}\">{}</text>", LEFT - 6.0, at + 4.0, amount(*mark));
    }
    for mark in &across.marks {
        let Some(at) = across.place(*mark).map(x_of) else { continue };
        let foot = HEIGHT - BOTTOM;
        let _ = write!(svg, "<line class=\"axis\" x1=\"{at:.1}\" y1=\"{foot}\" x2=\"{at:.1}\" y2=\"{}\"/>", foot + 4.0);
        let _ = write!(svg, "<text class=\"mid\" x=\"{at:.1}\" y=\"{}\">{}</text>", foot + 17.0, amount(*mark));
    }
    let _ = write!(
        svg,
        "<text class=\"mid title\" x=\"{:.1}\" y=\"{}\">{}</text><text class=\"title\" x=\"4\" y=\"12\">{}</text>",
        x_of(0.5),
        HEIGHT - 6.0,
        html(x.title),
        html(y.title)
    );
}
