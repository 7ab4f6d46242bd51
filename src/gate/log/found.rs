//! A set of patterns, by their numbers.

/// Numbers of patterns, a bit each. What is done for every line of a log is inlined: nothing else does so across modules
/// in a build without optimisation at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    /// Without zeros at its end.
    bits: Vec<u64>,
}

impl Found {
    /// Adds one.
    pub(super) fn insert(&mut self, number: usize) {
        let place = number / 64;
        if self.bits.len() <= place {
            self.bits.resize(place + 1, 0);
        }
        self.bits[place] |= 1 << (number % 64);
    }

    /// Becomes equal to another one; its memory is kept.
    #[inline]
    pub(super) fn set(&mut self, other: &Found) {
        self.bits.clear();
        self.bits.extend_from_slice(&other.bits);
    }

    /// Adds all of another one.
    #[inline]
    pub(super) fn add(&mut self, other: &Found) {
        if self.bits.len() < other.bits.len() {
            self.bits.resize(other.bits.len(), 0);
        }
        for (mine, theirs) in self.bits.iter_mut().zip(&other.bits) {
            *mine |= theirs;
        }
    }

    /// Whether there are none but these.
    #[inline]
    pub(super) fn is_within(&self, other: &Found) -> bool {
        let theirs = other.bits.iter().chain(std::iter::repeat(&0));
        self.bits.iter().zip(theirs).all(|(mine, theirs)| mine & !theirs == 0)
    }

    /// Whether one of these is there.
    #[inline]
    pub(super) fn meets(&self, other: &Found) -> bool {
        self.bits.iter().zip(&other.bits).any(|(mine, theirs)| mine & theirs != 0)
    }

    /// Whether there are none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.bits.is_empty()
    }

    /// A number for the set: equal sets have the same.
    #[inline]
    pub(super) fn hash(&self, seed: u64) -> u64 {
        self.bits.iter().fold(seed, |hash, bits| (hash ^ bits).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23))
    }

    /// All of them, in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.bits.iter().enumerate().flat_map(|(place, bits)| {
            let mut rest = *bits;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then_some(rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some(place * 64 + bit)
            })
        })
    }
}

impl FromIterator<usize> for Found {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        let mut found = Found::default();
        numbers.into_iter().for_each(|number| found.insert(number));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: &[usize]) -> Found {
        numbers.iter().copied().collect()
    }

    #[test]
    fn sets_of_different_lengths_are_compared_by_what_is_in_them() {
        let mut found = of(&[3, 200]);
        assert!(found.is_within(&of(&[200, 3, 7])) && !found.is_within(&of(&[3])) && of(&[]).is_within(&of(&[])));
        assert!(found.meets(&of(&[200])) && !found.meets(&of(&[4])));
        found.add(&of(&[64, 300]));
        assert_eq!(found.iter().collect::<Vec<_>>(), [3, 64, 200, 300]);
        found.set(&of(&[]));
        assert!(found.is_empty() && found == Found::default());
        assert_ne!(of(&[1]).hash(7), of(&[65]).hash(7));
    }
}
