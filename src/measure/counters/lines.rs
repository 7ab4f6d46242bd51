//! What an engine's log says of acceptance, by patterns of its definition.

use regex::Regex;

use super::Source;
use super::acceptance::Acceptance;

/// Sums over the lines of a log that tell of acceptance.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AcceptanceLines {
    /// How many lines.
    pub lines: u64,
    accepted: f64,
    drafted: f64,
    verify_steps: f64,
    /// Drafted tokens of lines that do not tell how many steps they are of.
    without_steps: f64,
    /// For lines that give a mean length and no counts: the lengths, weighed by the requests that ran.
    weighed: f64,
    weights: f64,
}

impl AcceptanceLines {
    /// Reads a log by patterns whose named groups are `accepted`, `drafted`, `length` (tokens a verify step) and
    /// `running` (how many requests the line is of; 1 without). `None` if no line tells of it.
    pub fn read<'a>(log: impl IntoIterator<Item = &'a str>, patterns: &[Regex]) -> Option<Self> {
        let mut sums = AcceptanceLines::default();
        for line in log {
            let Some(found) = patterns.iter().find_map(|pattern| pattern.captures(line)) else { continue };
            let number =
                |group: &str| found.name(group)?.as_str().parse::<f64>().ok().filter(|number| number.is_finite());
            sums.add(number("accepted"), number("drafted"), number("length"), number("running"));
        }
        (sums.lines > 0).then_some(sums)
    }

    fn add(&mut self, accepted: Option<f64>, drafted: Option<f64>, length: Option<f64>, running: Option<f64>) {
        match (accepted, drafted, length) {
            (Some(accepted), Some(drafted), Some(length)) if length > 1.0 => {
                self.accepted += accepted;
                self.drafted += drafted;
                self.verify_steps += accepted / (length - 1.0);
            }
            // Without a length, or with one of 1.00, how many steps there were is not known by it.
            (Some(accepted), Some(drafted), _) => {
                self.accepted += accepted;
                self.drafted += drafted;
                self.without_steps += drafted;
            }
            (_, _, Some(length)) if length > 0.0 => {
                let weight = running.unwrap_or(1.0).max(1.0);
                self.weighed += length * weight;
                self.weights += weight;
            }
            _ => return,
        }
        self.lines += 1;
    }

    pub(crate) fn acceptance(&self) -> Acceptance {
        let mut found = Acceptance::default();
        if self.drafted > 0.0 {
            found.accepted = Some(self.accepted);
            found.drafted = Some(self.drafted);
            found.ratio = Some((self.accepted / self.drafted, Source::Log));
        }
        if self.verify_steps > 0.0 {
            // Where a line does not tell its steps, as many tokens were drafted in each as in the lines that do.
            let told = self.drafted - self.without_steps;
            let steps = self.verify_steps * if told > 0.0 { self.drafted / told } else { 1.0 };
            let source = if self.without_steps > 0.0 { Source::Estimate } else { Source::Log };
            found.length = Some((1.0 + self.accepted / steps, source));
        } else if self.weights > 0.0 {
            found.length = Some((self.weighed / self.weights, Source::Log));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(log: &str, pattern: &str) -> Option<Acceptance> {
        AcceptanceLines::read(log.lines(), &[Regex::new(pattern).unwrap()]).map(|lines| lines.acceptance())
    }

    #[test]
    fn llamacpps_lines_are_summed_over_requests() {
        let log = "\
            0.14.814.654 I slot print_timing: id  0 | task 0 | draft acceptance = 0.92593 (  100 accepted /   108 generated), mean len =  4.70\n\
            0.19.713.645 I slot print_timing: id  0 | task 29 | draft acceptance = 0.50000 (   10 accepted /    20 generated), mean len =  2.00\n";
        let pattern = r"draft acceptance = [\d.]+ \(\s*(?<accepted>\d+) accepted /\s*(?<drafted>\d+) generated\), mean len =\s+(?<length>[\d.]+)";
        let found = read(log, pattern).unwrap();
        assert_eq!((found.accepted, found.drafted), (Some(110.0), Some(128.0)));
        // 27 verify steps (100 / 3.70) and 10: 1 + 110 / 37.
        assert!((found.length.unwrap().0 - (1.0 + 110.0 / 37.0)).abs() < 0.01, "{found:?}");
        assert_eq!(found.ratio, Some((110.0 / 128.0, Source::Log)));
    }

    #[test]
    fn an_interval_in_which_nothing_was_accepted_counts() {
        let log = "accepted: 100, drafted: 300, length: 2.00\naccepted: 0, drafted: 300, length: 1.00\n";
        let found =
            read(log, r"accepted: (?<accepted>\d+), drafted: (?<drafted>\d+), length: (?<length>[\d.]+)").unwrap();
        // A hundred steps of three drafted tokens each, and a hundred more that gave one token each.
        assert_eq!(found.length, Some((1.5, Source::Estimate)));
    }

    #[test]
    fn sglangs_intervals_weigh_by_what_ran() {
        let log = "Decode batch, #running-req: 1, #token: 9, accept len: 3.00, accept rate: 0.6\n\
                   Decode batch, #running-req: 3, #token: 9, accept len: 2.00, accept rate: 0.4\nDecode batch, #running-req: 3\n";
        let found = read(log, r"#running-req: (?<running>\d+).*accept len: (?<length>[\d.]+)").unwrap();
        assert_eq!(found.length, Some((2.25, Source::Log)));
        assert_eq!(found.ratio, None);
        assert_eq!(read("nothing of it", "accept len: (?<length>[\\d.]+)"), None);
    }
}
