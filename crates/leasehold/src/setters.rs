//! Setters of structs that callers fill in and that may get more fields.

/// Defines one setter per field. A setter of an optional field takes the value or an `Option`.
macro_rules! setters {
    ($type:ident { $($fields:tt)* }) => {
        impl $type {
            setters!(@ $($fields)*);
        }
    };
    (@) => {};
    (@ $(#[$doc:meta])* $field:ident: Option<$value:ty>, $($rest:tt)*) => {
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: impl Into<Option<$value>>) -> Self {
            self.$field = $field.into();
            self
        }
        setters!(@ $($rest)*);
    };
    (@ $(#[$doc:meta])* $field:ident: $value:ty, $($rest:tt)*) => {
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: $value) -> Self {
            self.$field = $field;
            self
        }
        setters!(@ $($rest)*);
    };
}
