//! Reading a record by the rules that may fit it.

use regex::bytes::{Captures, Regex};

use super::{Bar, LogGrammar, Observation, PhaseKind, Role, Seen};
use crate::gate::log::found::Found;
use crate::gate::log::values::{self, Position};
use crate::gate::log::{Piece, prefix};

impl LogGrammar {
    /// What a piece tells: of each record in it, since a bar and a record can share a line.
    pub fn read(&self, piece: &Piece) -> Vec<Seen> {
        self.records(&piece.text).into_iter().flat_map(|record| self.read_record(record)).collect()
    }

    /// The records in a piece: a bar and a record can share a line.
    pub(in crate::gate::log) fn records<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let Some(pattern) = &self.record else { return vec![text] };
        let mut cuts: Vec<usize> = vec![0];
        cuts.extend(pattern.find_iter(text.as_bytes()).map(|found| found.start()));
        cuts.push(text.len());
        let records = cuts.windows(2).filter(|pair| pair[0] < pair[1]).filter_map(|pair| text.get(pair[0]..pair[1]));
        records.collect()
    }

    pub(in crate::gate::log) fn rank(&self, record: &str) -> Option<u32> {
        let of = |pattern: &Regex| {
            let groups = pattern.captures(record.as_bytes())?;
            let group = groups.iter().skip(1).flatten().next()?;
            record.get(group.range())?.parse().ok()
        };
        self.rank.as_ref().and_then(of).or_else(|| of(&self.common_rank))
    }

    /// What a record tells.
    pub(in crate::gate::log) fn read_record(&self, record: &str) -> Vec<Seen> {
        let mut candidates = Found::default();
        self.sieve.find(record.as_bytes(), &mut candidates);
        if candidates.is_empty() {
            return Vec::new();
        }
        let bytes = record.as_bytes();
        let mut seen = Vec::new();
        let mut failures = Vec::new();
        let mut told = Vec::new();
        let mut benign = false;
        for (regex, role) in candidates.iter().filter_map(|number| self.patterns.get(number)) {
            match role {
                Role::Benign if !benign => benign = regex.is_match(bytes),
                Role::Benign => {}
                Role::Failure(rule) => {
                    if let Some(groups) = regex.captures(bytes) {
                        failures.push(*rule);
                        values::facts(regex, &groups, &mut told);
                    }
                }
                Role::Error => {
                    if prefix::exception(prefix::message(record).text).is_some_and(prefix::is_error_name) {
                        seen.push(Observation::Error);
                    }
                }
                role => {
                    let Some(groups) = regex.captures(bytes) else { continue };
                    self.observe(*role, record, &groups, &mut seen);
                    if !matches!(role, Role::Bar(_) | Role::Suspect(_)) {
                        values::facts(regex, &groups, &mut seen);
                    }
                }
            }
        }
        if benign {
            seen.retain(|what| *what != Observation::Error);
        } else if !failures.is_empty() {
            seen.extend(told);
            seen.push(Observation::Failure { rules: failures });
        }
        let rank = if seen.is_empty() { None } else { self.rank(record) };
        seen.into_iter().map(|what| Seen { rank, what }).collect()
    }

    /// The phases that a frame of a traceback proves.
    pub(in crate::gate::log) fn read_frame(&self, frame: &str) -> Vec<Observation> {
        let mut candidates = Found::default();
        self.sieve.find(frame.as_bytes(), &mut candidates);
        let proven = candidates.iter().filter_map(|number| match self.patterns.get(number)? {
            (regex, Role::Frames(phase)) if regex.is_match(frame.as_bytes()) => {
                let PhaseKind { name, by_rank, .. } = self.phases.get(*phase)?;
                Some(Observation::Begin { phase: name.clone(), by_rank: *by_rank })
            }
            _ => None,
        });
        proven.collect()
    }

    fn observe(&self, role: Role, record: &str, groups: &Captures<'_>, seen: &mut Vec<Observation>) {
        match role {
            Role::Heartbeat => seen.push(Observation::Heartbeat),
            Role::Recovers => seen.push(Observation::Recovers),
            Role::Traceback => seen.push(Observation::Traceback),
            Role::Chain => seen.push(Observation::Chain),
            Role::Begin(number) => {
                let PhaseKind { name, by_rank, .. } = &self.phases[number];
                seen.push(Observation::Begin { phase: name.clone(), by_rank: *by_rank });
            }
            Role::End(number) => {
                let PhaseKind { name, by_rank, .. } = &self.phases[number];
                seen.push(Observation::End { phase: name.clone(), by_rank: *by_rank });
            }
            Role::Suspect(rule) => {
                let name = groups.name("name").and_then(|name| record.get(name.range()));
                seen.push(Observation::Suspect { rule, name: name.unwrap_or_default().to_owned() });
            }
            Role::Bar(number) => {
                let Bar { unit, phase, within } = &self.bars[number];
                if let Some(Position { done, total, is_share }) = values::position(record, groups) {
                    let unit = if is_share { "percent".to_owned() } else { unit.clone() };
                    seen.push(Observation::Bar { phase: phase.clone(), done, total, unit, within: *within });
                }
            }
            Role::Benign | Role::Failure(_) | Role::Fact | Role::Version | Role::Frames(_) | Role::Error => {}
        }
    }
}
