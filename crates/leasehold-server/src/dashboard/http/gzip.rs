//! Compression of pages and assets with gzip, for browsers that accept it.

use std::io::Write;

use axum::http::{HeaderMap, header};
use flate2::Compression;
use flate2::write::GzEncoder;

/// Value of the headers that name the compression.
pub(in crate::dashboard) const NAME: &str = "gzip";

/// Compresses bytes.
pub(in crate::dashboard) fn compress(bytes: &[u8], level: Compression) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 2), level);
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory accepts every write")
}

/// Whether the client accepts gzip: it names it, or all codings, with a weight above zero.
pub(in crate::dashboard) fn is_accepted(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|line| line.to_str().ok());
    let weights: Vec<(&str, bool)> = lines.flat_map(|line| line.split(',')).map(weighted).collect();
    let of = |name: &str| weights.iter().find(|(coding, _)| coding.eq_ignore_ascii_case(name));
    of(NAME).or_else(|| of("*")).is_some_and(|(_, is_wanted)| *is_wanted)
}

/// Returns a coding, and whether its weight is above zero.
fn weighted(part: &str) -> (&str, bool) {
    let (coding, parameters) = part.split_once(';').unwrap_or((part, ""));
    let weight = parameters.trim().strip_prefix(['q', 'Q']).and_then(|rest| rest.trim().strip_prefix('='));
    let is_wanted = weight.is_none_or(|weight| weight.trim().parse::<f32>().is_ok_and(|weight| weight > 0.0));
    (coding.trim(), is_wanted)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use axum::http::HeaderValue;

    use super::*;

    fn accepts(line: &'static str) -> bool {
        let line = (header::ACCEPT_ENCODING, HeaderValue::from_static(line));
        is_accepted(&HeaderMap::from_iter([line]))
    }

    #[test]
    fn gzip_is_used_only_if_the_client_accepts_it() {
        for line in [
            "gzip",
            "gzip, deflate, br, zstd",
            "br;q=1.0, GZIP;q=0.2",
            "*",
            "identity;q=0.5, *;q=0.1",
            "br,gzip ; q=1",
        ] {
            assert!(accepts(line), "{line}");
        }
        for line in ["", "br", "identity", "gzip;q=0", "gzip;q=0.0, *", "*;q=0", "gzipped", "gzip;q=x"] {
            assert!(!accepts(line), "{line}");
        }
        assert!(!is_accepted(&HeaderMap::new()));
    }

    #[test]
    fn compressed_bytes_can_be_read_back() {
        let text = "held by ci@runner-7 ".repeat(1000);
        let compressed = compress(text.as_bytes(), Compression::fast());
        assert!(compressed.len() < text.len() / 10);
        let mut read = String::new();
        flate2::read::GzDecoder::new(compressed.as_slice()).read_to_string(&mut read).unwrap();
        assert_eq!(read, text);
    }
}
