//! Shape of an outcome: what stands in for code coverage.

use std::fmt::{self, Write};

/// Outcome of one input without its values. An input whose outcome has a new shape is mutated further:
/// it has reached another branch.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape(u64);

impl Shape {
    /// Returns the shape of a value: its debug output without numbers and quoted texts.
    pub fn of(value: &impl fmt::Debug) -> Self {
        Self::written(format_args!("{value:?}"))
    }

    /// Returns the shape of a text, such as an error message.
    pub fn of_text(text: &impl fmt::Display) -> Self {
        Self::written(format_args!("{text}"))
    }

    /// Returns the shape of an error message that may contain the rejected text.
    pub fn of_refusal(error: &impl fmt::Display, rejected: &str) -> Self {
        let (message, escaped) = (error.to_string(), format!("{rejected:?}"));
        let message = message.replace(&escaped, "");
        Self::of_text(&if rejected.is_empty() { message } else { message.replace(rejected, "") })
    }

    fn written(text: fmt::Arguments<'_>) -> Self {
        let mut outline = Outline { hash: 0xcbf2_9ce4_8422_2325, length: 0, quote: None, was_digit: false };
        // Hashing cannot fail.
        let _ = outline.write_fmt(text);
        Self(outline.hash)
    }
}

/// Writes letters, so that a shape counts within another one.
impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |digit: u8| char::from(b'a' + digit);
        self.0.to_be_bytes().iter().try_for_each(|byte| {
            f.write_char(letter(byte >> 4))?;
            f.write_char(letter(byte & 15))
        })
    }
}

/// Maximum length of a text that counts: the shape of what follows is not worth the time.
const MAX_TEXT: usize = 16 << 10;

/// Hash (FNV-1a) of a text without its values.
struct Outline {
    hash: u64,
    length: usize,
    /// Quote that ends the text that is being skipped.
    quote: Option<u8>,
    was_digit: bool,
}

impl Write for Outline {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let text = &text.as_bytes()[..text.len().min(MAX_TEXT - self.length)];
        self.length += text.len();
        for &byte in text {
            let is_digit = byte.is_ascii_digit();
            match self.quote {
                Some(quote) => self.quote = Some(quote).filter(|quote| *quote != byte),
                None if is_digit && self.was_digit => {}
                None => {
                    self.quote = Some(byte).filter(|byte| b"\"'`".contains(byte));
                    let counted = u64::from(if is_digit { b'0' } else { byte });
                    self.hash = (self.hash ^ counted).wrapping_mul(0x0100_0000_01b3);
                }
            }
            self.was_digit = is_digit;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_no_influence_and_structure_has() {
        assert_eq!(Shape::of(&("a", 12)), Shape::of(&("bcd", 7)));
        assert_ne!(Shape::of(&Some(1)), Shape::of(&None::<i32>));
        assert_eq!(Shape::of_text(&"'x' is not a time"), Shape::of_text(&"'yz 1' is not a time"));
        assert_ne!(Shape::of_text(&"'x' is not a time"), Shape::of_text(&"'x' is not a name"));
        assert_ne!(Shape::of(&[1]), Shape::of(&[1, 2]));
        assert_ne!(Shape::of(&Shape::of(&[1])), Shape::of(&Shape::of(&[1, 2])));
        assert_eq!(Shape::of_refusal(&"'it's' is long", "it's"), Shape::of_refusal(&"'a' is long", "a"));
    }
}
