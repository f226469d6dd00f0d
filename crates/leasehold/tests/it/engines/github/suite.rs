//! Conformance suite, within the capabilities of this engine, on the injected clock.

use leasehold::model::QueueName;
use leasehold::store::github;
use leasehold::testing::Fixture;

use super::support::{client, fake, options};

/// Returns two clients with different tokens.
async fn fresh() -> Fixture {
    let (fake, clock) = fake().await;
    let (one, two) = (client(&fake, "ada").await, client(&fake, "bob").await);
    Fixture::new(one, two, clock, fake)
}

/// Same as [`fresh`], with all queues of the suite in the URL: a client knows only the queues in
/// its URL and those that it has used.
async fn fresh_with_queues() -> Fixture {
    let (fake, clock) = fake().await;
    let client = async |login: &str| {
        let mut options = options(&fake, login);
        options.queues = ["q", "other", "third"].map(|name| QueueName::new(name).unwrap()).to_vec();
        github::connect(options).await.unwrap()
    };
    let (one, two) = (client("ada").await, client("bob").await);
    Fixture::new(one, two, clock, fake)
}

mod locks {
    leasehold::lock_conformance!(crate::engines::github::suite::fresh);
}

mod tasks {
    leasehold::task_conformance!(crate::engines::github::suite::fresh_with_queues);
}
