//! Deserializer that accepts JSON only as the `OpenAPI` document describes it.
//!
//! Serde also reads a struct from an array, field by field in source order: `["…", 7]` for
//! `{"leaseId": "…", "token": 7}`. This deserializer rejects such arrays at any depth. It also
//! accepts a whole number written as `7.0`, which is an integer in JSON Schema.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, Unexpected, VariantAccess,
    Visitor,
};

/// Bound (2^63) below which whole numbers with a fraction of zero are read as integers.
const LARGEST: f64 = 9_223_372_036_854_775_807.0;

pub(crate) struct Strict<T>(pub(crate) T);

struct StrictVisitor<V> {
    inner: V,
    wanted: Wanted,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Object,
    Integer,
    Other,
}

macro_rules! forward {
    ($($method:ident($($arg:ident: $type:ty),*) as $wanted:ident;)*) => {$(
        fn $method<V: Visitor<'de>>(self, $($arg: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method($($arg,)* StrictVisitor { inner: visitor, wanted: Wanted::$wanted })
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    forward! {
        deserialize_any() as Other;
        deserialize_bool() as Other;
        deserialize_i8() as Integer;
        deserialize_i16() as Integer;
        deserialize_i32() as Integer;
        deserialize_i64() as Integer;
        deserialize_i128() as Integer;
        deserialize_u8() as Integer;
        deserialize_u16() as Integer;
        deserialize_u32() as Integer;
        deserialize_u64() as Integer;
        deserialize_u128() as Integer;
        deserialize_f32() as Other;
        deserialize_f64() as Other;
        deserialize_char() as Other;
        deserialize_str() as Other;
        deserialize_string() as Other;
        deserialize_bytes() as Other;
        deserialize_byte_buf() as Other;
        deserialize_option() as Other;
        deserialize_unit() as Other;
        deserialize_unit_struct(name: &'static str) as Other;
        deserialize_newtype_struct(name: &'static str) as Other;
        deserialize_seq() as Other;
        deserialize_tuple(len: usize) as Other;
        deserialize_tuple_struct(name: &'static str, len: usize) as Other;
        deserialize_map() as Other;
        deserialize_struct(name: &'static str, fields: &'static [&'static str]) as Object;
        deserialize_enum(name: &'static str, variants: &'static [&'static str]) as Other;
        deserialize_identifier() as Other;
        deserialize_ignored_any() as Other;
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! pass_on {
    ($($method:ident: $type:ty;)*) => {$(
        fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for StrictVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    pass_on! {
        visit_bool: bool;
        visit_i64: i64;
        visit_i128: i128;
        visit_u64: u64;
        visit_u128: u128;
        visit_str: &str;
        visit_borrowed_str: &'de str;
        visit_string: String;
        visit_bytes: &[u8];
        visit_borrowed_bytes: &'de [u8];
        visit_byte_buf: Vec<u8>;
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<V::Value, E> {
        let is_whole = self.wanted == Wanted::Integer && value.fract() == 0.0 && value.abs() < LARGEST;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole, and small enough"
        )]
        match value {
            value if is_whole && value >= 0.0 => self.inner.visit_u64(value as u64),
            value if is_whole => self.inner.visit_i64(value as i64),
            value => self.inner.visit_f64(value),
        }
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Strict(value))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(Strict(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        if self.wanted == Wanted::Object {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        }
        self.inner.visit_seq(Strict(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Strict(members))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(Strict(variant))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Strict(value))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Strict(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(Strict(seed))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Strict(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Strict<A> {
    type Error = A::Error;
    type Variant = Strict<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        let (value, variant) = self.0.variant_seed(Strict(seed))?;
        Ok((value, Strict(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(Strict(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(len, StrictVisitor { inner: visitor, wanted: Wanted::Other })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, StrictVisitor { inner: visitor, wanted: Wanted::Object })
    }
}

#[cfg(test)]
mod tests {
    use leasehold::model::Payload;
    use serde::Deserialize;

    use crate::request::body::parse;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Outer {
        id: u64,
        inner: Option<Inner>,
        #[serde(default)]
        many: Vec<Inner>,
        #[serde(default)]
        kind: Kind,
        #[serde(default)]
        payload: Payload,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Inner {
        count: i32,
    }

    #[derive(Debug, PartialEq, Default, Deserialize)]
    enum Kind {
        #[default]
        Plain,
        Pair(u8, u8),
        Named {
            count: u8,
        },
    }

    #[test]
    fn an_array_is_rejected_as_an_object_at_any_depth() {
        let read = |json: &str| parse::<Outer>(json.as_bytes()).is_ok();
        assert!(read(
            r#"{"id": 1, "inner": {"count": 2}, "many": [{"count": 3}], "kind": {"Pair": [1, 2]}}"#
        ));
        assert!(read(r#"{"id": 1, "kind": {"Named": {"count": 1}}, "payload": [[1], {"a": [2]}]}"#));
        for wrong in [
            "[1, null]",
            "[1, {\"count\": 2}, [], \"Plain\", null]",
            r#"{"id": 1, "inner": [2]}"#,
            r#"{"id": 1, "many": [[3]]}"#,
            r#"{"id": 1, "kind": {"Named": [1]}}"#,
            "null",
            "{\"id\": 1} {}",
        ] {
            assert!(!read(wrong), "{wrong}");
        }
        assert!(parse::<(u8, Inner)>(br#"[1, {"count": 2}]"#).is_ok(), "a tuple is an array");
        assert!(parse::<(u8, Inner)>(b"[1, [2]]").is_err());
    }

    #[test]
    fn a_whole_number_may_have_a_fraction_of_zero() {
        let id = |json: &str| parse::<Outer>(json.as_bytes()).map(|outer| outer.id).ok();
        assert_eq!(id(r#"{"id": 6240.0}"#), Some(6240));
        assert_eq!(id(r#"{"id": 1e3}"#), Some(1000));
        for wrong in [r#"{"id": 1.5}"#, r#"{"id": -1.0}"#, r#"{"id": 1e30}"#, r#"{"id": "1"}"#] {
            assert_eq!(id(wrong), None, "{wrong}");
        }
        assert_eq!(parse::<Inner>(br#"{"count": -2.0}"#).unwrap(), Inner { count: -2 });
    }

    #[test]
    fn a_payload_is_kept_as_it_was_written() {
        let outer: Outer = parse(br#"{"id": 1, "payload": {"a": 1.0, "b": [ 1 ]}}"#).unwrap();
        assert_eq!(outer.payload.as_str(), r#"{"a": 1.0, "b": [ 1 ]}"#);
        let deep = format!("{{\"id\": 1, \"payload\": {}{}}}", "[".repeat(200), "]".repeat(200));
        assert!(parse::<Outer>(deep.as_bytes()).is_err());
    }
}
