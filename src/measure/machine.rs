//! What the server's machine read while a step was measured: memory in use, and the energy of its GPUs.

use crate::clock::Nanos;

/// One reading of the machine, of the server's own GPUs and processes alone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// When, on the load's clock.
    pub at: Nanos,
    /// Memory in use: of all its GPUs together or, of a server on a processor, resident. `None`: not all of them told.
    pub memory_bytes: Option<f64>,
    /// What all its GPUs together draw. `None`: not all of them told, or there are none.
    pub power_w: Option<f64>,
}

/// The readings of a run so far, in order, and how many GPUs its server has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// GPUs of the server. `None`: it has none, or they are not known.
    pub gpus: Option<usize>,
    /// From the launch on.
    pub readings: Vec<Reading>,
}

/// Between two readings no more than this may pass, or what was drawn meanwhile is not known. They come once a second,
/// and a machine at work may be late with one.
const GAP: Nanos = 5_000_000_000;

impl Machine {
    /// The most memory that was in use until a moment, from the launch on: most engines take theirs at the start.
    pub fn peak_memory_bytes(&self, until: Nanos) -> Option<f64> {
        let read = self.readings.iter().filter(|reading| reading.at <= until);
        read.filter_map(|reading| reading.memory_bytes).reduce(f64::max)
    }

    /// The energy between two moments, in joules: the power of each reading and the next, joined by straight lines, and at
    /// either end the power of the nearest one. `None` where a stretch of it was not read.
    pub fn energy_j(&self, from: Nanos, to: Nanos) -> Option<f64> {
        let power: Vec<(Nanos, f64)> =
            self.readings.iter().filter_map(|reading| Some((reading.at, reading.power_w?))).collect();
        let (first, last) = (power.first()?, power.last()?);
        if to <= from || first.0 > from.saturating_add(GAP) || last.0.saturating_add(GAP) < to {
            return None;
        }
        let ends =
            [(first.0.min(from), first.1)].into_iter().chain(power.iter().copied()).chain([(last.0.max(to), last.1)]);
        let points: Vec<(Nanos, f64)> = ends.collect();
        let mut joules = 0.0;
        for pair in points.windows(2) {
            let [(began, power), (ended, then)] = [pair[0], pair[1]];
            let (a, b) = (began.max(from), ended.min(to));
            if a >= b {
                continue;
            }
            if ended - began > GAP {
                return None;
            }
            let at = |moment: Nanos| power + (then - power) * ((moment - began) as f64 / (ended - began) as f64);
            joules += (at(a) + at(b)) / 2.0 * ((b - a) as f64 / 1e9);
        }
        Some(joules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Nanos = 1_000_000_000;

    fn machine(power: &[(Nanos, Option<f64>)]) -> Machine {
        let readings = power.iter().map(|(at, power_w)| Reading { at: *at, memory_bytes: None, power_w: *power_w });
        Machine { gpus: Some(2), readings: readings.collect() }
    }

    #[test]
    fn energy_is_the_area_under_the_power_of_the_window_alone() {
        let steady = machine(&[(0, Some(300.0)), (S, Some(300.0)), (2 * S, Some(300.0)), (3 * S, Some(300.0))]);
        assert_eq!(steady.energy_j(S / 2, 2 * S + S / 2), Some(600.0));
        let rising = machine(&[(0, Some(0.0)), (S, Some(100.0)), (2 * S, Some(200.0))]);
        assert_eq!(rising.energy_j(0, 2 * S), Some(200.0));
        assert_eq!(rising.energy_j(S, 2 * S), Some(150.0));
        // Before the first reading and after the last it is taken to be theirs.
        assert_eq!(machine(&[(S, Some(100.0))]).energy_j(0, 2 * S), Some(200.0));
    }

    #[test]
    fn what_was_not_read_is_absent() {
        assert_eq!(machine(&[]).energy_j(0, S), None);
        assert_eq!(machine(&[(0, None), (S, None)]).energy_j(0, S), None);
        assert_eq!(machine(&[(0, Some(1.0)), (9 * S, Some(1.0))]).energy_j(S, 2 * S), None, "nine seconds unread");
        assert_eq!(machine(&[(0, Some(1.0)), (S, Some(1.0))]).energy_j(0, 20 * S), None, "the readings ended early");
        assert_eq!(machine(&[(20 * S, Some(1.0))]).energy_j(0, 21 * S), None, "they began late");
        assert_eq!(machine(&[(0, Some(1.0))]).energy_j(S, S), None, "no window");
    }

    #[test]
    fn the_peak_is_that_of_all_readings_until_then() {
        let at = |at: Nanos, memory_bytes| Reading { at, memory_bytes, power_w: None };
        let readings =
            vec![at(0, Some(5.0)), at(S, Some(9.0)), at(2 * S, None), at(3 * S, Some(7.0)), at(9 * S, Some(99.0))];
        let machine = Machine { gpus: None, readings };
        assert_eq!(machine.peak_memory_bytes(4 * S), Some(9.0));
        assert_eq!(machine.peak_memory_bytes(9 * S), Some(99.0));
        assert_eq!(Machine::default().peak_memory_bytes(S), None);
    }
}
