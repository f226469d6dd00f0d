//! Health checks of a server, for `leasehold doctor`.

use super::options::HttpOptions;
use crate::store::HealthCheck;
use crate::store::protocol::{Hello, VERSION};

pub(super) fn check_health(hello: &Hello, options: &HttpOptions) -> Vec<HealthCheck> {
    let ours = env!("CARGO_PKG_VERSION");
    let server = format!("leasehold {}, protocol {VERSION}; this client is {ours}", hello.version);
    let tasks = if hello.tasks { "with tasks" } else { "without tasks" };
    let mut found = vec![
        HealthCheck::ok("server", server),
        HealthCheck::ok("its engine", format!("{}, {tasks}", hello.engine)),
    ];
    if !hello.persistent {
        let detail = format!("{} loses all data when the server stops", hello.engine);
        let hint = "give the server a persistent store, such as sqlite:";
        found.push(HealthCheck::concern("its memory", detail, "HTTP_FORGETS", hint));
    }
    if !options.tls && !options.local {
        let detail = "requests can be read and changed on the network, including the token";
        found.push(HealthCheck::concern("encryption", detail, "HTTP_NO_TLS", "write https:"));
    }
    found
}
