//! Parser of licence expressions: SPDX, and the old form with a slash.

use std::collections::BTreeSet;

/// Licence expression, such as `MIT OR (Apache-2.0 AND ISC)`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Expression {
    /// One licence, with its exception if it has one.
    One(String),
    /// All of them.
    All(Vec<Expression>),
    /// Any one of them, at the choice of the user.
    Any(Vec<Expression>),
}

impl Expression {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        // `MIT/Apache-2.0` is the old form of `OR`.
        let text = text.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
        let mut words = Words(text.split_whitespace().collect());
        words.0.reverse();
        let parsed = words.any()?;
        match words.0.last() {
            None => Ok(parsed),
            Some(word) => Err(format!("unexpected '{word}'")),
        }
    }

    /// Whether these licences suffice to use the package.
    pub(super) fn is_met_by(&self, allowed: &BTreeSet<String>) -> bool {
        match self {
            Self::One(name) => allowed.contains(name),
            Self::All(parts) => parts.iter().all(|part| part.is_met_by(allowed)),
            Self::Any(parts) => parts.iter().any(|part| part.is_met_by(allowed)),
        }
    }
}

/// Remaining words in reverse order.
struct Words<'a>(Vec<&'a str>);

impl Words<'_> {
    fn take(&mut self, word: &str) -> bool {
        let is_next = self.0.last() == Some(&word);
        if is_next {
            self.0.pop();
        }
        is_next
    }

    fn any(&mut self) -> Result<Expression, String> {
        let mut parts = vec![self.all()?];
        while self.take("OR") {
            parts.push(self.all()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::Any(parts) })
    }

    fn all(&mut self) -> Result<Expression, String> {
        let mut parts = vec![self.one()?];
        while self.take("AND") {
            parts.push(self.one()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::All(parts) })
    }

    fn one(&mut self) -> Result<Expression, String> {
        if self.take("(") {
            let inner = self.any()?;
            return if self.take(")") { Ok(inner) } else { Err("a parenthesis is not closed".to_owned()) };
        }
        let name = self.name()?;
        if !self.take("WITH") {
            return Ok(Expression::One(name));
        }
        Ok(Expression::One(format!("{name} WITH {}", self.name()?)))
    }

    fn name(&mut self) -> Result<String, String> {
        match self.0.pop() {
            Some(word) if !["AND", "OR", "WITH", "(", ")"].contains(&word) => Ok(word.to_owned()),
            Some(word) => Err(format!("unexpected '{word}'")),
            None => Err("expected a licence name".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_met(text: &str) -> bool {
        let allowed = ["MIT", "Apache-2.0", "ISC"].map(str::to_owned).into();
        Expression::parse(text).unwrap().is_met_by(&allowed)
    }

    #[test]
    fn or_needs_one_licence_and_and_needs_all() {
        for text in [
            "MIT",
            "MIT/GPL-3.0",
            "GPL-3.0 OR MIT",
            "(MIT OR GPL-3.0) AND ISC",
            "MIT AND GPL-3.0 OR ISC",
            "Apache-2.0 WITH LLVM-exception OR MIT",
        ] {
            assert!(is_met(text), "{text}");
        }
        for text in
            ["GPL-3.0", "MIT AND GPL-3.0", "MIT AND (GPL-3.0 OR GPL-2.0)", "Apache-2.0 WITH LLVM-exception"]
        {
            assert!(!is_met(text), "{text}");
        }
    }

    #[test]
    fn invalid_expressions_are_rejected() {
        for text in ["", "MIT OR", "OR MIT", "(MIT", "MIT)", "MIT ISC", "MIT WITH", "( )"] {
            assert!(Expression::parse(text).is_err(), "{text}");
        }
    }
}
