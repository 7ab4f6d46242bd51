//! Many words looked for in one pass over a text. The automaton is built by a library and laid out here for this one use:
//! a table that is small, and at each end of a word all that it stands for at once.

use aho_corasick::automaton::{Automaton as _, StateID};
use aho_corasick::dfa::DFA;
use aho_corasick::{Anchored, BuildError, MatchKind, StartKind};

use super::found::Found;

/// Words and what they stand for.
#[derive(Clone, Debug)]
pub(super) struct Automaton {
    /// Bytes that no word tells apart are one. Upper and lower case are the same.
    classes: [u8; 256],
    /// So many classes there are: as long is the row of a state.
    width: u32,
    /// Row by row, where the row of the next state begins.
    next: Vec<u32>,
    /// From here on, a word ends in each state.
    first_end: u32,
    /// What the words stand for that end there, state by state.
    ends: Vec<Found>,
}

impl Automaton {
    /// Takes words in lower case, each with what it stands for.
    pub(super) fn new(words: &[(Vec<u8>, Found)]) -> Result<Self, BuildError> {
        let dfa = DFA::builder()
            .ascii_case_insensitive(true)
            .match_kind(MatchKind::Standard)
            .start_kind(StartKind::Unanchored)
            .prefilter(false)
            .build(words.iter().map(|(word, _)| word))?;
        let (classes, bytes) = classes(words);
        let Ok(start) = dfa.start_state(Anchored::No) else {
            return Ok(Automaton { classes, width: 1, next: vec![0], first_end: 1, ends: Vec::new() });
        };
        let (all, rows) = reached(&dfa, start, &bytes);
        // Those in which a word ends stand behind the others; the first is the start, in which none ends.
        let (on, end): (Vec<usize>, Vec<usize>) = (0..all.len()).partition(|state| !dfa.is_match(all[*state]));
        let width = bytes.len() as u32;
        let mut begins = vec![0; all.len()];
        for (place, state) in on.iter().chain(&end).enumerate() {
            begins[*state] = place as u32 * width;
        }
        let next = on.iter().chain(&end).flat_map(|state| rows[*state].iter().map(|next| begins[*next])).collect();
        let stand_for = |state: &usize| {
            let state = all[*state];
            let mut found = Found::default();
            for number in 0..dfa.match_len(state) {
                found.add(&words[dfa.match_pattern(state, number).as_usize()].1);
            }
            found
        };
        Ok(Automaton {
            classes,
            width,
            next,
            first_end: on.len() as u32 * width,
            ends: end.iter().map(stand_for).collect(),
        })
    }

    /// Adds what the words stand for that are in a text.
    pub(super) fn find(&self, text: &[u8], found: &mut Found) {
        let mut state = 0;
        for byte in text {
            state = self.next[state as usize + usize::from(self.classes[usize::from(*byte)])];
            if state >= self.first_end {
                found.add(&self.ends[((state - self.first_end) / self.width) as usize]);
            }
        }
    }
}

/// All states that can be reached from one, which is the first, and for each the numbers of those that come next.
fn reached(dfa: &DFA, start: StateID, bytes: &[u8]) -> (Vec<StateID>, Vec<Vec<usize>>) {
    let mut all: Vec<StateID> = Vec::new();
    let mut places: Vec<Option<usize>> = Vec::new();
    let mut place_of = |state: StateID, all: &mut Vec<StateID>| {
        if places.len() <= state.as_usize() {
            places.resize(state.as_usize() + 1, None);
        }
        *places[state.as_usize()].get_or_insert_with(|| {
            all.push(state);
            all.len() - 1
        })
    };
    place_of(start, &mut all);
    let mut rows: Vec<Vec<usize>> = Vec::new();
    while let Some(state) = all.get(rows.len()).copied() {
        let next = |byte: &u8| dfa.next_state(Anchored::No, state, *byte);
        rows.push(bytes.iter().map(|byte| place_of(next(byte), &mut all)).collect());
    }
    (all, rows)
}

/// The class of each byte, and one byte of each class; the first is that of the bytes that are in no word.
fn classes(words: &[(Vec<u8>, Found)]) -> ([u8; 256], Vec<u8>) {
    let mut is_used = [false; 256];
    words.iter().flat_map(|(word, _)| word).for_each(|byte| is_used[usize::from(byte.to_ascii_lowercase())] = true);
    let mut classes = [0; 256];
    let mut bytes = Vec::new();
    let unused = (0..=255_u8).find(|byte| !is_used[usize::from(byte.to_ascii_lowercase())]);
    // Were every byte in some word, the first class would be that of nothing.
    bytes.push(unused.unwrap_or(0));
    for byte in (0..=255_u8).filter(|byte| is_used[usize::from(*byte)]) {
        // 26 letters of upper case are none of their own, so that a number of a class fits a byte.
        let class = bytes.len() as u8;
        classes[usize::from(byte)] = class;
        classes[usize::from(byte.to_ascii_uppercase())] = class;
        bytes.push(byte);
    }
    (classes, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn automaton(words: &[&str]) -> Automaton {
        let words: Vec<_> = words
            .iter()
            .enumerate()
            .map(|(number, word)| (word.as_bytes().to_vec(), Found::from_iter([number])))
            .collect();
        Automaton::new(&words).unwrap()
    }

    fn find(automaton: &Automaton, text: &[u8]) -> Vec<usize> {
        let mut found = Found::default();
        automaton.find(text, &mut found);
        found.iter().collect()
    }

    #[test]
    fn every_word_is_found_also_within_others_and_in_either_case() {
        let all = automaton(&["memory", "out of memory", "of", "ry", "\u{2502} x"]);
        assert_eq!(find(&all, b"CUDA Out Of MEMORY."), [0, 1, 2, 3]);
        assert_eq!(find(&all, "a \u{2502} X".as_bytes()), [4]);
        assert_eq!(find(&all, b"out o memor\xff"), Vec::<usize>::new());
        assert_eq!(find(&all, b"out of out of memory"), [0, 1, 2, 3]);
    }

    #[test]
    fn without_words_nothing_is_found() {
        assert_eq!(find(&automaton(&[]), b"anything"), Vec::<usize>::new());
    }
}
