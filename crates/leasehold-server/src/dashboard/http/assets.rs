//! Style sheet, script and icon: part of the binary, compressed once, served with an entity tag.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flate2::Compression;
use sha2::{Digest, Sha256};

use super::gzip;
use crate::problem::Problem;
use crate::status;

struct Asset {
    name: &'static str,
    kind: &'static str,
    body: &'static [u8],
}

static ASSETS: [Asset; 3] = [
    Asset {
        name: "dashboard.css",
        kind: "text/css; charset=utf-8",
        body: include_bytes!("../assets/dashboard.css"),
    },
    Asset {
        name: "dashboard.js",
        kind: "text/javascript; charset=utf-8",
        body: include_bytes!("../assets/dashboard.js"),
    },
    Asset { name: "icon.svg", kind: "image/svg+xml", body: include_bytes!("../assets/icon.svg") },
];

/// Hash of all assets. It is part of their addresses, so that a browser may keep them until the server
/// has other ones.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    for asset in &ASSETS {
        hash.update(asset.body);
    }
    URL_SAFE_NO_PAD.encode(&hash.finalize()[..9])
});

/// Assets compressed with gzip, in the same order.
static COMPRESSED: LazyLock<[Bytes; ASSETS.len()]> =
    LazyLock::new(|| ASSETS.each_ref().map(|asset| gzip::compress(asset.body, Compression::best()).into()));

/// Returns the address of an asset below the prefix of the dashboard.
pub(in crate::dashboard) fn address(prefix: &str, name: &str) -> String {
    format!("{prefix}/assets/{name}?v={}", *VERSION)
}

/// Serves an asset.
pub(in crate::dashboard) async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let Some(number) = ASSETS.iter().position(|asset| asset.name == name) else {
        return Problem::new("UNKNOWN_PATH", format!("there is no asset {name}")).into_response();
    };
    let (asset, is_compressed) = (&ASSETS[number], gzip::is_accepted(&headers));
    let known = headers.get(header::IF_NONE_MATCH).and_then(|known| known.to_str().ok());
    let mut response = if known.is_some_and(|known| known.contains(VERSION.as_str())) {
        status::NOT_MODIFIED.into_response()
    } else if is_compressed {
        ([(header::CONTENT_ENCODING, gzip::NAME)], COMPRESSED[number].clone()).into_response()
    } else {
        asset.body.into_response()
    };
    // The two forms of an asset differ, and so do their tags.
    let tag = format!("\"{}{}\"", *VERSION, if is_compressed { "-gzip" } else { "" });
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.kind));
    let kept = HeaderValue::from_static("public, max-age=31536000, immutable");
    headers.insert(header::CACHE_CONTROL, kept);
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    headers.insert(header::ETAG, HeaderValue::from_str(&tag).expect("base64 is plain ASCII"));
    response
}
