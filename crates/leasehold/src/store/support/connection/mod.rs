//! Connections of engines that are servers: their thread, the first connection, TLS, and the server's
//! clock.

pub(crate) mod background;
#[cfg(any(feature = "postgres", feature = "redis", feature = "http"))]
pub(crate) mod first_connection;
#[cfg(any(feature = "http", feature = "github"))]
pub(crate) mod http_client;
#[cfg(any(feature = "dynamodb", feature = "github"))]
pub(crate) mod server_clock;
#[cfg(any(feature = "postgres", feature = "http", feature = "github"))]
pub(crate) mod tls;
