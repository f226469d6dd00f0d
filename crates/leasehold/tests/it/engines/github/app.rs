//! A GitHub App instead of a person's token.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::LockName;
use leasehold::store::github::{self, GithubOptions};
use leasehold::store::{Store, StoreUrl};
use leasehold::testing::Player;

use super::fake::{App, Fake, Fate, Person};
use super::support::{fake, player};

const DRAWS: &str = "POST /app/installations/7/access_tokens";

/// An App with a login of its own, which nobody can assign, and a client with its key.
async fn install(fake: &Fake) -> Arc<dyn Store> {
    let (app, pem) = App::new("robot[bot]");
    fake.person("robot[bot]", Person { is_bot: true, association: "NONE", can_push: false });
    let options = GithubOptions::from_url(&StoreUrl::parse(&fake.url()).unwrap()).unwrap();
    let mut options = options.with_app(&*app.id, &*app.installation, &pem).unwrap();
    options.gap = Duration::ZERO;
    fake.repo().app = Some(app);
    github::connect(options).await.unwrap()
}

fn drawn(fake: &Fake) -> usize {
    fake.asked().iter().filter(|asked| asked.ends_with(DRAWS)).count()
}

/// The clock of this GitHub is years from the machine's: the first proof is refused for its date, and the second is not.
#[tokio::test]
async fn an_app_proves_who_it_is_whatever_the_clock_says_and_draws_a_token_once() {
    let Some((fake, _)) = fake().await else { return };
    fake.new_issue("Deploy");
    let robot = Player::new(install(&fake).await, 7, LockName::new("#1").unwrap());
    assert_eq!(drawn(&fake), 2);
    let lease = robot.takes().await;
    // Whoever works with an App of others names it.
    let mut ada = player(&fake, "ada", "#1").await;
    let mut options = super::support::options(&fake, "ada");
    options.workers = vec!["robot[bot]".to_owned()];
    ada.store = github::connect(options).await.unwrap();
    ada.is_refused().await;
    robot.releases(&lease).await;
    assert_eq!(drawn(&fake), 0, "one token serves them all");
}

#[tokio::test]
async fn a_token_that_has_ended_early_is_drawn_anew() {
    let Some((fake, _)) = fake().await else { return };
    fake.new_issue("Deploy");
    let robot = Player::new(install(&fake).await, 7, LockName::new("#1").unwrap());
    drawn(&fake);
    fake.plan("POST /comments", Fate::Refuse(401, Vec::new()));
    robot.takes().await;
    assert_eq!(drawn(&fake), 1);
    assert_eq!(fake.repo().issues[&1].comments.len(), 1);
}

#[tokio::test]
async fn a_key_of_another_app_is_told_without_showing_it() {
    let Some((fake, _)) = fake().await else { return };
    drop(install(&fake).await);
    let (_, other) = App::new("robot[bot]");
    let options = GithubOptions::from_url(&StoreUrl::parse(&fake.url()).unwrap()).unwrap();
    let Err(error) = github::connect(options.clone().with_app("4711", "7", &other).unwrap()).await else {
        panic!("it is not its key")
    };
    assert_eq!(error.code(), "STORE_NOT_PERMITTED", "{error}");
    let key = other.lines().nth(1).unwrap();
    assert!(!format!("{error:?} {error}").contains(key));
    let error = options.with_app("4711", "7", "-----BEGIN NOTHING-----").unwrap_err();
    assert_eq!(error.code(), "STORE_MISCONFIGURED", "{error}");
}
