//! Parser of licence expressions: SPDX, and the old form with a slash.

use std::collections::BTreeSet;
use std::iter::Peekable;
use std::str::SplitWhitespace;

/// Whether the allowed licences suffice to use a package with this expression, such as
/// `MIT OR (Apache-2.0 AND ISC)`.
pub(super) fn is_met(text: &str, allowed: &BTreeSet<String>) -> Result<bool, String> {
    // `MIT/Apache-2.0` is the old form of `OR`.
    let text = text.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = Words { rest: text.split_whitespace().peekable(), allowed };
    let is_met = words.any()?;
    words.rest.next().map_or(Ok(is_met), |word| Err(format!("unexpected '{word}'")))
}

struct Words<'a> {
    rest: Peekable<SplitWhitespace<'a>>,
    allowed: &'a BTreeSet<String>,
}

impl Words<'_> {
    fn take(&mut self, word: &str) -> bool {
        self.rest.next_if(|next| *next == word).is_some()
    }

    fn any(&mut self) -> Result<bool, String> {
        let mut is_met = self.all()?;
        while self.take("OR") {
            is_met |= self.all()?;
        }
        Ok(is_met)
    }

    fn all(&mut self) -> Result<bool, String> {
        let mut is_met = self.one()?;
        while self.take("AND") {
            is_met &= self.one()?;
        }
        Ok(is_met)
    }

    fn one(&mut self) -> Result<bool, String> {
        if self.take("(") {
            let is_met = self.any()?;
            return if self.take(")") { Ok(is_met) } else { Err("a parenthesis is not closed".to_owned()) };
        }
        let mut name = self.name()?;
        if self.take("WITH") {
            name = format!("{name} WITH {}", self.name()?);
        }
        Ok(self.allowed.contains(&name))
    }

    fn name(&mut self) -> Result<String, String> {
        match self.rest.next() {
            Some(word) if !["AND", "OR", "WITH", "(", ")"].contains(&word) => Ok(word.to_owned()),
            Some(word) => Err(format!("unexpected '{word}'")),
            None => Err("expected a licence name".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    fn is_met(text: &str) -> Result<bool, String> {
        super::is_met(text, &["MIT", "Apache-2.0", "ISC"].map(str::to_owned).into())
    }

    #[test]
    fn or_needs_one_licence_and_and_needs_all() {
        for (text, expected) in [
            ("MIT", true),
            ("MIT/GPL-3.0", true),
            ("GPL-3.0 OR MIT", true),
            ("(MIT OR GPL-3.0) AND ISC", true),
            ("MIT AND GPL-3.0 OR ISC", true),
            ("Apache-2.0 WITH LLVM-exception OR MIT", true),
            ("GPL-3.0", false),
            ("MIT AND GPL-3.0", false),
            ("MIT AND (GPL-3.0 OR GPL-2.0)", false),
            ("Apache-2.0 WITH LLVM-exception", false),
        ] {
            assert_eq!(is_met(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn invalid_expressions_are_rejected() {
        for text in ["", "MIT OR", "OR MIT", "(MIT", "MIT)", "MIT ISC", "MIT WITH", "( )"] {
            assert!(is_met(text).is_err(), "{text}");
        }
    }
}
