//! Store URLs and their settings.

pub(crate) mod store_url;
#[cfg(any(
    feature = "sqlite",
    feature = "postgres",
    feature = "redis",
    feature = "dynamodb",
    feature = "http",
    feature = "github"
))]
pub(crate) mod url_options;

pub use store_url::StoreUrl;
