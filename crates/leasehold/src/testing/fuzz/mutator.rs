//! Mutations of inputs: bytes, words of the corpus, lengths, repetitions, and JSON.

use fastrand::Rng;

use super::json;

/// Maximum size of an input in bytes.
pub(super) const MAX_INPUT: usize = 64 << 10;

/// Bytes that separate words.
const SEPARATORS: &[u8] = b" \n\t,;:/?&=.\"'{}[]()<>@#|*-";

/// Words that mean something to some parser.
const WORDS: [&[u8]; 22] = [
    b"\0",
    b"\n",
    b"\r\n",
    b"%",
    b"%00",
    b"%ff",
    b"%20",
    b"\xff",
    b"\xc3",
    b"\xe2\x80\xae",
    b"\xf0\x9f\x92\xa1",
    b"-1",
    b"99999999999999999999",
    b"1e999",
    b"0.0000001",
    b"NaN",
    b"null",
    b"\\u0000",
    b"\\ud800",
    b"://",
    b"-->",
    b"[[[[",
];

/// Source of mutated inputs.
pub(super) struct Mutator {
    rng: Rng,
    /// Inputs to start from: the corpus, and inputs whose outcome was new.
    pool: Vec<Vec<u8>>,
    words: Vec<Vec<u8>>,
}

impl Mutator {
    pub(super) fn new(seed: u64, corpus: Vec<Vec<u8>>) -> Self {
        let separated = corpus.iter().flat_map(|input| input.split(|byte| SEPARATORS.contains(byte)));
        let mut words: Vec<Vec<u8>> = separated.filter(|word| word.len() < 32).map(Vec::from).collect();
        words.extend(WORDS.map(Vec::from));
        words.extend(SEPARATORS.iter().map(|byte| vec![*byte]));
        words.sort();
        words.dedup();
        Self { rng: Rng::with_seed(seed), pool: corpus, words }
    }

    /// Adds an input from which further ones are made.
    pub(super) fn keep(&mut self, input: Vec<u8>) {
        self.pool.push(input);
    }

    /// Returns the next input: one of the pool after one or a few mutations.
    pub(super) fn next(&mut self) -> Vec<u8> {
        let mut input = self.rng.choice(&self.pool).cloned().unwrap_or_default();
        // Half of the inputs that contain JSON stay JSON: few random bytes pass its parser.
        let stays_json = self.rng.bool();
        for _ in 0..1 << self.rng.u32(..4) {
            if (stays_json || self.rng.u8(..4) == 0)
                && let Some(mutated) = json::mutate(&input, &mut self.rng)
            {
                input = mutated;
            } else {
                self.mutate_bytes(&mut input);
            }
            // Several mutations must not multiply the size.
            input.truncate(MAX_INPUT);
        }
        input
    }

    fn mutate_bytes(&mut self, input: &mut Vec<u8>) {
        let rng = &mut self.rng;
        let at = rng.usize(..=input.len());
        let to = (at + rng.usize(1..=16)).min(input.len());
        match rng.u8(..11) {
            0 if at < input.len() => input[at] ^= 1 << rng.u8(..8),
            1 if at < input.len() => input[at] = rng.u8(..),
            2 => drop(input.drain(at..to)),
            3 => drop(input.drain(at..)),
            4 => {
                let again = input[at..to].to_vec();
                // Long inputs are slow, and rarely needed.
                let times = [1, 1, 1, 2, 2, 3, 10, 10, 300, 5000][rng.usize(..10)];
                insert(input, at, &again.repeat(times.min(MAX_INPUT / again.len().max(1))));
            }
            5 => {
                let other = rng.choice(&self.pool).map_or(&[][..], Vec::as_slice);
                let from = rng.usize(..=other.len());
                let part = &other[from..(from + rng.usize(..64)).min(other.len())];
                drop(input.splice(at..to, part.iter().copied()));
            }
            6 => {
                let number = [0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX, 1 << 53];
                let bytes = number[rng.usize(..number.len())].to_be_bytes();
                let bytes = &bytes[8 - [1, 2, 4, 8][rng.usize(..4)]..];
                let end = (at + bytes.len()).min(input.len());
                drop(input.splice(at..end, bytes.iter().copied()));
            }
            7 => {
                let doubles =
                    [f64::NAN, f64::INFINITY, -1.0, 0.5, 9_007_199_254_740_992.0, 1e300, f64::MIN_POSITIVE];
                let bytes = doubles[rng.usize(..doubles.len())].to_be_bytes();
                drop(input.splice(at..(at + 8).min(input.len()), bytes));
            }
            8 => insert(input, at, &std::iter::repeat_with(|| rng.u8(..)).take(4).collect::<Vec<_>>()),
            _ => {
                let word = rng.choice(&self.words).map_or(&[][..], Vec::as_slice);
                let end = if rng.bool() { at } else { to };
                drop(input.splice(at..end, word.iter().copied()));
            }
        }
    }
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    drop(input.splice(at..at, bytes.iter().copied()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_inputs_and_they_differ_from_each_other() {
        let inputs = |seed| {
            let mut mutator =
                Mutator::new(seed, vec![b"redis://host?namespace=a".to_vec(), b"{\"a\":1}".to_vec()]);
            std::iter::repeat_with(|| mutator.next()).take(1000).collect::<Vec<_>>()
        };
        let all = inputs(1);
        assert!(all == inputs(1) && all != inputs(2));
        assert!(all.iter().all(|input| input.len() <= MAX_INPUT));
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert!(different.len() > 800, "{}", different.len());
    }
}
