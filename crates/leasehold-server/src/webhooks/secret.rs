//! Secret that the sender of a webhook signs with. Never displayed, not even by `{:?}`.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use leasehold::model::ValidationError;

use super::Scheme;

const STANDARD_PREFIX: &str = "whsec_";

/// Secret that the sender of a webhook signs with, as bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Creates a secret from the text that the sender displays. Standard Webhooks use `whsec_` and
    /// Base64; all others use the text itself.
    pub fn new(scheme: Scheme, text: &str) -> Result<Self, ValidationError> {
        let bytes = match scheme {
            Scheme::Standard => {
                let encoded = text.strip_prefix(STANDARD_PREFIX).unwrap_or(text);
                let invalid = |_| {
                    ValidationError(
                        "invalid secret of Standard Webhooks: must be whsec_ and Base64".to_owned(),
                    )
                };
                STANDARD.decode(encoded).map_err(invalid)?
            }
            Scheme::Github | Scheme::Stripe | Scheme::None => text.as_bytes().to_vec(),
        };
        if bytes.is_empty() {
            return Err(ValidationError("the secret must not be empty".to_owned()));
        }
        Ok(Self(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_as_its_scheme_means_it_and_never_shown() {
        let standard = Secret::new(Scheme::Standard, "whsec_AQID").unwrap();
        assert_eq!(standard.bytes(), [1, 2, 3]);
        assert_eq!(Secret::new(Scheme::Standard, "AQID").unwrap(), standard);
        assert_eq!(Secret::new(Scheme::Stripe, "whsec_AQID").unwrap().bytes(), b"whsec_AQID");
        assert_eq!(format!("{standard:?}"), "Secret(…)");
        for invalid in ["whsec_", "whsec_ä", "whsec_A"] {
            assert!(Secret::new(Scheme::Standard, invalid).is_err(), "{invalid}");
        }
        assert!(Secret::new(Scheme::Github, "").is_err());
    }
}
