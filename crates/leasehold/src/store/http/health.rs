//! Health checks of a server, for `leasehold doctor`.

use super::options::HttpOptions;
use crate::store::HealthCheck;
use crate::store::protocol::{Hello, VERSION};

pub(super) fn findings(hello: &Hello, options: &HttpOptions) -> Vec<HealthCheck> {
    let ours = env!("CARGO_PKG_VERSION");
    let server = format!("leasehold {}, protocol {VERSION}; this is {ours}", hello.version);
    let has = match (hello.tasks, hello.docs) {
        (true, _) => "with tasks",
        (false, _) => "without tasks",
    };
    let mut found = vec![
        HealthCheck::ok("server", server),
        HealthCheck::ok("its engine", format!("{}, {has}", hello.engine)),
    ];
    if !hello.lasting {
        let detail = format!("{} forgets everything when the server ends", hello.engine);
        let hint = "let the server have a store that lasts, such as sqlite:";
        found.push(HealthCheck::concern("its memory", detail, "HTTP_FORGETS", hint));
    }
    if !options.tls && !options.local {
        let detail = "what is sent can be read and changed on the way, the token too";
        found.push(HealthCheck::concern("encryption", detail, "HTTP_NO_TLS", "write https:"));
    }
    found
}
