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
    github::connect(installed(fake)).await.unwrap()
}

fn installed(fake: &Fake) -> GithubOptions {
    let (app, pem) = App::new("robot[bot]");
    fake.person("robot[bot]", Person { is_bot: true, association: "NONE", can_push: false });
    let options = GithubOptions::from_url(&StoreUrl::parse(&fake.url()).unwrap()).unwrap();
    let mut options = options.with_app(&*app.id, &*app.installation, &pem).unwrap();
    options.gap = Duration::ZERO;
    fake.repo().app = Some(app);
    options
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

/// Bots that repeat what strangers write would otherwise let strangers keep an App out.
#[tokio::test]
async fn an_app_that_has_written_nothing_counts_claims_of_its_own_login_and_of_no_other_bot() {
    let Some((fake, _)) = fake().await else { return };
    fake.new_issue("Deploy");
    let mut options = installed(&fake);
    options.alone = true;
    let deploy = LockName::new("#1").unwrap();
    let robot = Player::new(github::connect(options.clone()).await.unwrap(), 7, deploy.clone());
    robot.takes().await;
    let other = github::connect(options.clone()).await.unwrap();
    let seen = other.locks().get(&deploy).await.unwrap().unwrap();
    assert_eq!(seen.holders.len(), 1, "another process of the same App holds it");

    let body = fake.repo().issues[&1].comments.values().next().unwrap().body.clone();
    let number = fake.new_issue("Another");
    fake.person("quoter[bot]", Person { is_bot: true, association: "NONE", can_push: false });
    fake.write(number, "quoter[bot]", &body);
    let fresh = github::connect(options).await.unwrap();
    Player::new(fresh, 8, LockName::new(format!("#{number}")).unwrap()).takes().await;
}

/// The token of a workflow does not tell its login.
#[tokio::test]
async fn a_token_of_an_app_counts_the_bots_that_are_named_or_that_of_workflows() {
    let Some((fake, _)) = fake().await else { return };
    let issue = fake.new_issue("Deploy");
    let ada = player(&fake, "ada", "#1").await;
    ada.takes().await;
    let body = fake.repo().issues[&issue].comments.values().next().unwrap().body.clone();
    // This GitHub knows tokens by the login in them; one without a login has the empty login.
    fake.person("", Person { is_bot: true, association: "NONE", can_push: false });
    for (bots, author, counts) in [
        (vec![], "github-actions[bot]", true),
        (vec![], "quoter[bot]", false),
        (vec!["deploy[bot]".to_owned()], "deploy[bot]", true),
        (vec!["deploy[bot]".to_owned()], "github-actions[bot]", false),
    ] {
        fake.person(author, Person { is_bot: true, association: "NONE", can_push: false });
        let number = fake.new_issue("Another");
        fake.write(number, author, &body);
        let mut options = super::support::options(&fake, "ada").with_token("ghs_of-a-workflow");
        (options.bots, options.alone) = (bots, true);
        let store = github::connect(options).await.unwrap();
        let name = LockName::new(format!("#{number}")).unwrap();
        let held = store.locks().get(&name).await.unwrap().is_some_and(|record| !record.holders.is_empty());
        assert_eq!(held, counts, "{author}");
    }
}
