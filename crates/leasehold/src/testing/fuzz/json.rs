//! Mutations of JSON that keep it JSON: most random bytes would never pass its parser.

use fastrand::Rng;
use serde_json::{Map, Number, Value};

/// Numbers at the limits of what fields hold.
const NUMBERS: [&str; 20] = [
    "0",
    "-0",
    "1",
    "-1",
    "2",
    "127",
    "128",
    "255",
    "256",
    "1000",
    "65535",
    "65536",
    "4294967295",
    "4294967296",
    "9007199254740992",
    "9007199254740993",
    "9223372036854775807",
    "18446744073709551615",
    "1.5",
    "1e300",
];
/// Texts at the limits of what fields hold.
const TEXTS: [&str; 14] =
    ["", " ", "a", " a", "\0", "\n", "\u{2028}", "\u{202e}", "é", "💡", "-->", "<!--", "`", "workflow/"];
/// Maximum length to which a text grows by repetition.
const MAX_TEXT: usize = 16 << 10;
/// Depth around which parsers stop.
const DEEP: [usize; 4] = [3, 126, 129, 2000];

/// Returns the JSON in the input after one mutation, with the text around it unchanged; `None` if there
/// is none.
pub(super) fn mutate(input: &[u8], rng: &mut Rng) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(input).ok()?;
    let begin = text.find(['{', '['])?;
    let mut values = serde_json::Deserializer::from_str(&text[begin..]).into_iter::<Value>();
    let mut value = values.next()?.ok()?;
    let end = begin + values.byte_offset();
    let target = rng.usize(..count(&value));
    visit(&mut value, &mut { target }, &mut |node| change(node, rng));
    Some([&input[..begin], value.to_string().as_bytes(), &input[end..]].concat())
}

/// Returns the number of values in the tree.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0_usize,
    }
}

/// Calls `change` for the value with this number in the tree.
fn visit(value: &mut Value, number: &mut usize, change: &mut impl FnMut(&mut Value)) {
    if *number == 0 {
        change(value);
    }
    *number = number.wrapping_sub(1);
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| visit(item, number, change)),
        Value::Object(fields) => fields.values_mut().for_each(|field| visit(field, number, change)),
        _ => {}
    }
}

fn change(value: &mut Value, rng: &mut Rng) {
    match value {
        Value::Array(items) if rng.u8(..4) > 0 => change_items(items, rng),
        Value::Object(fields) if rng.u8(..4) > 0 => change_fields(fields, rng),
        Value::String(text) if rng.u8(..4) > 0 => change_text(text, rng),
        Value::Number(number) if rng.u8(..3) == 0 => {
            let near = number.as_i64().unwrap_or_default().saturating_add(rng.i64(-2..=2));
            *value = near.into();
        }
        Value::Number(_) if rng.u8(..4) > 0 => *value = limit(rng),
        _ => *value = other(value, rng),
    }
}

/// Returns another value in place of this one.
fn other(value: &Value, rng: &mut Rng) -> Value {
    match rng.u8(..9) {
        0 => Value::Null,
        1 => rng.bool().into(),
        2 => TEXTS[rng.usize(..TEXTS.len())].into(),
        3 => Value::Array(vec![value.clone(); rng.usize(..4)]),
        4 => Value::Object(Map::from_iter([("a".to_owned(), value.clone())])),
        5 => (0..DEEP[rng.usize(..DEEP.len())]).fold(Value::Null, |inner, _| Value::Array(vec![inner])),
        _ => limit(rng),
    }
}

/// Returns a number at the limit of what a field holds.
fn limit(rng: &mut Rng) -> Value {
    let number = NUMBERS[rng.usize(..NUMBERS.len())];
    serde_json::from_str::<Number>(number).map_or(Value::Null, Value::Number)
}

fn change_items(items: &mut Vec<Value>, rng: &mut Rng) {
    let Some(item) = rng.choice(&*items).cloned() else { return items.push(Value::Null) };
    match rng.u8(..4) {
        0 => items.extend(std::iter::repeat_n(item, rng.usize(1..20))),
        1 => drop(items.remove(rng.usize(..items.len()))),
        2 => rng.shuffle(items),
        _ => items.clear(),
    }
}

fn change_fields(fields: &mut Map<String, Value>, rng: &mut Rng) {
    let Some(name) = rng.choice(fields.keys()).cloned() else { return };
    match rng.u8(..4) {
        0 => drop(fields.remove(&name)),
        1 => {
            let value = fields.remove(&name).unwrap_or_default();
            fields.insert(format!("{name}x"), value);
        }
        2 => {
            let value = rng.choice(fields.values()).cloned().unwrap_or_default();
            fields.insert(name, value);
        }
        _ => drop(fields.insert("x".to_owned(), Value::Null)),
    }
}

fn change_text(text: &mut String, rng: &mut Rng) {
    let at = text.floor_char_boundary(rng.usize(..=text.len()));
    match rng.u8(..5) {
        0 => text.insert_str(at, TEXTS[rng.usize(..TEXTS.len())]),
        1 => text.truncate(at),
        2 => *text = text.repeat(rng.usize(2..300).min(1 + MAX_TEXT / text.len().max(1))),
        3 => text.insert(at, rng.char(..)),
        // Names end at 255 bytes: exactly there, and one byte further.
        _ => *text = "é".repeat(127) + ["", "a", "é"][rng.usize(..3)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutation_of_json_is_json_and_leaves_the_text_around_it() {
        let (mut rng, mut changed) = (Rng::with_seed(1), 0);
        let input = "before {\"a\":[1,\"b\",{\"c\":null}]} after";
        for _ in 0..500 {
            let output = String::from_utf8(mutate(input.as_bytes(), &mut rng).unwrap()).unwrap();
            let json = output.strip_prefix("before ").and_then(|text| text.strip_suffix(" after")).unwrap();
            assert!(serde_json::from_str::<Value>(json).is_ok() || json.contains("[[[["), "{output}");
            changed += u32::from(output != input);
        }
        assert!(changed > 400, "{changed}");
        assert_eq!(mutate(b"no JSON", &mut rng), None);
    }
}
